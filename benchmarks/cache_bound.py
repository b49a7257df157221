"""CPU and reads by how much of the state may be cached: MillWheel's figure 16.

What ``start(cache_limit=)`` limits: the bytes of all caches, which are files, one a key interval.
After each epoch those that are over it are evicted, by Millrace's own thread, the interval first
that longest had no commit. An interval whose cache is gone is read again, from its newest snapshot
and the commits after it, before its records are worked on.

Each epoch has records for some intervals, drawn evenly, so the share of hits is that of the state
which is cached. One process, local disk, the kernel's worker, log, cache and snapshot thread; no
Spark.

Run it with ``python -m benchmarks.cache_bound``. It takes a minute.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.blobs import BlobWorker
from benchmarks.machine import describe
from millrace.model.keys import encode_key, hash_key
from millrace.store import SnapshotPolicy
from millrace.watermark.intervals import IntervalMap

#: Falling, from no limit at all: one that rises would find few caches, and fill them first.
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class Case:
    """What a limit comes to.

    Attributes:
        share: Of all caches' bytes, which they may take.
        cache_mb: What they take at the end.
        cpu_us: CPU a record, all threads.
        read_bytes: Read from snapshots and commits a record.
        hits: Share of the intervals that were worked on whose cache was there.
    """

    share: float
    cache_mb: float
    cpu_us: float
    read_bytes: float
    hits: float


class Bounded:
    """A worker of some state, whose caches are limited.

    Args:
        home: An empty folder.
        keys: How many have state.
        value_bytes: Size of each.
        intervals: Key intervals, a power of two.
    """

    def __init__(self, home: Path, *, keys: int, value_bytes: int, intervals: int) -> None:
        self._intervals = intervals
        self._worker = BlobWorker(
            home, intervals=intervals, value_bytes=value_bytes, policy=SnapshotPolicy()
        )
        hashes = np.array([hash_key(encode_key(key)) for key in range(keys)], dtype=np.uint64)
        places = IntervalMap.uniform(intervals).locate(hashes)
        self._keys = [np.flatnonzero(places == one) for one in range(intervals)]
        self._generator = np.random.default_rng(16)
        for one in range(intervals):
            self._worker.epoch(self._keys[one])
        self._all_bytes = 0

    def run(self, share: float, *, epochs: int, records: int, touched: int) -> Case:
        """Run so many epochs with so many records, each for some intervals, under a limit."""
        if share < 1:
            self._worker.limit(round(share * self._all_bytes))
        read = hits = 0
        began_s = time.process_time()
        for _ in range(epochs):
            chosen = self._generator.choice(self._intervals, touched, replace=False)
            for one in map(int, chosen):
                repair = self._worker.bring(one)
                hits += not repair.rebuilt
                read += repair.bytes_read
            theirs = np.concatenate([self._keys[one] for one in chosen])
            self._worker.epoch(self._generator.choice(theirs, records))
            self._worker.settle()
        cpu_s = time.process_time() - began_s
        if share == 1:  # now that pages of rows that were replaced are in the files, too
            self._all_bytes = self._worker.caches_bytes()
        total = epochs * records
        return Case(
            share,
            self._worker.caches_bytes() / 1e6,
            cpu_s / total * 1e6,
            read / total,
            hits / (epochs * touched),
        )


def main() -> None:
    """Measure every limit, print the table, write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache_bound",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--intervals", type=int, default=32)
    parser.add_argument("--touched", type=int, default=4, help="intervals an epoch")
    parser.add_argument("--records", type=int, default=2_000, help="an epoch")
    parser.add_argument("--epochs", type=int, default=60, help="under each limit")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    arguments = parser.parse_args()
    machine = describe()
    home = Path(tempfile.mkdtemp(prefix="millrace-cache-bound-"))
    try:
        bounded = Bounded(
            home,
            keys=arguments.keys,
            value_bytes=arguments.value_bytes,
            intervals=arguments.intervals,
        )
        cases = [
            bounded.run(
                share,
                epochs=arguments.epochs,
                records=arguments.records,
                touched=arguments.touched,
            )
            for share in _SHARES
        ]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    table = Table(title="What is read and computed, by what may be cached")
    for name in ("share", "cache, MB", "hits", "CPU us a record", "read, bytes a record"):
        table.add_column(name, justify="right")
    for case in cases:
        table.add_row(
            f"{case.share:.0%}",
            f"{case.cache_mb:.0f}",
            f"{case.hits:.0%}",
            f"{case.cpu_us:.1f}",
            f"{case.read_bytes:,.0f}",
        )
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"cache-bound-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "cache_bound", "machine": machine, "cases": [*map(asdict, cases)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
