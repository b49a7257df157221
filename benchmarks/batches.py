"""Runs one contender on batches of records in its own process, and measures that process.

``benchmarks.keyed_state`` and ``benchmarks.windows`` share it; each has its own workload.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from benchmarks import environments
from benchmarks.contest import ContenderFailed, run_process
from benchmarks.measure import TreeSampler


class Workload(Protocol):
    """Records in batches, made once and read by every contender."""

    records: int

    def totals(self) -> Any:
        """Return what every contender's results must add up to."""

    def link_into(self, cache: Path, folder: Path) -> None:
        """Fill a folder with hard links to files that are made once in ``cache``."""


WorkloadT = TypeVar("WorkloadT", bound=Workload)


@dataclass(frozen=True)
class Job(Generic[WorkloadT]):
    """One contender on one workload, as its process is given it.

    Args:
        rival: Name of the contender, a key of ``contender.CONTENDERS``.
        workload: What ``input_dir`` holds.
        input_dir: Parquet files, in order of their names.
        scratch_dir: Empty folder for checkpoints, databases and results.
        cores: Task slots or workers.
        servers: A Kafka broker, for those that read from one.
        jars: What Flink needs beside its wheel.
    """

    rival: str
    workload: WorkloadT
    input_dir: Path
    scratch_dir: Path
    cores: int
    servers: str = ""
    jars: list[str] = field(default_factory=list)

    @property
    def results_dir(self) -> Path:
        """Where results are written that are not state."""
        return self.scratch_dir / "results"

    def dump(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), default=str, indent=1))

    @classmethod
    def load(cls, path: Path, kind: type[WorkloadT]) -> Self:
        """Read what ``dump`` wrote, given the type of its workload."""
        job = json.loads(path.read_text())
        job |= {"workload": kind(**job["workload"])}
        return cls(**job | {name: Path(job[name]) for name in ("input_dir", "scratch_dir")})


@dataclass(frozen=True)
class Outcome:
    """How fast a contender was, and what its state or its results add up to.

    Args:
        marks_s: Unix time at which the measured records begin, and after every so many of them.
        records_per_mark: So many: for those that have batches, a batch.
        totals: Read back from its state, or from what it wrote.
        notes: Anything else worth keeping in the result file.
    """

    marks_s: list[float]
    records_per_mark: int
    totals: Any
    notes: dict[str, Any] = field(default_factory=dict)

    def dump(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contender's figures on one workload, warm-up excluded.

    A benchmark's own has more fields: of its workload, or of those that :func:`measure` computes.
    """

    rival: str
    keys: int
    batch_records: int
    records: int
    seconds: float
    records_per_s: float
    cpu_s_per_million: float
    cpu_s_per_million_by_program: dict[str, float]
    peak_mib: float
    peak_kind: str
    batch_seconds: list[float]
    notes: dict[str, Any] = field(default_factory=dict)


MeasurementT = TypeVar("MeasurementT", bound=Measurement)


def measure(
    package: str,
    kind: type[MeasurementT],
    rival: str,
    workload: Workload,
    work_dir: Path,
    cores: int,
    timeout_s: float,
    servers: str = "",
) -> MeasurementT:
    """Run ``rival`` once and return its figures.

    Args:
        package: Below ``benchmarks``, with the module ``contender``.
        kind: Of the figures.
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
    python, jars = environments.flink() if rival == "flink" else (sys.executable, [])
    scratch = Path(tempfile.mkdtemp(prefix=f"{rival}-", dir=work_dir))
    try:
        job = Job(rival, workload, scratch / "input", scratch / "scratch", cores, servers, jars)
        workload.link_into(work_dir / "input", job.input_dir)
        job.scratch_dir.mkdir()
        job.dump(scratch / "job.json")
        sampler = run_process(rival, f"benchmarks.{package}.contender", scratch, timeout_s, python)
        outcome = Outcome(**json.loads((scratch / "outcome.json").read_text()))
        return _to_measurement(kind, job, outcome, sampler)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _to_measurement(
    kind: type[MeasurementT], job: Job[Any], outcome: Outcome, sampler: TreeSampler
) -> MeasurementT:
    workload = job.workload
    totals = dataclasses.asdict(workload.totals())
    if outcome.totals != totals:
        raise ContenderFailed(f"{job.rival} found {outcome.totals}, expected {totals}.")
    marks_s = outcome.marks_s
    started_s, ended_s = marks_s[0], marks_s[-1]
    millions = workload.records / 1e6
    cpu_s = sampler.cpu_s_between(started_s, ended_s)
    batch_seconds = [end - start for start, end in pairwise(marks_s)]
    rates = sorted(outcome.records_per_mark / seconds for seconds in batch_seconds)
    figures = dict(
        dataclasses.asdict(workload),
        rival=job.rival,
        seconds=ended_s - started_s,
        records_per_s=workload.records / (ended_s - started_s),
        records_per_s_median_batch=workload.records
        / len(batch_seconds)
        / statistics.median(batch_seconds),
        records_per_s_of_batches=(rates[0], statistics.median(rates), rates[-1]),
        cpu_s_per_million=sum(cpu_s.values()) / millions,
        cpu_s_per_million_by_program={name: spent / millions for name, spent in cpu_s.items()},
        peak_mib=sampler.peak_bytes_before(ended_s) / 2**20,
        peak_kind=sampler.memory_kind,
        load_average=round(os.getloadavg()[0], 2),
        batch_seconds=batch_seconds,
        notes=outcome.notes,
    )
    return kind(**{each.name: figures[each.name] for each in dataclasses.fields(kind)})
