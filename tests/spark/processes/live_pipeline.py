"""The pipeline that the programs in real time run: two levels, and input of two equal processes.

Whatever is read comes out of it, so what must be seen is known from how many rows there are.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

import millrace as mr

START = 1_700_000_000 * mr.SECOND
KEYS = 10
#: Rows a second, in each process.
RATE = 50


class Row(msgspec.Struct):
    number: int
    key: int


class Count(msgspec.Struct):
    key: int
    count: int


class Numbers(mr.sources.Injector):
    """Two processes that have as many rows as a file says."""

    schema = "number long, key long, at long"

    def __init__(self, file: Path) -> None:
        self.file = file

    def processes(self) -> list[str]:
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(self.allowed())

    def read(self, process: str, start: Any, end: Any) -> Any:
        for n in range(start or 0, end):
            yield n, n % KEYS, START + n * 1000

    def allow(self, rows: int) -> None:
        """Let there be so many rows in each process."""
        aside = self.file.with_suffix(".new")
        aside.write_text(str(rows))
        aside.rename(self.file)

    def allowed(self) -> int:
        """Return how many rows there are in each process."""
        return int(self.file.read_text())


def at_work(root: Path) -> None:
    """Write down that this process has work now, of whatever level."""
    (root / "work" / str(os.getpid())).touch()


class Ticking(Numbers):
    """Has a row more every few milliseconds, until a file says how many."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "limit")
        self.root = root

    def allowed(self) -> int:
        if self.file.exists():
            return super().allowed()
        return rows_after(seconds_of(self.root))

    def read(self, process: str, start: Any, end: Any) -> Any:
        at_work(self.root)
        yield from super().read(process, start, end)


def seconds_of(root: Path) -> float:
    """Return how long ago the stream began, by the machine's clock that no host has set wrong."""
    return time.monotonic() - float((root / "began").read_text())


def rows_after(seconds: float) -> int:
    """Return how many rows there are so long after the beginning, in each process."""
    return int(seconds * RATE)


class Counting(mr.Computation):
    """Counts by key, and says after each record how many it was."""

    inputs = {"numbers": mr.by("key")}
    outputs = {"counts": Count}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        count = self.count.get(0) + 1
        self.count.set(count)
        self.produce("counts", Count(self.key, count))


class Passing(mr.Computation):
    """A second level, under another key."""

    inputs = {"counts": mr.by("count")}
    outputs = {"passed": Count}

    def process_record(self, record: mr.Record) -> None:
        self.produce("passed", record.value)


def numbers(
    source: mr.sources.Injector,
    out: Path,
    counting: mr.Computation,
    passing: mr.Computation | None = None,
    *,
    skew: str | None = None,
    **how: Any,
) -> mr.Pipeline:
    """Return the pipeline, with a sink in a folder; how the first level is added may be said."""
    p = mr.Pipeline("numbers")
    policy = mr.BoundedDelay("1 s")
    p.inject("numbers", source, timestamp="at", low_watermark=policy, format=Row, skew=skew)
    p.add(counting, name="Counting", **how)
    p.add(passing or Passing(), name="Passing")
    p.sink("passed", mr.sinks.Parquet(out))
    return p


def passed(out: Path) -> Counter[tuple[int, int]]:
    """Return how often each key and count is among the rows of the complete marks."""
    files = list(out.glob("epoch=*/*.parquet"))
    if not files:
        return Counter()
    table = ds.dataset(files).to_table(columns=["key", "count"])
    columns = table.column("key").to_pylist(), table.column("count").to_pylist()
    return Counter(zip(*columns, strict=True))


def wanted(rows: int) -> Counter[tuple[int, int]]:
    """Return what must be among them when each process had so many rows, a multiple of ten."""
    counts = range(1, 2 * rows // KEYS + 1)
    return Counter((key, count) for key in range(KEYS) for count in counts)


def session(root: Path, master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with what real time needs, which leaves its files in a folder.

    Args:
        root: The folder.
        master: Spark's, or the URL of a Spark Connect server, which has been set as it is needed.
        conf: More of Spark's settings.
    """
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    return (
        SparkSession.builder.master(master)
        .config(map=mr.spark.realtime_settings(tasks=2) | dict(conf or {}))
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .getOrCreate()
    )
