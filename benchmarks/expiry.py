"""What expiry costs by how many cells are kept: an epoch's part of it, when none, some and many go.

One key interval on LMDB, as a worker has it: N entries of maps with ``expires="1 h"``, a hundred a
key, each written at an event time of its own. Then the low watermark moves so that none of them
expires, 1,000, and 100,000, one bundle after another. Expiry is a range scan of timers; its cost is
to follow from what expires, and not from what is kept, and nothing is to stop for all of it.

Run it with ``python -m benchmarks.expiry``. It needs no Spark and takes about ten minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.arguments import integers
from benchmarks.machine import describe
from benchmarks.one_interval import OneInterval, bundles
from millrace.windmill.arrivals import NO_RECORDS

_KEPT = [100_000, 1_000_000, 10_000_000]
_A_KEY = 100
_EXPIRING = {0: 20, 1_000: 20, 100_000: 5}


class Recent(mr.Computation):
    """Keeps what it has seen for an hour."""

    inputs = {"events": mr.by_key()}
    seen = mr.MapState(int, expires="1 h")

    def process_record(self, record: mr.Record) -> None:
        """Write an entry, named by the value."""
        self.seen[record.value] = record.timestamp


@dataclass(frozen=True)
class Cost:
    """Medians for one number of cells that are kept.

    Attributes:
        kept: How many cells there were to begin with.
        write_us: To write one, its durable form in the cache included.
        bytes_a_cell: Of the cache.
        bundle_ms: How many expire in a bundle -> what the bundle takes.
        longest_ms: Likewise the longest.
    """

    kept: int
    write_us: float
    bytes_a_cell: float
    bundle_ms: dict[int, float]
    longest_ms: dict[int, float]


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=integers, default=_KEPT)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [_measure(kept) for kept in arguments.kept]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"expiry-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "expiry", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(kept: int) -> Cost:
    p = mr.Pipeline("expiry")
    p.inject("events")
    p.add(Recent)
    numbers = np.random.default_rng(kept).permutation(kept)
    with tempfile.TemporaryDirectory(prefix="millrace-expiry-") as directory:
        interval = OneInterval(p, directory)
        keys, times = (numbers // _A_KEY).tolist(), (numbers + 1).tolist()
        spent = sum(interval.run(records, 0)[1] for records in bundles(keys, times, times))
        size = interval.size_bytes
        took: dict[int, list[float]] = {}
        gone = 0
        for expiring, rounds in _EXPIRING.items():
            for _ in range(rounds):
                if gone + expiring > kept // 2 and expiring:
                    break
                gone += expiring
                outcome, seconds = interval.run(NO_RECORDS, mr.HOUR + gone)
                removed = sum(value is None for value in outcome.mutations.values())
                assert removed >= expiring, f"{removed} rows went, of {expiring} cells"
                assert expiring or not removed, f"{removed} rows went, and nothing was due"
                took.setdefault(expiring, []).append(seconds * 1e3)
    return Cost(
        kept,
        spent / kept * 1e6,
        size / kept,
        {expiring: statistics.median(found) for expiring, found in took.items()},
        {expiring: max(found) for expiring, found in took.items()},
    )


def _table(costs: list[Cost]) -> Table:
    table = Table(title="A bundle in which cells expire, milliseconds: median, longest")
    for name in ("kept", "to write one, us", "bytes a cell"):
        table.add_column(name, justify="right")
    for expiring in _EXPIRING:
        table.add_column(f"{expiring:,} expire", justify="right")
    for cost in costs:
        times = [
            f"{cost.bundle_ms[n]:,.2f}, {cost.longest_ms[n]:,.2f}" if n in cost.bundle_ms else "-"
            for n in _EXPIRING
        ]
        table.add_row(f"{cost.kept:,}", f"{cost.write_us:.1f}", f"{cost.bytes_a_cell:,.0f}", *times)
    return table


if __name__ == "__main__":
    main()
