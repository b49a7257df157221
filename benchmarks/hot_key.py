"""A key that has nine tenths of all records, and what two phases do about it: MillWheel 8.4.

The sum of a column per key and window of ten seconds, as a batch on two cores. The first two cases
sum by an aggregation of our own in Python, of which Millrace knows nothing but how to merge. *One
phase* shuffles every record to the task of its key, so one task has nine tenths of the work.
*Fan-out* splits each key in eight parts first, which combine for themselves; a second stage puts
them together: the paper's two-phase aggregator. *Combined before the shuffle* is what Millrace does
with its own sum by itself: the first phase is in the task that reads, a column at a time.

Each case runs twice; the second time counts. Sums are compared with NumPy's.

Run it with ``python -m benchmarks.hot_key``. It needs a JVM and takes about two minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.measure import TreeSampler
from benchmarks.spark_session import build_session

_DDL = "key long, value long, at long"
_KEYS = 1_000
_HOT = 0.9
_RATE = 10_000


class Total(mr.CombineFn):
    """A sum in Python."""

    def create(self) -> int:
        """Return nothing."""
        return 0

    def add(self, accumulator: int, value: int) -> int:
        """Add a value."""
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        """Add two sums."""
        return accumulator + other

    def extract(self, accumulator: int) -> int:
        """Return the sum."""
        return accumulator


#: Case -> how windows are summed.
_CASES: dict[str, Callable[[Any], Any]] = {
    "one phase": lambda windows: windows.aggregate(Total(), "value"),
    "fan-out of eight": lambda windows: windows.aggregate(Total(), "value", fanout=8),
    "sum, combined before the shuffle": lambda windows: windows.sum("value"),
}


@dataclass(frozen=True)
class Case:
    """One way to sum.

    Attributes:
        how: Its name.
        records_per_s: Of the second run.
        cpu_s_per_million: Of all processes in it.
        cores: In use on average: one where all waits for one key, two where it does not.
    """

    how: str
    records_per_s: float
    cpu_s_per_million: float
    cores: float


def main() -> None:
    """Run all cases, print the table, write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hot_key",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    arguments = parser.parse_args()
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="millrace-hot-key-") as name:
        cases = _measure(Path(name), arguments.records)
    table = Table(title=f"{arguments.records:,} records, {_HOT:.0%} of one key")
    for column in ("how", "records/s", "CPU s / million", "cores in use"):
        table.add_column(column, justify="right")
    for case in cases:
        table.add_row(
            case.how,
            f"{case.records_per_s:,.0f}",
            f"{case.cpu_s_per_million:.1f}",
            f"{case.cores:.2f}",
        )
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"hot-key-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "hot_key", "machine": machine, "cases": [*map(asdict, cases)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(folder: Path, records: int) -> list[Case]:
    expected = _make(folder / "in", records)
    spark = build_session("hot key", cores=2)
    cases = []
    with TreeSampler(os.getpid()) as sampler:
        for how, summed in _CASES.items():
            for run in range(2):
                out = folder / f"{how}-{run}"
                p = mr.Pipeline("hot key")
                rows = spark.read.schema(_DDL).parquet(str(folder / "in"))
                keyed = p.inject("rows", rows, timestamp="at", unit="us").key_by("key")
                summed(keyed.window(mr.FixedWindows("10 s"))).to("sums", int)
                p.sink("sums", mr.sinks.Parquet(out))
                began_s = time.time()
                p.run_batch(spark)
                ended_s = time.time()
                found = ds.dataset(out, format="parquet").to_table(["value"])["value"].to_numpy()
                assert (len(found), found.sum()) == expected, f"{how}: {found.sum()}, {expected}"
            time.sleep(0.5)  # for the last sample
            cpu_s = sum(sampler.cpu_s_between(began_s, ended_s).values())
            seconds = ended_s - began_s
            cases.append(Case(how, records / seconds, cpu_s / records * 1e6, cpu_s / seconds))
    spark.stop()
    return cases


def _make(folder: Path, records: int) -> tuple[int, int]:
    """Write the records; return how many sums there are, and their sum."""
    folder.mkdir()
    generator = np.random.default_rng(84)
    keys = np.where(generator.random(records) < _HOT, 0, generator.integers(1, _KEYS, records))
    values = generator.integers(0, 1_000, records)
    at = np.arange(records) * (mr.SECOND // _RATE)
    for part in range(4):
        rows = {"key": keys[part::4], "value": values[part::4], "at": at[part::4]}
        pq.write_table(pa.table(rows), folder / f"{part}.parquet")
    windows = np.unique(keys * (records + 1) + at // (10 * mr.SECOND))
    return len(windows), int(values.sum())


if __name__ == "__main__":
    main()
