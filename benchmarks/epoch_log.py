"""What an epoch costs around the work itself, by the number of key intervals that do nothing.

A pipeline of one computation, ten keys of which get a record in every epoch, each in an interval of
its own. All other intervals have had a commit before, and have a timer pending in a far future. The
driver is the real one (publish, begin, complete), and so are its tasks (read, decode the manifest,
GetWork, user code, CommitWork, report), over a store in memory: what is measured is the protocol.

By epoch: bytes of manifest and completion in the epoch log, bytes of the manifest that go to tasks
(one for each, as a stage's function is sent to each), CPU of the driver, CPU of all tasks together;
medians over the epochs, and means over all of them, among which are those whose completion says
where every interval stands. The first epochs, in which processes read the log, are left out.

Run it with ``python -m benchmarks.epoch_log``. It needs no Spark and takes a minute.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from millrace.epochlog.entries import Completion, Manifest, decode_manifest, encode_entry
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.kernel.results import Counters, IntervalResult
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.epoch.host import LevelStage
from millrace.runtime.exchange import sent_to
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.feed import Feed, Read
from millrace.watermark.report import ONLY, Report

_INTERVALS = (16, 1_024, 16_384, 131_072)
_ACTIVE = 10
_TASKS = 4
_FAR_US = 1 << 60


class Count(mr.Computation):
    """Counts the records of a key."""

    inputs = {"events": mr.by(str)}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it."""
        self.count.set(self.count.get(0) + 1)


@dataclass(frozen=True)
class Spent:
    """What one epoch took: bytes, and microseconds of CPU."""

    manifest: int
    completion: int
    to_tasks: int
    driver_us: float
    tasks_us: float


@dataclass(frozen=True)
class Cost:
    """Medians and means of epochs at one number of intervals."""

    intervals: int
    epochs: int
    median: Spent
    mean: Spent


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=_numbers, default=_INTERVALS)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [_measure(count, arguments.epochs) for count in arguments.intervals]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"epoch-log-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "epoch_log", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


class _Run:
    """A run in this process, whose tasks decode the manifest as those of other processes do."""

    def __init__(self, intervals: int) -> None:
        p = mr.Pipeline("epoch log")
        p.inject("events", format=str)
        p.add(Count)
        topology, state = p.build(), MemoryHardState()
        self.run_log = RunLog(topology, state, intervals=intervals)
        self._driver = EpochDriver(topology, self.run_log, WatermarkPublisher({}))
        execution = Execution(topology, state, MemoryCaches())
        self._runtime = WorkerProcess(topology, tasks=_TASKS, execution=execution)
        self._keys = dict(_keys(intervals))
        self._idle = [n for n in range(intervals) if n not in self._keys]
        self._tasks_s, self._shipped = 0.0, 0

    def epoch(self, *, first: bool = False) -> Spent:
        """Run the next one."""
        started = time.process_time()
        number = self.run_log.completed + 1
        turn = self._driver.run(
            number, lambda manifest: self._stages(manifest, first=first), wall_time_us=number
        )
        spent = time.process_time() - started - self._tasks_s
        assert turn is not None, "the epoch after the last one is not complete"
        logged: tuple[Manifest, Completion] = (turn.manifest, turn.completion)
        manifest, completion = (len(encode_entry(entry)) for entry in logged)
        return Spent(manifest, completion, self._shipped, spent * 1e6, self._tasks_s * 1e6)

    def _stages(self, manifest: Manifest, *, first: bool) -> tuple[TaskReport, float]:
        started = time.process_time()
        reads = [Read(key, manifest.epoch, ONLY) for key in self._keys.values()]
        sent = list(Feed("events", reads, {}).rows(Task(self._runtime, manifest, 0)))
        left = list[pa.RecordBatch]()
        data = encode_entry(manifest)
        for task in range(_TASKS):
            mine = Task(self._runtime, decode_manifest(data), task)
            left += LevelStage(1).run(mine, sent_to(task, sent))
        self._shipped = _TASKS * len(data)
        report = TaskReport.together(reports_in(left))
        if first:
            report.results.extend(map(_committed, self._idle))
        self._tasks_s = time.process_time() - started
        return report, 0.0


def _committed(interval: int) -> IntervalResult:
    """Return the result of an interval that is idle from then on."""
    report = Report(low_watermark_timer_us=_FAR_US + interval)
    chain = interval * 2_654_435_761
    return IntervalResult("Count", interval, 1, report, Counters(), chain=chain)


def _keys(intervals: int) -> Iterator[tuple[int, str]]:
    """Yield ten intervals, and a key of each."""
    found: set[int] = set()
    n = 0
    while len(found) < min(_ACTIVE, intervals):
        key = f"key {n}"
        interval = hash_key(encode_key(key)) * intervals >> 64
        if interval not in found:
            found.add(interval)
            yield interval, key
        n += 1


def _measure(intervals: int, epochs: int) -> Cost:
    run = _Run(intervals)
    run.epoch(first=True)
    run.epoch()
    spent = [run.epoch() for _ in range(epochs)]
    return Cost(intervals, epochs, _of(statistics.median, spent), _of(statistics.fmean, spent))


def _of(what: object, spent: list[Spent]) -> Spent:
    columns = zip(*(asdict(one).values() for one in spent), strict=True)
    return Spent(*(round(what(column), 1) for column in columns))  # type: ignore[operator]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _table(costs: list[Cost]) -> Table:
    table = Table(title=f"An epoch in which {_ACTIVE} key intervals do something; {_TASKS} tasks")
    for name in ("key intervals", "", "manifest B", "completion B", "to tasks B"):
        table.add_column(name, justify="right")
    table.add_column("driver CPU us", justify="right")
    table.add_column("tasks CPU us", justify="right")
    for cost in costs:
        for name, spent in (("median", cost.median), ("mean", cost.mean)):
            table.add_row(
                f"{cost.intervals:,}", name, *(f"{value:,.0f}" for value in asdict(spent).values())
            )
    return table


if __name__ == "__main__":
    main()
