"""What the commits of an epoch cost in requests, bytes and dollars, by the number of intervals.

A pipeline of one computation, in which every key interval has one record in every epoch, run by the
real driver and four tasks on checkpoints of two kinds: an object store, where what a task commits
is one object, and a directory. The object store is obstore's in memory, with its requests counted;
the directory is a temporary one, with its fsyncs and files counted. Snapshots and collection run as
they do in a run, so that what they cost is in it, spread over the epochs.

Dollars are for a day of an epoch a second, by Amazon S3's list price for its standard class in
``us-east-1``: 0.005 USD for 1,000 PUT, COPY, POST or LIST, 0.0004 USD for 1,000 GET or HEAD, DELETE
for nothing. Bytes are those that are sent to the store.

Run it with ``python -m benchmarks.commit_requests``. It needs no Spark and takes some minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from millrace.epochlog.entries import Manifest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.epoch.host import LevelStage
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Collector,
    HardState,
    LocalHardState,
    MemoryCaches,
    ObjectBlobs,
    ObjectHardState,
    SnapshotPolicy,
)
from millrace.store.snapshot_writer import write_if_due
from millrace.testing.feed import Feed, Read
from millrace.watermark.report import ONLY

_INTERVALS = (16, 128, 1_024, 8_192)
_TASKS = 4
_DAY_S = 86_400
USD = {"put": 0.005 / 1000, "list": 0.005 / 1000, "get": 0.0004 / 1000, "head": 0.0004 / 1000}
_OF_OBSTORE = {"get_range": "get"}


class Count(mr.Computation):
    """Counts the records of a key."""

    inputs = {"events": mr.by(str)}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it."""
        self.count.set(self.count.get(0) + 1)


@dataclass(frozen=True)
class Cost:
    """Of an epoch, on average.

    Attributes:
        kind: Of the checkpoint.
        intervals: Key intervals.
        epochs: How many were measured.
        requests: By kind; of a directory, system calls.
        sent: Bytes written.
        usd_a_day: At an epoch a second; None for a directory.
    """

    kind: str
    intervals: int
    epochs: int
    requests: dict[str, float]
    sent: float
    usd_a_day: float | None


class CountedStore:
    """An object store in memory that counts what is asked of it."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.sent = 0
        self._store = MemoryStore()

    def put(self, path: str, file: bytes, **how: Any) -> object:
        """Count, and put."""
        self.requests["put"] += 1
        self.sent += len(file)
        return self._store.put(path, file, **how)

    def __getattr__(self, name: str) -> Any:
        self.requests[_OF_OBSTORE.get(name, name)] += 1
        return getattr(self._store, name)


class CountedDisk:
    """The operating system's calls for files, counted."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.sent = 0

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Count, and write."""
        written = os.write(fd, data)
        self.sent += written
        return written

    def __getattr__(self, name: str) -> Any:
        if name in ("fsync", "link", "unlink"):
            self.requests[name] += 1
        return getattr(os, name)


class _Run:
    """A run in this process."""

    def __init__(self, state: HardState, intervals: int) -> None:
        p = mr.Pipeline("commit requests")
        p.inject("events", format=str)
        p.add(Count)
        topology = p.build()
        self._state = state
        self._caches = MemoryCaches()
        self._run_log = RunLog(topology, state, intervals=intervals)
        self._driver = EpochDriver(topology, self._run_log, WatermarkPublisher({}), tasks=_TASKS)
        execution = Execution(topology, state, self._caches)
        self._runtime = WorkerProcess(topology, tasks=_TASKS, execution=execution)
        self._collector = Collector(state)
        self._intervals = intervals
        self._keys = _keys(intervals)

    def epoch(self) -> None:
        """Run the next one, and what is done beside it."""
        number = self._run_log.completed + 1
        assert self._driver.run(number, self._stages, wall_time_us=number) is not None
        written = 0
        for interval in range(self._intervals):
            cache = self._caches.open("Count", interval)
            done = write_if_due(cache, self._state.snapshots, "Count", interval, SnapshotPolicy())
            written += done.snapshots
        if written:
            self._collector.collect(self._run_log.collectable())

    def _stages(self, manifest: Manifest) -> tuple[TaskReport, float]:
        reads = [Read(key, manifest.epoch, ONLY) for key in self._keys]
        sent = list(Feed("events", reads, {}).rows(Task(self._runtime, manifest, 0)))
        left = through_levels(LocalExchange(self._runtime, manifest), sent, 1, LevelStage)
        return TaskReport.together(reports_in(left)), 0.0


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=_numbers, default=_INTERVALS)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    kinds: list[Callable[[int, int], Cost]] = [_in_bucket, _on_disk]
    costs = [kind(count, arguments.epochs) for count in arguments.intervals for kind in kinds]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"commit-requests-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "commit_requests", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _in_bucket(intervals: int, epochs: int) -> Cost:
    store = CountedStore()
    bucket = ObjectBlobs(BucketUrl.parse("s3://b/c"), BucketOptions(requests=1), store=store)
    state = ObjectHardState.create_or_open(bucket, pipeline="commit requests")
    return _measured("objects", state, store, intervals, epochs, priced=True)


def _on_disk(intervals: int, epochs: int) -> Cost:
    home, disk = Path(tempfile.mkdtemp(prefix="commit-requests-")), CountedDisk()
    try:
        state = LocalHardState.create_or_open(home / "c", pipeline="commit requests", disk=disk)
        return _measured("a directory", state, disk, intervals, epochs, priced=False)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measured(
    kind: str,
    state: HardState,
    counted: CountedStore | CountedDisk,
    intervals: int,
    epochs: int,
    *,
    priced: bool,
) -> Cost:
    run = _Run(state, intervals)
    run.epoch()
    counted.requests.clear()
    counted.sent = 0
    for _ in range(epochs):
        run.epoch()
    requests = {name: round(n / epochs, 2) for name, n in sorted(counted.requests.items())}
    usd = sum(USD.get(name, 0.0) * n for name, n in requests.items()) * _DAY_S
    sent = round(counted.sent / epochs)
    return Cost(kind, intervals, epochs, requests, sent, round(usd, 2) if priced else None)


def _keys(intervals: int) -> list[str]:
    """Return a key of each interval."""
    found: dict[int, str] = {}
    n = 0
    while len(found) < intervals:
        found.setdefault(hash_key(encode_key(f"key {n}")) * intervals >> 64, f"key {n}")
        n += 1
    return list(found.values())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _table(costs: list[Cost]) -> Table:
    table = Table(title=f"An epoch in which every key interval has a record; {_TASKS} tasks")
    for name in ("key intervals", "checkpoint", "requests", "bytes", "USD a day"):
        table.add_column(name, justify="left" if name in ("checkpoint", "requests") else "right")
    for cost in costs:
        requests = ", ".join(f"{n:,.1f} {name}" for name, n in cost.requests.items())
        usd = "" if cost.usd_a_day is None else f"{cost.usd_a_day:,.2f}"
        table.add_row(f"{cost.intervals:,}", cost.kind, requests, f"{cost.sent:,}", usd)
    return table


if __name__ == "__main__":
    main()
