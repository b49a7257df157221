"""State larger than memory: one worker under a memory limit that its state does not fit into.

A child process limits its own memory (RLIMIT_DATA, Linux: all that is private and writable, so
heap and stacks, but not the caches' files, whose pages the kernel may drop), writes the state key
by key, then changes keys all over it, reading each before.
Going over the limit is a MemoryError, and the benchmark fails.

A worker of Spark can be limited in the same way, or by its container. What Spark sets with
``spark.executor.pyspark.memory`` is not that: it limits address space (RLIMIT_AS), of which LMDB's
maps take much and memory none. RLIMIT_DATA counts what is allocated, used or not, so the limit
should leave some 200 MB for Python, its libraries, and LMDB's 4 MB an open interval.

Run it with ``python -m benchmarks.large_state --gigabytes 10 --limit-gigabytes 2``. It needs no
Spark, and a disk with room for four times the state.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.blobs import BlobWorker, anonymous_bytes, size_of
from benchmarks.machine import describe
from millrace.store import SnapshotPolicy

_EPOCH_BYTES = 32 << 20
_EPOCHS_OVER_ALL = 30


def main() -> None:
    """Run the child, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit-gigabytes", type=float, default=0.75)
    parser.add_argument("--value-bytes", type=int, default=4000)
    parser.add_argument("--intervals", type=int, default=32)
    parser.add_argument("--directory", type=Path, help="with room for four times the state")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(_child(arguments)))
        return
    machine = describe()
    home = Path(tempfile.mkdtemp(prefix="large-state-", dir=arguments.directory))
    command = [sys.executable, "-m", "benchmarks.large_state", *sys.argv[1:], "--child", str(home)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    measured = json.loads(done.stdout)
    Console(width=100).print(_table(measured))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"large-state-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "large_state", "machine": machine, **measured}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _child(arguments: argparse.Namespace) -> dict[str, Any]:
    limit = int(arguments.limit_gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    worker = BlobWorker(
        arguments.child / "checkpoint",
        intervals=arguments.intervals,
        value_bytes=arguments.value_bytes,
        policy=SnapshotPolicy(),
    )
    count = int(arguments.gigabytes * 1e9 / arguments.value_bytes)
    an_epoch = max(1, _EPOCH_BYTES // arguments.value_bytes)
    peak = anonymous_bytes()
    started = time.perf_counter()
    for start in range(0, count, an_epoch):
        worker.epoch(np.arange(start, min(start + an_epoch, count), dtype=np.int64))
        peak = max(peak, anonymous_bytes())
    written_seconds = time.perf_counter() - started
    worker.snapshots.wait(3600)

    generator = np.random.default_rng(1)
    changed = []
    for _ in range(_EPOCHS_OVER_ALL):
        changed.append(worker.epoch(generator.permutation(count)[: an_epoch // 4]))
        peak = max(peak, anonymous_bytes())
    worker.snapshots.wait(3600)
    sizes = {
        name: size_of(worker.home / name) for name in ("commits", "snapshots", "epochs", "cache")
    }
    return {
        "state_bytes": count * arguments.value_bytes,
        "keys": count,
        "intervals": arguments.intervals,
        "limit_bytes": limit,
        "anonymous_bytes_max": max(peak, anonymous_bytes()),
        "write_seconds": round(written_seconds, 1),
        "write_keys_per_second": round(count / written_seconds),
        "change_keys_per_second": round(_EPOCHS_OVER_ALL * (an_epoch // 4) / sum(changed)),
        "snapshots": worker.snapshots.take().snapshots,
        "bytes_on_disk": sizes,
    }


def _table(measured: dict[str, Any]) -> Table:
    table = Table(title=f"{measured['state_bytes'] / 1e9:.1f} GB of state", show_header=False)
    for name in ("limit_bytes", "anonymous_bytes_max"):
        table.add_row(name.removesuffix("_bytes"), f"{measured[name] / 1e9:.2f} GB")
    for name in ("keys", "write_keys_per_second", "change_keys_per_second", "snapshots"):
        table.add_row(name.replace("_", " "), f"{measured[name]:,}")
    for name, size in measured["bytes_on_disk"].items():
        table.add_row(f"{name} on disk", f"{size / 1e9:.2f} GB")
    return table


if __name__ == "__main__":
    main()
