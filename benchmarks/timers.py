"""What timers cost by how many are pending: to set them, and to fire some of them.

One key interval on LMDB, as a worker has it: N keys with one low-watermark timer each, set in
bundles of 100,000. Then the low watermark moves so that 1,000 of them fire at a time, and then so
that none does. Pending timers lie in time order, so what fires is a range scan from the start; its
cost is to follow from how many fire, and not from how many wait.

Run it with ``python -m benchmarks.timers``. It needs no Spark and takes about three minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.one_interval import OneInterval, bundles
from millrace.kernel.bundle import NO_RECORDS, KeyedRecords

_PENDING = (10_000, 100_000, 1_000_000, 4_000_000)
_FIRING = 1_000


class Remind(mr.Computation):
    """Sets a timer for every key; the value says when."""

    inputs = {"events": mr.by_key()}
    outputs = {"reminders": int}

    def process_record(self, record: mr.Record) -> None:
        """Set the key's timer."""
        self.set_timer("remind", at=record.value)

    def process_timer(self, timer: mr.Timer) -> None:
        """Say so."""
        self.produce("reminders", timer.at)


@dataclass(frozen=True)
class Cost:
    """Medians for one number of pending timers.

    Attributes:
        pending: How many timers wait.
        set_us: To set one, its durable form in the cache included.
        fire_us: To fire one, in bundles of 1,000.
        idle_us: A bundle in which none is due.
    """

    pending: int
    set_us: float
    fire_us: float
    idle_us: float


def _pipeline() -> mr.Pipeline:
    p = mr.Pipeline("timers")
    p.inject("events")
    p.add(Remind)
    p.sink("reminders", print)
    return p


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=_numbers, default=_PENDING)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [_measure(pending) for pending in arguments.pending]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"timers-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "timers", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(pending: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="millrace-timers-") as directory:
        interval = OneInterval(_pipeline(), directory)
        spent = sum(interval.run(records, 0)[1] for records in _bundles(pending))
        firing, idle = [], []
        for n in range(1, min(20, pending // _FIRING) + 1):
            outcome, seconds = interval.run(NO_RECORDS, n * _FIRING)
            assert outcome.counters.timers == _FIRING
            assert outcome.report.low_watermark_timer_us > n * _FIRING
            firing.append(seconds)
            outcome, seconds = interval.run(NO_RECORDS, n * _FIRING)
            assert outcome.counters.timers == 0
            idle.append(seconds)
    return Cost(
        pending,
        spent / pending * 1e6,
        statistics.median(firing) / _FIRING * 1e6,
        statistics.median(idle) * 1e6,
    )


def _bundles(pending: int) -> Iterator[KeyedRecords]:
    """Yield records that set timers for 1, 2, ... microseconds, in no order, one a key."""
    times = (np.random.default_rng(pending).permutation(pending) + 1).tolist()
    yield from bundles(times, times, [0] * pending)


def _table(costs: list[Cost]) -> Table:
    table = Table(title="Timers, microseconds")
    for name in ("pending", "to set one", "to fire one of 1,000", "a bundle, none due"):
        table.add_column(name, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.pending:,}", f"{cost.set_us:.1f}", f"{cost.fire_us:.1f}", f"{cost.idle_us:,.0f}"
        )
    return table


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
