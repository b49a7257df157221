"""What ten aggregates in one pass cost beside one: in the kernel, and combined before the shuffle.

Epochs of 100,000 records go through the kernel's worker, see ``kernel.py``, a minute of event time
apart, each in windows that are made in one epoch and emitted in the next, kept as columns. Then the
same columns are combined as a sender combines them. Every case runs in a process of its own; the
cheapest of its rounds is taken, as other work on the machine only ever adds, and the table has CPU
time, and how often that of the one aggregate it is.

Run it with ``python -m benchmarks.aggregates``. It needs no Spark and takes a minute.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks import result
from benchmarks.kernel import STREAM, Kernel, alone, batches
from millrace.dataflow.partials import Lift
from millrace.model.keys import encode_key, hash_key

_KEYS = (1_000, 100_000)
_WARM_UP = 2


def _large(value: int) -> bool:
    return value > 50


_SEVEN: dict[str, Any] = {
    "n": mr.agg.count(), "total": mr.agg.sum(), "mean": mr.agg.mean(),
    "low": mr.agg.min(), "high": mr.agg.max(),
    "spread": mr.agg.variance(), "deviation": mr.agg.stddev(),
}  # fmt: skip

#: What is aggregated, by the name that the table has for it.
CASES: dict[str, dict[str, Any]] = {
    "one": {"total": mr.agg.sum()},
    "ten": {
        **_SEVEN, "all_of_them": mr.agg.sum(), "smallest": mr.agg.min(), "largest": mr.agg.max()
    },
    "ten, three with a filter": {
        **_SEVEN, "large": mr.agg.count(where=_large), "total_of_large": mr.agg.sum(where=_large),
        "smallest_of_large": mr.agg.min(where=_large),
    },
}  # fmt: skip


def _pipeline(case: str) -> mr.Pipeline:
    pipeline = mr.Pipeline("aggregates")
    pipeline.inject(STREAM, format=int)
    windowed = pipeline.stream(STREAM).key_by(_itself).window(mr.FixedWindows("10 s"))
    if case == "one":
        windowed.sum().to("results")
    else:
        windowed.aggregate(**CASES[case]).to("results")
    pipeline.sink("results", print)
    return pipeline


def run(case: str, keys: int, epochs: int, records: int) -> float:
    """Return the CPU microseconds of a record in the kernel."""
    # As in a Spark worker.
    gc.set_threshold(100_000, 50, 100)
    costs = []
    with tempfile.TemporaryDirectory(prefix="aggregates-") as directory:
        kernel = Kernel(_pipeline(case), Path(directory), keys=keys)
        for batch in batches(count=_WARM_UP + epochs, records=records, keys=keys, repeated=0.0):
            spent = kernel.run(batch)
            costs.append(1e6 * spent.cpu_s / spent.records)
    return min(costs[_WARM_UP:])


def lift(case: str, keys: int, rounds: int, records: int) -> float:
    """Return the CPU microseconds of a record where a sender combines its values."""
    gc.set_threshold(100_000, 50, 100)
    edge = next(edge for edge in _pipeline(case).build().edges if edge.lift is not None)
    lifts: Lift = edge.lift
    dice = np.random.default_rng(7)
    chosen = dice.integers(0, keys, records)
    encoded = [encode_key(key) for key in range(keys)]
    of_keys = pa.array([encoded[key] for key in chosen.tolist()], pa.binary())
    hashes = np.array([hash_key(key) for key in encoded], np.uint64)[chosen]
    at_us = np.sort(dice.integers(0, 60 * mr.SECOND, records))
    values = dice.integers(0, 100, records).tolist()
    costs = []
    for _ in range(_WARM_UP + rounds):
        started = time.process_time()
        picked = lifts.picked(values)
        assert lifts.apply_picked(of_keys, hashes, at_us, picked) is not None
        costs.append(1e6 * (time.process_time() - started) / records)
    return min(costs[_WARM_UP:])


def main() -> None:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.aggregates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--records", type=int, default=100_000, help="an epoch")
    parser.add_argument("--out", type=Path, help="results file (default: below results/)")
    arguments = parser.parse_args()
    table, costs = Table(), []
    for name in ("where", "keys", "aggregates", "CPU us a record", "times one"):
        table.add_column(name, justify="right")
    measured = [("as columns", run, keys) for keys in _KEYS] + [("lifted", lift, 1_000)]
    for where, measure, keys in measured:
        one = 0.0
        for case in CASES:
            cost = alone(measure, case, keys, arguments.epochs, arguments.records)
            one = one or cost
            costs.append({"where": where, "keys": keys, "aggregates": case, "cpu_us": cost})
            table.add_row(where, f"{keys:,}", case, f"{cost:.2f}", f"{cost / one:.2f}")
    Console().print(table)
    result.write("aggregates", out=arguments.out, costs=costs)


def _itself(value: int) -> int:
    return value


if __name__ == "__main__":
    main()
