"""A run on Spark with and without ``balance=``: Zipf 1.1 and 1.5, and a hot range that moves.

Each epoch reads one file of records; user code spins for a set time on each, so an epoch lasts as
long as its busiest task. What is shown is how long the tasks of an epoch took, in the first and the
last third of the epochs, by the checkpoint's lines of metrics; how many records a second that makes
with all that an epoch has, remaps included; and the key intervals at the end. The range moves after
60 epochs. Counts by key are compared with NumPy's. The shape is that of MillWheel's figures 13 and
14; every epoch's numbers are in the results.

Run it with ``python -m benchmarks.balanced_run`` on a quiet machine with as many free cores as
``--tasks``: tasks that share a core have nothing to balance. It takes about two minutes a case.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.hot_intervals import moving_range, zipf
from benchmarks.machine import describe
from benchmarks.spark_session import build_session

_SPIN_S = 200e-6


class Spin(mr.Computation):
    """Counts the records of a key, and takes a set time for each."""

    inputs = {"rows": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Spin, and count."""
        until = time.perf_counter() + _SPIN_S
        while time.perf_counter() < until:
            pass
        self.count.set(self.count.get(0) + 1)
        self.produce("counts", 1)


@dataclass(frozen=True)
class Case:
    """A law of keys, with or without balance.

    Attributes:
        law: Of keys.
        balanced: Whether intervals followed the load.
        first_s: Median of the tasks' part of an epoch, in the first third.
        last_s: The same in the last third.
        records_per_s: In the last third, by how long whole epochs took.
        intervals: Key intervals at the end.
        tasks_s: How long the tasks of each epoch took.
        epochs_s: How long each epoch took.
    """

    law: str
    balanced: bool
    first_s: float
    last_s: float
    records_per_s: float
    intervals: int
    tasks_s: list[float]
    epochs_s: list[float]

    @classmethod
    def of(
        cls,
        law: str,
        epochs: Sequence[tuple[float, float]],
        records: int,
        intervals: int,
        *,
        balanced: bool,
    ) -> Case:
        """Return what epochs come to, of so many records each.

        Args:
            law: Of keys.
            epochs: How long the tasks of each took, and how long all of it.
            records: In each of them.
            intervals: Key intervals at the end.
            balanced: Whether intervals followed the load.
        """
        tasks, whole = map(list, zip(*epochs, strict=True))
        third = max(1, len(tasks) // 3)
        first, last = statistics.median(tasks[:third]), statistics.median(tasks[-third:])
        rate = third * records / sum(whole[-third:])
        return cls(law, balanced, first, last, rate, intervals, tasks, whole)


def main() -> None:
    """Run all cases, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--records", type=int, default=4_000, help="an epoch")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = describe()
    spark = build_session("balanced run", cores=given.tasks)
    laws = {
        "Zipf 1.1": zipf(1.1, given.records),
        "Zipf 1.5": zipf(1.5, given.records),
        "a range that moves": moving_range(given.records),
    }
    cases = []
    for law, epochs in laws.items():
        keys = list(islice(epochs, given.epochs))
        for balanced in (False, True):
            with tempfile.TemporaryDirectory(prefix="millrace-balanced-") as folder:
                cases.append(_run(spark, law, keys, Path(folder), given.tasks, balanced=balanced))
    spark.stop()
    table = Table("keys", "balance", "first third, s", "last third, s", "intervals", "records/s")
    for one in cases:
        table.add_row(
            one.law, "yes" if one.balanced else "no", f"{one.first_s:.2f}", f"{one.last_s:.2f}",
            f"{one.intervals}", f"{one.records_per_s:,.0f}",
        )  # fmt: skip
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"balanced-run-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "balanced_run", "machine": machine, "cases": [*map(asdict, cases)]}
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _run(
    spark: Any,
    law: str,
    keys: list[npt.NDArray[np.int64]],
    folder: Path,
    tasks: int,
    *,
    balanced: bool,
) -> Case:
    source, checkpoint = folder / "in", folder / "checkpoint"
    source.mkdir()
    for n, of in enumerate(keys):
        at = np.full(len(of), n * mr.SECOND)
        file = source / f"{n:05}.parquet"
        pq.write_table(pa.table({"key": of, "at": at}), file)
        os.utime(file, (1_700_000_000 + n,) * 2)  # Spark reads the oldest first
    p = mr.Pipeline("balanced run")
    stream = spark.readStream.schema("key long, at long").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(source))
    p.inject("rows", rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Spin)
    run = p.start(spark, checkpoint=str(checkpoint), tasks=tasks, balance=balanced)
    run.process_available()
    run.stop()
    found = mr.ops.open_checkpoint(checkpoint)["Spin"]
    counted = {one.key: one.cells["count"] for one in found.scan()}
    numbers, counts = np.unique(np.concatenate(keys), return_counts=True)
    assert counted == dict(zip(numbers.tolist(), counts.tolist(), strict=True)), "records lost"
    files = sorted((checkpoint / "metrics").glob("epochs.jsonl*"), reverse=True)
    lines = chain.from_iterable(file.read_text().splitlines() for file in files)
    seconds = [*islice(epochs_in(lines), len(keys))]
    return Case.of(law, seconds, len(keys[0]), len(found.intervals), balanced=balanced)


def epochs_in(lines: Iterable[str]) -> Iterator[tuple[float, float]]:
    """Yield how long the tasks of each epoch took, and how long all of it, by lines of metrics."""
    for line in map(json.loads, lines):
        if tasks := line["epoch_part_seconds"].get("tasks"):
            yield tasks, line["epoch_duration_seconds"]


if __name__ == "__main__":
    main()
