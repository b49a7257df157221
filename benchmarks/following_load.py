"""A load that triples and falls again, and tasks that follow it: how far behind, with how many.

Rows come by the clock, in two processes, at a rate that triples after a while and falls again. User
code takes two milliseconds of each, without using the processor, as a call to a service does: one
task does 500 rows a second at the most. The same is run with one task, with as many as the largest
load needs, and with ``tasks=(1, 4)``. Told is how long rows wait, by when user code has them, and
how many task seconds it took; at the end each row must be counted once.

Run it with ``python -m benchmarks.following_load``; it takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks import result
from benchmarks.rest_pause import Row
from benchmarks.spark_session import build_session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEYS = 1_000
_TAKES_S = 0.002
#: Rows a second, and for how many seconds.
_PHASES = ((300, 40), (900, 100), (300, 100))
_LEAST, _MOST = 1, 4
#: Both before and after a change, of two levels, and one more.
_SLOTS = 2 * (_MOST + _MOST) + 1


class Tripling(mr.sources.Injector):
    """Rows that come by the clock, in two processes, at the rates of the phases.

    Args:
        since_s: When the first came, in Unix time.
    """

    schema = "key long, at long"

    def __init__(self, since_s: float) -> None:
        seconds = [0, *np.cumsum([seconds for _, seconds in _PHASES])]
        self._at_s = [since_s + second for second in seconds]
        self._rows = [0, *np.cumsum([rate // 2 * seconds for rate, seconds in _PHASES])]

    def processes(self) -> list[str]:
        """Return two names."""
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return how many rows there are by now."""
        return mr.sources.Advance(int(np.interp(time.time(), self._at_s, self._rows)))

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[int, int]]:
        """Yield rows, each with the time when it came."""
        numbers = np.arange(start or 0, end)
        for n, at_s in zip(numbers, np.interp(numbers, self._rows, self._at_s), strict=True):
            yield int(n) * 7919 % _KEYS, int(at_s * 1e6)


class Waiting(mr.Computation):
    """Counts by key, waits as for an answer, and notes when a row came and when it was done.

    Args:
        folder: Where each process has a file of both, in microseconds.
    """

    inputs = {"rows": mr.by("key")}
    count = mr.ValueState(int)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process_record(self, record: mr.Record) -> None:
        """Wait, count, and note the times."""
        time.sleep(_TAKES_S)
        self.count.set(self.count.get(0) + 1)
        times = record.timestamp, time.time_ns() // 1000
        with (self._folder / f"{os.getpid()}").open("ab") as file:
            file.write(b"".join(one.to_bytes(8, "little") for one in times))


@dataclass(frozen=True)
class Moment:
    """What was seen at a time.

    Attributes:
        second: Since the first row.
        rate: Rows that came in the second before.
        tasks: Tasks a level.
        waited_s: How long rows that came then waited, median; None if none came.
    """

    second: int
    rate: int
    tasks: int
    waited_s: float | None


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        tasks: As they were given.
        p50_s: How long rows waited, median.
        p99_s: The same of the 99th percentile.
        caught_up_s: How long after the load fell no row waited for more than a second.
        task_seconds: Seconds that level tasks were there.
        moments: Second by second.
    """

    tasks: str
    p50_s: float
    p99_s: float
    caught_up_s: float
    task_seconds: int
    moments: list[Moment]


def main() -> None:
    """Run all cases, print the table, write the results and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    spark = build_session(
        "following load", _SLOTS, settings=mr.spark.realtime_settings(tasks=_LEAST)
    )
    spark.sparkContext.setLogLevel("OFF")
    cases = []
    for tasks in (_LEAST, _MOST, (_LEAST, _MOST)):
        with tempfile.TemporaryDirectory(prefix="millrace-load-") as folder:
            cases.append(_run(spark, Path(folder), tasks))
    spark.stop()
    table = Table("tasks", "p50, s", "p99, s", "caught up after, s", "task seconds")
    for one in cases:
        waited = (f"{s:.2f}" for s in (one.p50_s, one.p99_s, one.caught_up_s))
        table.add_row(one.tasks, *waited, f"{one.task_seconds}")
    Console(width=120).print(table)
    out = result.write("following_load", out=given.out, phases=_PHASES, cases=[*map(asdict, cases)])
    _picture(cases).savefig(out.with_suffix(".png"), dpi=110)


def _run(spark: SparkSession, folder: Path, tasks: int | tuple[int, int]) -> Case:
    times = folder / "times"
    times.mkdir()
    since_s = time.time() + 20  # until all tasks are there
    p = mr.Pipeline("following load")
    policy = mr.BoundedDelay("1 s")
    p.inject("rows", Tripling(since_s), timestamp="at", low_watermark=policy, format=Row)
    p.add(Waiting(times), name="Waiting")
    checkpoint = str(folder / "checkpoint")
    run = p.start(
        spark, checkpoint=checkpoint, realtime=True, tasks=tasks, intervals=16, progress=False
    )
    seconds, had = sum(seconds for _, seconds in _PHASES), list[int]()
    time.sleep(max(0.0, since_s - time.time()))
    for second in range(1, seconds + 1):
        time.sleep(max(0.0, since_s + second - time.time()))
        had.append(run.status().tasks)
    assert run.process_available("600 s")
    run.stop()
    kept = mr.ops.open_checkpoint(checkpoint)
    counted = sum(one.cells["count"] for one in kept["Waiting"].scan())
    rows = sum(rate // 2 * 2 * seconds for rate, seconds in _PHASES)
    assert counted == kept.overview.streams["rows"].injected == rows, "lost, or counted twice"
    came, done = _times(times).T / 1e6
    waited, second = done - came, (came - since_s).astype(int)
    moments = []
    for n, of in enumerate(had):
        here = waited[second == n]
        moments.append(Moment(n + 1, len(here), of, float(np.median(here)) if len(here) else None))
    fell = _PHASES[0][1] + _PHASES[1][1]
    late = second[(waited > 1.0) & (second >= fell)]
    return Case(
        tasks=str(tasks),
        p50_s=float(np.median(waited)),
        p99_s=float(np.quantile(waited, 0.99)),
        caught_up_s=float(late.max() + 1 - fell) if len(late) else 0.0,
        task_seconds=sum(had),
        moments=moments,
    )


def _times(folder: Path) -> Any:
    """Return when rows came and were done, in microseconds; of a row done twice, the last."""
    found = np.concatenate([np.fromfile(file, dtype="<i8") for file in folder.iterdir()])
    return found.reshape(-1, 2)


def _picture(cases: list[Case]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    rate, waited, tasks = figure.subplots(3, sharex=True)
    seconds = [one.second for one in cases[0].moments]
    rate.plot(seconds, [one.rate for one in cases[0].moments], color="black")
    rate.set_ylabel("rows a second")
    for case in cases:
        waits = [np.nan if one.waited_s is None else one.waited_s for one in case.moments]
        waited.plot(seconds, waits, label=f"tasks={case.tasks}")
        tasks.step(seconds, [one.tasks for one in case.moments], where="post")
    waited.set_yscale("log")
    waited.set_ylabel("a row waits, s")
    waited.legend(loc="upper left")
    tasks.set_ylabel("tasks")
    tasks.set_yticks(range(_LEAST, _MOST + 1))
    tasks.set_xlabel("seconds")
    for axes in (rate, tasks):
        axes.set_ylim(bottom=0)
    figure.suptitle(f"A load that triples; a row takes user code {_TAKES_S * 1000:.0f} ms")
    return figure


if __name__ == "__main__":
    main()
