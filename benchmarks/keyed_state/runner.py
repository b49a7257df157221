"""Runs one contender on one workload in its own process, and measures that process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.keyed_state.job import Job, Outcome
from benchmarks.keyed_state.workload import Workload
from benchmarks.measure import TreeSampler

_REPOSITORY = Path(__file__).parents[2]


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


class ContenderFailed(Exception):
    """A contender's process failed, ran out of time, or counted wrong."""


def measure(
    rival: str, workload: Workload, work_dir: Path, cores: int, timeout_s: float
) -> Measurement:
    """Run ``rival`` once and return its figures.

    Args:
        rival: A key of ``contender.CONTENDERS``.
        workload: Input; its files are made under ``work_dir`` unless they are there already.
        work_dir: Files that outlive the run, and a temporary folder that does not.
        cores: Task slots or workers.
        timeout_s: Seconds after which the contender is killed.

    Raises:
        ContenderFailed: With the rival's name and where what it printed is kept.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{rival}-", dir=work_dir))
    try:
        job = Job(rival, workload, scratch / "input", scratch / "scratch", cores)
        workload.link_into(work_dir / "input", job.input_dir)
        job.scratch_dir.mkdir()
        return _measure(job, scratch, timeout_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(job: Job, scratch: Path, timeout_s: float) -> Measurement:
    job_path, outcome_path, log_path = (
        scratch / name for name in ("job.json", "outcome.json", "log.txt")
    )
    job.dump(job_path)
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, "-m", "benchmarks.keyed_state.contender"]
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, str(job_path), str(outcome_path)],
            cwd=_REPOSITORY,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with TreeSampler(process.pid) as sampler:
            try:
                failed = process.wait(timeout_s) != 0
            except subprocess.TimeoutExpired:
                sampler.kill_tree()
                raise ContenderFailed(
                    f"{job.rival} did not finish {job.workload.records} records in {timeout_s:.0f} "
                    "s; raise --timeout or, for transformWithState, lower --slow-records."
                ) from None
    if failed:
        kept = shutil.copy(log_path, scratch.parent / f"{scratch.name}.log")
        raise ContenderFailed(f"{job.rival} failed; its traceback is in {kept}")
    return _to_measurement(job, Outcome.load(outcome_path), sampler)


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
        records_per_s_median_batch=job.workload.batch_records / statistics.median(batch_seconds),
        cpu_s_per_million=sum(cpu_s.values()) / millions,
        cpu_s_per_million_by_program={name: spent / millions for name, spent in cpu_s.items()},
        peak_mib=sampler.peak_bytes_before(ended_s) / 2**20,
        peak_kind=sampler.memory_kind,
        batch_seconds=batch_seconds,
        notes=outcome.notes,
    )
