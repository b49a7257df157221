"""Millrace on the real-time plane: the same count, from files that it reads, Kafka, or memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import millrace as mr
from benchmarks.batches import Job, Outcome
from benchmarks.keyed_state.millrace_count import pipeline_of, read_totals
from benchmarks.keyed_state.workload import SCHEMA_DDL, Workload
from benchmarks.realtime import MARKS, FileParts, Parts, TopicParts, realtime_session, timed

#: Records that are taken from memory at once.
_CHUNK = 100_000


def run(job: Job[Workload]) -> Outcome:
    """Count the records of Parquet files."""
    files = job.workload.parts
    staged = job.scratch_dir / "staged"
    return _run(job, FileParts(staged, _parts(job), schema=SCHEMA_DDL, files=files))


def run_kafka(job: Job[Workload]) -> Outcome:
    """Count the same records from a topic with a partition for each file of a batch."""
    partitions = job.workload.parts
    return _run(job, TopicParts(job.servers, _parts(job), schema=SCHEMA_DDL, partitions=partitions))


def run_memory(job: Job[Workload]) -> Outcome:
    """Count the same keys, which the injector tasks have in memory: reading costs nothing."""
    return _run(job, _MemoryParts(job))


def _run(job: Job[Workload], parts: Parts) -> Outcome:
    workload = job.workload
    spark = realtime_session(job.rival, tasks=job.cores, levels=1)
    checkpoint = str(job.scratch_dir / "checkpoint")
    running = pipeline_of(parts.source).start(
        spark, checkpoint=checkpoint, tasks=job.cores, realtime=True, marks=MARKS, progress=False
    )
    _, measured = timed(running, "events", parts, [workload.warmup, workload.records])
    running.stop()
    spark.stop()
    return Outcome(measured, workload.records, read_totals(checkpoint))


def _parts(job: Job[Workload]) -> list[list[Path]]:
    """Return the files of the warm-up, and those that are measured."""
    files = sorted(job.input_dir.iterdir())
    warm_up = job.workload.warmup_batches * job.workload.parts
    return [files[:warm_up], files[warm_up:]]


class _MemoryParts:
    """Parts that injector tasks have in memory."""

    def __init__(self, job: Job[Workload]) -> None:
        workload = job.workload
        self._due_path = job.scratch_dir / "due"
        self._due = [workload.warmup, workload.warmup + workload.records]
        self.source = _Drawn(workload, self._due_path)

    def release(self, part: int) -> None:
        """Say how many records there are."""
        making = self._due_path.with_suffix(".making")
        making.write_text(str(self._due[part]))
        making.rename(self._due_path)

    def read_since_s(self, since_s: float) -> float:
        """Return the time itself."""
        return since_s


class _Drawn(mr.sources.Injector):
    """The workload's records: process ``p`` of ``n`` has each n-th from number ``p`` on."""

    schema = SCHEMA_DDL

    def __init__(self, workload: Workload, due_path: Path) -> None:
        self._workload = workload
        self._due_path = due_path
        self._keys: np.ndarray | None = None

    def processes(self) -> Iterable[str]:
        return [str(number) for number in range(self._workload.parts)]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        done, parts = offset or 0, self._workload.parts
        due = int(self._due_path.read_text()) if self._due_path.exists() else 0
        own = (due - int(process) + parts - 1) // parts
        return mr.sources.Advance(min(own, done + _CHUNK) if own > done else offset)

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        if self._keys is None:
            self._keys = self._workload.draw_keys()
        numbers = int(process) + np.arange(start or 0, end) * self._workload.parts
        times = pa.array(self._workload.times_us(numbers)).cast(pa.timestamp("us", tz="UTC"))
        yield pa.RecordBatch.from_pydict(
            {"key": self._keys[numbers], "value": numbers, "time": times}
        )
