"""What the authority costs by the number of key intervals: a round of reports, and a lookup.

A round is what a completed epoch hands over: every interval's report, or only those of some
intervals. A lookup is the oldest work of a computation, and when its next wall-clock timer is due.
The paper's authority "can scale to 500,000 key intervals with no loss in performance" (MillWheel
7.2), so each case runs at 1,000, 50,000 and 500,000, and the cost of a report is to stay the same.

Times are CPU time, of one thread that never waits; on an idle machine they are the wall clock's.

Run it with ``python -m benchmarks.authority``. It needs no Spark and takes half a minute.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import statistics
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from millrace.compile.topology import Topology
from millrace.watermark.authority import Authority
from millrace.watermark.report import NOTHING_PENDING, Report

_INTERVALS = (1_000, 50_000, 500_000)
_FEW = 1_000


@dataclass(frozen=True)
class Cost:
    """Medians for one number of intervals.

    Attributes:
        intervals: Key intervals of the one computation.
        round_us: A round in which every interval reports.
        few_us: A round in which 1,000 of them do.
        one_us: A round in which one does.
        lookup_us: Oldest work and next wall-clock timer.
        bytes_an_interval: Memory of the authority, the reports themselves included.
    """

    intervals: int
    round_us: float
    few_us: float
    one_us: float
    lookup_us: float
    bytes_an_interval: float


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=_numbers, default=_INTERVALS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [_measure(count, arguments.rounds) for count in arguments.intervals]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"authority-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "authority", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(intervals: int, rounds: int) -> Cost:
    random.seed(intervals)
    tracemalloc.start()
    authority = Authority(_topology())
    authority.cover("Count", range(intervals))
    authority.bulletins["Count"].restore(dict.fromkeys(range(intervals), NOTHING_PENDING))
    clock = _Rounds(authority, intervals)
    clock.play(intervals)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    whole = [clock.play(intervals) for _ in range(rounds)]
    few = [clock.play(min(_FEW, intervals)) for _ in range(rounds * 5)]
    one = [clock.play(1) for _ in range(rounds * 50)]
    return Cost(
        intervals,
        statistics.median(whole),
        statistics.median(few),
        statistics.median(one),
        _lookup(authority),
        held / intervals,
    )


class _Rounds:
    """Plays rounds of reports with the low watermark moving on."""

    def __init__(self, authority: Authority, intervals: int) -> None:
        self._authority = authority
        self._intervals = intervals
        self._epoch = 0

    def play(self, reporting: int) -> float:
        """Return the microseconds of one round in which so many intervals report."""
        self._epoch += 1
        at_us = self._epoch * mr.SECOND
        who = sorted(random.sample(range(self._intervals), reporting))
        reports = {n: Report(at_us + n % 1_000, at_us + 5_000, at_us + n % 7) for n in who}
        started = time.process_time()
        after = self._authority.advance({"events": at_us}, {"Count": reports}, (1, self._epoch))
        spent = time.process_time() - started
        if reporting == self._intervals:
            assert after.outputs["Count"] == min(
                report.oldest_work_us() for report in reports.values()
            )
        return spent * 1e6


def _lookup(authority: Authority) -> float:
    bulletin = authority.bulletins["Count"]
    times = 10_000
    started = time.process_time()
    for _ in range(times):
        _ = bulletin.oldest_work_us, authority.next_wall_timer_us()
    return (time.process_time() - started) / times * 1e6


def _topology() -> Topology:
    class Count(mr.Computation):
        inputs = {"events": mr.by_key()}

        def process_record(self, record: mr.Record) -> None:
            """Do nothing."""

    p = mr.Pipeline("authority")
    p.inject("events")
    p.add(Count)
    return p.build()


def _table(costs: list[Cost]) -> Table:
    table = Table(title="Authority, microseconds")
    for name in (
        "intervals", "all report", "a report", "1,000 report", "one reports", "lookup", "bytes",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.intervals:,}",
            f"{cost.round_us:,.0f}",
            f"{cost.round_us / cost.intervals:.2f}",
            f"{cost.few_us:,.0f}",
            f"{cost.one_us:.0f}",
            f"{cost.lookup_us:.2f}",
            f"{cost.bytes_an_interval:.0f}",
        )
    return table


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
