"""Runs one contender on one workload in its own process, and measures that process."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contest import ContenderFailed, run_process
from benchmarks.keyed_state.job import Job, Outcome
from benchmarks.keyed_state.workload import Workload
from benchmarks.measure import TreeSampler


@dataclass(frozen=True)
class Measurement:
    """One contender's figures on one workload, warm-up excluded."""

    rival: str
    keys: int
    batch_records: int
    records: int
    seconds: float
    records_per_s: float
    records_per_s_median_batch: float
    cpu_s_per_million: float
    cpu_s_per_million_by_program: dict[str, float]
    peak_mib: float
    peak_kind: str
    batch_seconds: list[float]
    notes: dict[str, Any] = field(default_factory=dict)


def measure(
    rival: str,
    workload: Workload,
    work_dir: Path,
    cores: int,
    timeout_s: float,
    servers: str = "",
) -> Measurement:
    """Run ``rival`` once and return its figures.

    Args:
        rival: A key of ``contender.CONTENDERS``.
        workload: Input; its files are made under ``work_dir`` unless they are there already.
        work_dir: Files that outlive the run, and a temporary folder that does not.
        cores: Task slots or workers.
        timeout_s: Seconds after which the contender is killed.
        servers: A Kafka broker, for those that read from one.

    Raises:
        ContenderFailed: With the rival's name and where what it printed is kept.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{rival}-", dir=work_dir))
    try:
        job = Job(rival, workload, scratch / "input", scratch / "scratch", cores, servers)
        workload.link_into(work_dir / "input", job.input_dir)
        job.scratch_dir.mkdir()
        return _measure(job, scratch, timeout_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(job: Job, scratch: Path, timeout_s: float) -> Measurement:
    job.dump(scratch / "job.json")
    sampler = run_process(job.rival, "benchmarks.keyed_state.contender", scratch, timeout_s)
    return _to_measurement(job, Outcome.load(scratch / "outcome.json"), sampler)


def _to_measurement(job: Job, outcome: Outcome, sampler: TreeSampler) -> Measurement:
    expected = job.workload.totals()
    if outcome.totals != expected:
        raise ContenderFailed(f"{job.rival} counted {outcome.totals}, expected {expected}.")
    marks_s = outcome.marks_s
    started_s, ended_s = marks_s[0], marks_s[-1]
    millions = job.workload.records / 1e6
    cpu_s = sampler.cpu_s_between(started_s, ended_s)
    batch_seconds = [end - start for start, end in pairwise(marks_s)]
    return Measurement(
        rival=job.rival,
        keys=job.workload.keys,
        batch_records=job.workload.batch_records,
        records=job.workload.records,
        seconds=ended_s - started_s,
        records_per_s=job.workload.records / (ended_s - started_s),
        records_per_s_median_batch=job.workload.records
        / len(batch_seconds)
        / statistics.median(batch_seconds),
        cpu_s_per_million=sum(cpu_s.values()) / millions,
        cpu_s_per_million_by_program={name: spent / millions for name, spent in cpu_s.items()},
        peak_mib=sampler.peak_bytes_before(ended_s) / 2**20,
        peak_kind=sampler.memory_kind,
        batch_seconds=batch_seconds,
        notes=outcome.notes,
    )
