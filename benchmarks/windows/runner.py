"""Runs one contender on one workload in its own process, and measures that process."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.contest import ContenderFailed, run_process
from benchmarks.measure import TreeSampler
from benchmarks.windows.job import Job, Outcome
from benchmarks.windows.workload import Workload


@dataclass(frozen=True)
class Measurement:
    """One contender's figures on one workload, warm-up excluded.

    ``records_per_s`` is over all measured records; ``records_per_s_of_batches`` are of the slowest,
    the median and the fastest batch.
    """

    rival: str
    shape: str
    keys: int
    zipf: bool
    rate: int
    batch_records: int
    records: int
    seconds: float
    records_per_s: float
    records_per_s_of_batches: tuple[float, float, float]
    cpu_s_per_million: float
    cpu_s_per_million_by_program: dict[str, float]
    peak_mib: float
    peak_kind: str
    load_average: float
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
        ContenderFailed: With the rival's name and where what it printed is kept, or what was wrong
            with its results.
    """
    python, jars = sys.executable, []
    if rival == "flink":
        python, jars = environments.flink()
    scratch = Path(tempfile.mkdtemp(prefix=f"{rival}-", dir=work_dir))
    try:
        job = Job(rival, workload, scratch / "input", scratch / "scratch", cores, jars, servers)
        workload.link_into(work_dir / "input", job.input_dir)
        job.scratch_dir.mkdir()
        job.dump(scratch / "job.json")
        sampler = run_process(rival, "benchmarks.windows.contender", scratch, timeout_s, python)
        return _to_measurement(job, Outcome.load(scratch / "outcome.json"), sampler)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _to_measurement(job: Job, outcome: Outcome, sampler: TreeSampler) -> Measurement:
    workload = job.workload
    expected = workload.totals()
    if outcome.totals != expected:
        raise ContenderFailed(f"{job.rival} found {outcome.totals}, expected {expected}.")
    marks_s = outcome.marks_s
    started_s, ended_s = marks_s[0], marks_s[-1]
    millions = workload.records / 1e6
    cpu_s = sampler.cpu_s_between(started_s, ended_s)
    batch_seconds = [end - start for start, end in pairwise(marks_s)]
    ordered = sorted(outcome.records_per_mark / seconds for seconds in batch_seconds)
    return Measurement(
        rival=job.rival,
        shape=workload.shape,
        keys=workload.keys,
        zipf=workload.zipf,
        rate=workload.rate,
        batch_records=workload.batch_records,
        records=workload.records,
        seconds=ended_s - started_s,
        records_per_s=workload.records / (ended_s - started_s),
        records_per_s_of_batches=(ordered[0], statistics.median(ordered), ordered[-1]),
        cpu_s_per_million=sum(cpu_s.values()) / millions,
        cpu_s_per_million_by_program={name: spent / millions for name, spent in cpu_s.items()},
        peak_mib=sampler.peak_bytes_before(ended_s) / 2**20,
        peak_kind=sampler.memory_kind,
        load_average=round(os.getloadavg()[0], 2),
        batch_seconds=batch_seconds,
        notes=outcome.notes,
    )
