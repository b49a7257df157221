"""How long a run in real time stands still for a rest: for a split of an interval, a savepoint.

Rows come at a set rate, and each is counted by its key. In each round one interval is split, then a
savepoint is made, a while after the other. Shown is what the run says of its pause, by part; and
the longest time in which no row was worked on around it, by the clocks of user code, which is what
an output is late by. Between rests that is a few hundredths of a second.

Run it with ``python -m benchmarks.rest_pause``; three rounds take about a minute.
"""

from __future__ import annotations

import argparse
import array
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.realtime import realtime_session

_KEYS = 10_000
#: Between two rests.
_APART_S = 5.0


class Row(msgspec.Struct):
    """A row."""

    key: int


class Steady(mr.sources.Injector):
    """Rows that come at a rate, by the clock, in two processes.

    Args:
        rate: Rows a second of each.
        since_s: When the first came, in Unix time.
    """

    schema = "key long, at long"

    def __init__(self, rate: float, since_s: float) -> None:
        self._rate = rate
        self._since_s = since_s

    def processes(self) -> list[str]:
        """Return two names."""
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return how many rows there are by now."""
        return mr.sources.Advance(int((time.time() - self._since_s) * self._rate))

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[int, int]]:
        """Yield rows."""
        for n in range(start or 0, end):
            at_us = int((self._since_s + n / self._rate) * 1e6)
            yield n * 7919 % _KEYS, at_us


class Noting(mr.Computation):
    """Counts by key, and notes when.

    Args:
        folder: Where each process has a file of its times, in nanoseconds.
    """

    inputs = {"rows": mr.by("key")}
    count = mr.ValueState(int)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process_record(self, record: mr.Record) -> None:
        """Count, and note the time."""
        self.count.set(self.count.get(0) + 1)
        with (self._folder / f"{os.getpid()}").open("ab") as times:
            times.write(time.time_ns().to_bytes(8, "little"))


@dataclass(frozen=True)
class Rest:
    """One rest.

    Attributes:
        what: Was asked for.
        said: How long the run says that it stood still, in words.
        gap_s: The longest time without a row around it.
        usual_s: The same in the seconds before.
    """

    what: str
    said: str
    gap_s: float
    usual_s: float


def main() -> None:
    """Run all rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500, help="rows a second, of two processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = describe()
    spark = realtime_session("rest pause", tasks=given.tasks, levels=1)
    with tempfile.TemporaryDirectory(prefix="millrace-rest-") as folder:
        rests = _run(spark, Path(folder), given)
    spark.stop()
    table = Table("asked for", "gap, s", "before, s", "the run says")
    for one in rests:
        table.add_row(one.what, f"{one.gap_s:.2f}", f"{one.usual_s:.2f}", one.said)
    Console(width=200).print(table)
    for what in dict.fromkeys(one.what for one in rests):
        gaps = [one.gap_s for one in rests if one.what == what]
        print(f"{what}: no row for {statistics.median(gaps):.2f} s, median of {len(gaps)}")
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"rest-pause-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "rest_pause", "machine": machine, "rate": given.rate}
    results["rests"] = [*map(asdict, rests)]
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _run(spark: Any, folder: Path, given: argparse.Namespace) -> list[Rest]:
    times = folder / "times"
    times.mkdir()
    p = mr.Pipeline("rest pause")
    source = Steady(given.rate / 2, time.time())
    policy = mr.BoundedDelay("1 s")
    p.inject("rows", source, timestamp="at", low_watermark=policy, format=Row)
    p.add(Noting(times), name="Noting")
    run = p.start(
        spark,
        checkpoint=str(folder / "checkpoint"),
        tasks=given.tasks,
        intervals=8,
        realtime=True,
        progress=False,
    )
    time.sleep(2 * _APART_S)  # until all has begun, and caches are warm

    def rested(what: str, ask: Callable[[], str]) -> Rest:
        time.sleep(_APART_S)
        began_s = time.time()
        said = ask()
        time.sleep(1.0)
        return Rest(
            what,
            said,
            longest_gap(times, began_s, time.time()),
            longest_gap(times, began_s - _APART_S / 2, began_s),
        )

    rests = []
    for n in range(given.rounds):
        split = [mr.ops.Split(n)]
        rests.append(rested("a split", lambda split=split: run._run.remap("Noting", split).pause))
        rests.append(rested("a savepoint", lambda n=n: run._run.keep(f"round-{n}").pause))
    run.stop()
    kept = mr.ops.open_checkpoint(folder / "checkpoint")
    assert len(kept["Noting"].intervals) == 8 + given.rounds, "not divided"
    counted = sum(one.cells["count"] for one in kept["Noting"].scan())
    assert counted == kept.overview.streams["rows"].injected > 0, "rows lost, or counted twice"
    return rests


def longest_gap(times: Path, since_s: float, until_s: float) -> float:
    """Return the longest time without a row, in seconds."""
    found = array.array("Q")
    for file in times.iterdir():
        data = file.read_bytes()
        found.frombytes(data[: len(data) // 8 * 8])
    within = sorted(ns / 1e9 for ns in found if since_s * 1e9 <= ns <= until_s * 1e9)
    return max(after - before for before, after in pairwise([since_s, *within, until_s]))


if __name__ == "__main__":
    main()
