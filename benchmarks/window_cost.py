"""What a window costs in the kernel: to make it, to emit its sum, and to collect it.

Epochs of 100,000 records go through the kernel's worker, see ``kernel.py``, a minute of event time
apart; so every window is made in one epoch, and emitted and collected in the next. Every case runs
in a process of its own, and the cheapest epoch after two is taken, as other work on the machine
only ever adds. With allowed lateness windows are kept key by key, and without as columns.

Run it with ``python -m benchmarks.window_cost``. It needs no Spark and takes some five minutes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.kernel import STREAM, Kernel, alone, batches

_KEYS = (1_000, 100_000, 1_000_000)
_WARM_UP = 2


@dataclass(frozen=True)
class Cost:
    """The cheapest epoch of one case: CPU time of a record and of a window, log bytes of a window.

    ``windows`` is how many the epoch had.
    """

    record_us: float
    window_us: float
    window_bytes: float
    windows: int


#: What is grouped, by the name that the table has for it.
SHAPES = {
    "windows": lambda keyed: keyed.window(mr.FixedWindows("10 s"), allowed_lateness="1 s"),
    "sessions": lambda keyed: keyed.window(mr.Sessions("5 s"), allowed_lateness="1 s"),
    "windows as columns": lambda keyed: keyed.window(mr.FixedWindows("10 s")),
    "sessions as columns": lambda keyed: keyed.window(mr.Sessions("5 s")),
    "a pane a record": lambda keyed: keyed.window(
        mr.FixedWindows("10 s"), trigger=mr.Repeat(mr.AfterCount(1))
    ),
}


def run(shape: str, keys: int, epochs: int, records: int) -> Cost:
    """Run one case."""
    pipeline = mr.Pipeline("window-cost")
    pipeline.inject(STREAM, format=int)
    SHAPES[shape](pipeline.stream(STREAM).key_by(_itself)).sum().to("sums")
    pipeline.sink("sums", print)
    # As in a Spark worker.
    gc.set_threshold(100_000, 50, 100)
    costs = []
    with tempfile.TemporaryDirectory(prefix="window-cost-") as directory:
        kernel = Kernel(pipeline, Path(directory), keys=keys)
        made = batches(count=_WARM_UP + epochs, records=records, keys=keys, repeated=0.0)
        for batch in made:
            spent = kernel.run(batch)
            windows = len(np.unique(batch.keys))
            costs.append(
                Cost(
                    1e6 * spent.cpu_s / spent.records,
                    1e6 * spent.cpu_s / windows,
                    spent.written / windows,
                    windows,
                )
            )
    return min(costs[_WARM_UP:], key=lambda cost: cost.record_us)


def main() -> None:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.window_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--records", type=int, default=100_000, help="an epoch")
    arguments = parser.parse_args()
    table = Table()
    for name in ("shape", "keys", "windows an epoch", "us a record", "us a window", "bytes"):
        table.add_column(name, justify="right")
    for shape, keys in itertools.product(SHAPES, _KEYS):
        cost = alone(run, shape, keys, arguments.epochs, arguments.records)
        table.add_row(
            shape,
            f"{keys:,}",
            f"{cost.windows:,}",
            f"{cost.record_us:.1f}",
            f"{cost.window_us:.1f}",
            f"{cost.window_bytes:.0f}",
        )
    Console().print(table)


def _itself(value: int) -> int:
    return value


if __name__ == "__main__":
    main()
