"""What it costs to measure the load of key intervals, beside the work that is measured.

Epochs go through the kernel's worker, see ``kernel.py``: a running count key by key, and windows
kept as columns; in epochs of 100,000 records and, for the bundles of live tasks, of 100. The share
is CPU time in sampling keys, sizing state and sizing commits, of all that the worker spent. Both
are of one run, so a busy machine does little to it. What a task does besides (Spark, the wire,
decoding) is not in it, and makes the share smaller.

Run it with ``python -m benchmarks.load_cost``. It needs no Spark and takes a minute.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.dedup import Count
from benchmarks.kernel import STREAM, Kernel, batches
from millrace.store.lmdb_view import LmdbView
from millrace.windmill.load import KeySampler, Load


@dataclass(frozen=True)
class Cost:
    """One case.

    Attributes:
        path: How keys are worked on.
        keys: Distinct keys.
        records: An epoch.
        cpu_us: CPU time a record.
        share: What measuring is of it.
    """

    path: str
    keys: int
    records: int
    cpu_us: float
    share: float


class Stopwatch:
    """Adds up the thread's CPU time in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        # What looking at it costs, and is no part of what is measured.
        looks = [time.thread_time() for _ in range(1_001)]
        self._look = (looks[-1] - looks[0]) / 1_000

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            made = function(*arguments)
            self.seconds += time.thread_time() - began - self._look
            return made

        return timed


def main() -> None:
    """Measure each case, print a table, write the results."""
    found = [
        cost(path, keys, records, count)
        for path in ("by key", "as columns")
        for keys, records, count in ((1_000, 100_000, 12), (100_000, 100_000, 12), (100, 100, 400))
    ]
    table = Table("path", "keys", "records an epoch", "CPU us a record", "of it for load")
    for one in found:
        table.add_row(
            one.path, f"{one.keys:,}", f"{one.records:,}", f"{one.cpu_us:.2f}", f"{one.share:.2%}"
        )
    Console().print(table)
    print(json.dumps([asdict(one) for one in found]))


def cost(path: str, keys: int, records: int, count: int) -> Cost:
    """Return what a case costs."""
    p = mr.Pipeline("load")
    p.inject(STREAM)
    if path == "by key":
        p.add(Count)
    else:
        (p.stream(STREAM).key_by("_value").window(mr.FixedWindows("1 min")).count().to("counts"))
        p.sink("counts", print)
    watch = Stopwatch()
    size = LmdbView.size
    assert isinstance(size, property)
    assert size.fget is not None
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(KeySampler, "hottest", watch.around(KeySampler.hottest)),
        mock.patch.object(Load, "of", watch.around(Load.of)),
        mock.patch.object(LmdbView, "size", property(watch.around(size.fget))),
    ):
        kernel = Kernel(p, Path(directory), keys=keys, intervals=16)
        spent = 0.0
        for batch in batches(count=count, records=records, keys=keys, repeated=0.0):
            if batch.second == 60:  # the first epoch finds caches to be made
                watch.seconds = spent = 0.0
            spent += kernel.run(batch).cpu_s
    return Cost(path, keys, records, spent / (count - 1) / records * 1e6, watch.seconds / spent)


if __name__ == "__main__":
    main()
