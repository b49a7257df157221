"""A driver that runs a pipeline in real time until it has seen everything: what is killed.

It is given a folder of its own, in one with the settings, the input and the outputs of all drivers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr

START = 1_700_000_000 * mr.SECOND


class Row(msgspec.Struct):
    number: int
    key: int


class Count(msgspec.Struct):
    key: int
    count: int


def at_work(root: Path) -> None:
    """Write down that this process has work now, of whatever level."""
    (root / "work" / str(os.getpid())).touch()


class Ticking(mr.Injector):
    """Two processes that have a row more every few milliseconds, until a file says how many."""

    schema = "number long, key long, at long"

    def __init__(self, root: Path, rate: float) -> None:
        self.root, self.rate = root, rate

    def processes(self) -> list[str]:
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.Advance:
        if (limit := self.root / "limit").exists():
            return mr.Advance(int(limit.read_text()))
        seconds = time.time() - (self.root / "began").stat().st_mtime
        return mr.Advance(int(seconds * self.rate))

    def read(self, process: str, start: Any, end: Any) -> Any:
        at_work(self.root)
        for n in range(start or 0, end):
            yield n, n % 10, START + n * 1000


class Counting(mr.Computation):
    """Counts by key, and says after each record how many it was."""

    inputs = {"numbers": mr.by("key")}
    outputs = {"counts": Count}
    count = mr.ValueState(int)

    def __init__(self, root: Path) -> None:
        self.root = root

    def process_record(self, record: mr.Record) -> None:
        at_work(self.root)
        count = self.count.get(0) + 1
        self.count.set(count)
        self.produce("counts", Count(self.key, count))


class Passing(mr.Computation):
    """A second level, under another key."""

    inputs = {"counts": mr.by("count")}
    outputs = {"passed": Count}

    def process_record(self, record: mr.Record) -> None:
        self.produce("passed", record.value)


class Seen:
    """Writes down when rows were seen, and the highest count among them; a file a process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, rows: pa.RecordBatch) -> None:
        at_work(self.root)
        with (self.root / "seen" / str(os.getpid())).open("a") as file:
            file.write(f"{time.time()} {max(rows.column('count').to_pylist())}\n")


def main(root: Path) -> None:
    settings = json.loads((root / "settings.json").read_text())
    logging.basicConfig(level=logging.WARNING, format="\n%(asctime)s %(message)s")
    logging.getLogger("millrace").setLevel(logging.INFO)
    spark = (
        SparkSession.builder.master(settings["master"])
        .config(map=mr.spark.realtime_settings(tasks=2) | settings["conf"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .getOrCreate()
    )
    p = mr.Pipeline("numbers")
    source, policy = Ticking(root, settings["rate"]), mr.BoundedDelay("1 s")
    p.inject("numbers", source, timestamp="at", low_watermark=policy, format=Row)
    p.add(Counting(root))
    p.add(Passing)
    p.sink("passed", mr.Parquet(root / "out"))
    p.sink("passed", mr.ArrowSink(Seen(root)))
    options = {"realtime": True, "tasks": 2, "progress": False} | settings["options"]
    run = p.start(spark, checkpoint=str(root / "checkpoint"), **options)
    while not ((root / "limit").exists() and run.process_available("120 s")):
        if run.wait("0.2 s"):
            raise SystemExit("the run has ended by itself")
    run.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).parent)
