"""Recovery of a lost cache: seconds and bytes read, from the log alone and from snapshots.

State of a given size is written by one worker and overwritten twice. Then its cache is taken to be
lost, and built again in an empty directory:

1. from the commits alone, none of which has been collected;
2. from snapshots and the commits after them, with a tenth of the keys changed since.

In between, epochs are timed without and with the snapshot thread at work all the time. Kernel,
store and caches are those of a run; there is no Spark, whose part in a recovery is to start a task.
One process does it all; on a cluster every worker process recovers its own intervals.

Run it with ``python -m benchmarks.recovery --gigabytes 1``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.blobs import NEVER, BlobWorker, size_of
from benchmarks.machine import describe
from millrace.store import SnapshotPolicy, SnapshotWriter

_OVERWRITTEN = 2
_EPOCH_BYTES = 32 << 20
_TIMED = 20


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--intervals", type=int, default=16)
    parser.add_argument("--directory", type=Path, help="with room for six times the state")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    home = Path(tempfile.mkdtemp(prefix="recovery-", dir=arguments.directory))
    try:
        measured = _measure(home, arguments)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    Console(width=100).print(_table(measured))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"recovery-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "recovery", "machine": machine, **measured}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    worker = BlobWorker(
        home / "checkpoint",
        intervals=arguments.intervals,
        value_bytes=arguments.value_bytes,
        policy=NEVER,
    )
    count = int(arguments.gigabytes * 1e9 / arguments.value_bytes)
    generator = np.random.default_rng(1)
    an_epoch = max(1, _EPOCH_BYTES // arguments.value_bytes)

    def overwrite(keys: int) -> None:
        order = generator.permutation(count)[:keys].astype(np.int64)
        for start in range(0, keys, an_epoch):
            worker.epoch(order[start : start + an_epoch])

    for _ in range(1 + _OVERWRITTEN):
        overwrite(count)
    from_log = _recovered(worker, home / "from-log")

    few = max(1, an_epoch // 10)
    without = [worker.epoch(generator.integers(0, count, few)) for _ in range(_TIMED)]
    beside = SnapshotWriter(worker.caches, worker.state.snapshots, SnapshotPolicy(fixed_bytes=0))
    beside.offer("Blob", range(arguments.intervals))
    with_thread = []
    while not beside.wait(0):
        with_thread.append(worker.epoch(generator.integers(0, count, few)))
    written = beside.take()

    overwrite(count // 10)
    snapshots = _recovered(worker, home / "from-snapshots")
    return {
        "state_bytes": count * arguments.value_bytes,
        "keys": count,
        "intervals": arguments.intervals,
        "log_bytes": size_of(home / "checkpoint" / "commits"),
        "snapshot_bytes": written.bytes,
        "from_log": from_log,
        "from_snapshots": snapshots,
        "epoch_records": few,
        "epoch_seconds_without_snapshots": _spread(without),
        "epoch_seconds_with_snapshots": _spread(with_thread),
        "epochs_with_snapshots": len(with_thread),
    }


def _recovered(worker: BlobWorker, cache: Path) -> dict[str, Any]:
    cpu = time.process_time()
    seconds, repairs = worker.recover(cache)
    cpu = time.process_time() - cpu
    shutil.rmtree(cache)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "bytes_read": sum(repair.bytes_read for repair in repairs),
        "commits": sum(repair.deltas_applied for repair in repairs),
        "snapshots": sum(repair.snapshot > 0 for repair in repairs),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    return {
        "median": round(statistics.median(seconds), 4),
        "p90": round(statistics.quantiles(seconds, n=10)[-1], 4),
    }


def _table(measured: dict[str, Any]) -> Table:
    table = Table(title=f"{measured['state_bytes'] / 1e9:.2f} GB of state")
    for column in ("recovered from", "seconds", "CPU", "MB read", "commits", "snapshots"):
        table.add_column(column, justify="right")
    for name in ("from_log", "from_snapshots"):
        one = measured[name]
        megabytes = one["bytes_read"] / 1e6
        table.add_row(
            name.removeprefix("from_"), f"{one['seconds']:.1f}", f"{one['cpu_seconds']:.1f}",
            f"{megabytes:,.0f}", f"{one['commits']:,}", str(one["snapshots"]),
        )  # fmt: skip
    for name in ("without", "with"):
        table.add_row(
            f"epoch of {measured['epoch_records']:,} {name} snapshots",
            str(measured[f"epoch_seconds_{name}_snapshots"].get("median", "-")),
        )
    return table


if __name__ == "__main__":
    main()
