"""What expiry costs by how many cells are kept: an epoch's part of it, when none, some and many go.

One key interval on LMDB, as a worker has it: N entries of maps with ``expires="1 h"``, a hundred a
key, each of an event time of its own. So many of them are written by records, to say what that
costs; all of them are loaded into the cache as rows, the same that records would have written,
which is checked of the first. Then the low watermark moves so that none of them
expires, 1,000, and 100,000, one bundle after another. Expiry is a range scan of timers; its cost is
to follow from what expires, and not from what is kept, and nothing is to stop for all of it.

Run it with ``python -m benchmarks.expiry``. It needs no Spark; ten million take about four minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
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
from benchmarks.arguments import integers
from benchmarks.machine import describe
from benchmarks.one_interval import OneInterval, bundles
from millrace.kernel import families, row_codec, timer_families
from millrace.kernel.bundle import NO_RECORDS
from millrace.model.keys import encode_key, hash_key

_KEPT = [100_000, 1_000_000, 10_000_000]
_A_KEY = 100
#: Cells that records write, and rows that are loaded at once.
_WRITTEN = 100_000
_LOADED = 200_000
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
    parser.add_argument("--cells", type=integers, default=_KEPT, help="how many, one or several")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [_measure(kept) for kept in arguments.cells]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"expiry-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "expiry", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(kept: int) -> Cost:
    p = mr.Pipeline("expiry")
    p.inject("events")
    p.add(Recent)
    written = min(kept, _WRITTEN)
    with tempfile.TemporaryDirectory(prefix="millrace-expiry-") as directory:
        interval = OneInterval(p, f"{directory}/written")
        numbers = np.random.default_rng(kept).permutation(written)
        keys, times = (numbers // _A_KEY).tolist(), (numbers + 1).tolist()
        ran = [interval.run(records, 0) for records in bundles(keys, times, times)]
        first = ran[0][0]
        assert len(ran) == 1, "what is checked is one bundle"
        made = [row for part in _rows(written) for row in part]
        assert made == sorted(first.mutations.items()), "rows that records would not have written"
        interval = OneInterval(p, f"{directory}/loaded")
        interval.load(_rows(kept), first)
        spent, size = ran[0][1], interval.size_bytes
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
        spent / written * 1e6,
        size / kept,
        {expiring: statistics.median(found) for expiring, found in took.items()},
        {expiring: max(found) for expiring, found in took.items()},
    )


def _rows(kept: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the rows of entries and of the timers by which they expire, ascending.

    Entry n + 1 of key n // 100 is of that time, as :func:`_measure` writes them.
    """
    keys = [(encode_key(n), hash_key(encode_key(n))) for n in range(-(-kept // _A_KEY))]
    order = sorted(range(len(keys)), key=lambda n: (keys[n][1], keys[n][0]))
    key_rows = [row_codec.key_row(hashed.to_bytes(8, "big"), key) for key, hashed in keys]
    coder = Recent.seen.coder
    cell = row_codec.BYTE[0]

    def of_key(n: int) -> list[int]:
        return sorted(range(n * _A_KEY, min((n + 1) * _A_KEY, kept)), key=_entry)

    def entries() -> Iterator[tuple[bytes, bytes]]:
        for n in order:
            prefix = families.map_prefix(key_rows[n], cell)
            for number in of_key(n):
                yield prefix + _entry(number), coder.encode(number + 1)

    def timers() -> Iterator[tuple[bytes, bytes]]:
        for number in range(kept):
            n = number // _A_KEY
            tag = timer_families.expiry_tag(cell, _entry(number))
            named = timer_families.timer_named(key_rows[n], 0, tag)
            row, _ = timer_families.timer_rows(named, key_rows[n], 0, _setting(number))
            yield row, timer_families.pack_timer(keys[n][0], tag, None)

    def timers_by_tag() -> Iterator[tuple[bytes, bytes]]:
        for n in order:
            for number in of_key(n):
                tag = timer_families.expiry_tag(cell, _entry(number))
                setting = timer_families.pack_setting(_setting(number))
                yield timer_families.timer_named(key_rows[n], 0, tag), setting

    everything = itertools.chain(entries(), timers(), timers_by_tag())
    while part := list(itertools.islice(everything, _LOADED)):
        yield part


def _entry(number: int) -> bytes:
    return encode_key(number + 1)


def _setting(number: int) -> timer_families.Setting:
    return number + 1 + mr.HOUR, None, 100


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
