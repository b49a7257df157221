"""How long a split of a hot key interval holds up a run of epochs on Spark, by part.

A run writes a value for each key, then has epochs that change some of them. One interval is split
between two epochs, as ``balance=True`` or ``millrace remap`` would, and as many epochs follow.
Shown are the pause by part (reading the interval, dividing its rows, and the rest: the claim, the
snapshots of both parts and the completion) beside epochs before; and the epoch right after, in
which the caches of both parts are built. Each round splits the next interval.

Run it with ``python -m benchmarks.remap_pause``; a million keys take some minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.spark_session import build_session
from millrace.windmill import carrying

_EPOCHS = 5
_WRITTEN_AN_EPOCH = 100_000
_CHANGED_AN_EPOCH = 10_000


class Keep(mr.Computation):
    """Keeps as many bytes for each key as a record says, others each time."""

    inputs = {"rows": mr.by("key")}
    value = mr.ValueState(bytes)

    def process_record(self, record: mr.Record) -> None:
        """Replace the value."""
        row = record.value
        self.value.set(random.Random(record.timestamp + row["key"]).randbytes(row["size"]))


@dataclass(frozen=True)
class Pause:
    """A split of one interval.

    Attributes:
        state_bytes: Of keys' values in the interval, about.
        before_s: Median of how long an epoch took before it, without a remap.
        remap_s: How long the run waited for the split.
        read_s: Of that, until the rows of the interval were read.
        divide_s: Of that, until they were divided.
        after_s: How long the epoch right after took.
        later_s: Median of those after it.
    """

    state_bytes: int
    before_s: float
    remap_s: float
    read_s: float
    divide_s: float
    after_s: float
    later_s: float


def main() -> None:
    """Run all rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--intervals", type=int, default=16, help="a power of two")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="with room for some times the state")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = describe()
    spark = build_session("remap pause", cores=given.tasks)
    with tempfile.TemporaryDirectory(prefix="millrace-pause-", dir=given.directory) as folder:
        pauses = _run(spark, Path(folder), given)
    spark.stop()
    table = Table("epoch before, s", "split, s", "read", "divide", "rest", "epoch after", "later")
    for one in pauses:
        rest = one.remap_s - one.read_s - one.divide_s
        shown = one.before_s, one.remap_s, one.read_s, one.divide_s, rest, one.after_s, one.later_s
        table.add_row(*(f"{seconds:.2f}" for seconds in shown))
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"remap-pause-{started:%Y-%m-%d-%H%M}.json"
    about = {"keys": given.keys, "value_bytes": given.value_bytes, "intervals": given.intervals}
    results = {"benchmark": "remap_pause", "machine": machine, **about}
    results["pauses"] = [*map(asdict, pauses)]
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _run(spark: Any, folder: Path, given: argparse.Namespace) -> list[Pause]:
    source, checkpoint = folder / "in", folder / "checkpoint"
    source.mkdir()
    p = mr.Pipeline("remap pause")
    stream = spark.readStream.schema("key long, at long, size int").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(source))
    p.inject("rows", rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Keep)
    run = p.start(spark, checkpoint=str(checkpoint), tasks=given.tasks, intervals=given.intervals)
    drawn, files = np.random.default_rng(1), 0

    def deliver(epochs: list[np.ndarray[Any, Any]]) -> list[float]:
        nonlocal files
        for keys in epochs:
            size = np.full(len(keys), given.value_bytes, dtype=np.int32)
            at = np.full(len(keys), files * mr.SECOND)
            file = folder / f"{files:05}.parquet"
            pq.write_table(pa.table({"key": keys, "at": at, "size": size}), file)
            os.utime(file, (1_700_000_000 + files,) * 2)  # Spark reads the oldest first
            file.rename(source / file.name)  # whole, and as old as it is to be: the run looks on
            files += 1
        run.process_available()
        seconds = [*_epochs(checkpoint)]
        assert len(seconds) == files, f"{len(seconds)} epochs of {files} files"
        return seconds[-len(epochs) :]

    def some() -> list[np.ndarray[Any, Any]]:
        return [drawn.integers(0, given.keys, _CHANGED_AN_EPOCH) for _ in range(_EPOCHS)]

    every = np.arange(given.keys)
    deliver(np.array_split(every, max(1, given.keys // _WRITTEN_AN_EPOCH)))
    pauses = []
    for interval in range(given.rounds):
        before = deliver(some())
        with _parts() as parts:
            started = time.perf_counter()
            run.remap("Keep", [mr.Split(interval)])
            took = time.perf_counter() - started
        first, *later = deliver(some())
        size = given.keys * given.value_bytes // given.intervals
        usual, later_s = statistics.median(before), statistics.median(later)
        pauses.append(Pause(size, usual, took, parts["read"], parts["divide"], first, later_s))
    run.stop()
    kept = mr.open_checkpoint(checkpoint)["Keep"]
    assert len(kept.intervals) == given.intervals + given.rounds, "not divided"
    assert sum(1 for _ in kept.scan()) == given.keys, "keys lost"
    return pauses


@contextmanager
def _parts() -> Iterator[dict[str, float]]:
    """Add up how long the driver reads intervals, and how long it divides their rows."""
    seconds = {"read": 0.0, "divide": 0.0}

    def timed(part: str, what: Callable[..., Any]) -> Callable[..., Any]:
        def called(*of: Any) -> Any:
            started = time.perf_counter()
            try:
                return what(*of)
            finally:
                seconds[part] += time.perf_counter() - started

        return called

    rows_at, remade = carrying.rows_at, carrying.remade
    carrying.rows_at = lambda *of: timed("read", rows_at(*of))
    carrying.remade = timed("divide", remade)
    try:
        yield seconds
    finally:
        carrying.rows_at, carrying.remade = rows_at, remade


def _epochs(checkpoint: Path) -> Iterator[float]:
    """Yield how long each epoch took that had records: there are some without any between."""
    files = sorted((checkpoint / "metrics").glob("epochs.jsonl*"), reverse=True)
    had = 0
    for line in chain.from_iterable(file.read_text().splitlines() for file in files):
        said = json.loads(line)
        read = said["injected_records"].get("rows", 0)
        if read > had:
            had = read
            yield said["epoch_duration_seconds"]


if __name__ == "__main__":
    main()
