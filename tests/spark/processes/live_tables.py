"""A program that reads tables of a lake while others append to them: by epochs, and in real time.

Its cases are those of ``test_live_tables.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import millrace as mr
from tests.spark.processes.live_pipeline import KEYS, START, Counting, numbers, passed, wanted

SCHEMA = "number long, key long, at long"


def rows(first: int, count: int) -> pa.Table:
    some = range(first, first + count)
    return pa.table(
        {
            "number": pa.array(some, pa.int64()),
            "key": pa.array([n % KEYS for n in some], pa.int64()),
            "at": pa.array([START + n * 1000 for n in some], pa.int64()),
        }
    )


class Lake:
    """A table, and how many rows it has."""

    def __init__(self, source: mr.sources.Injector, append: Callable[[pa.Table], None]) -> None:
        self.source = source
        self._append = append
        self.rows = 0

    def append(self, count: int) -> None:
        self._append(rows(self.rows, count))
        self.rows += count


def delta(folder: Path) -> Lake:
    path = str(folder / "trips")
    write_deltalake(path, rows(0, 0))

    def append(some: pa.Table) -> None:
        write_deltalake(path, some, mode="append")
        if some["number"][0].as_py() % 300 == 0:
            DeltaTable(path).optimize.compact()

    return Lake(mr.sources.Delta(path, schema=SCHEMA), append)


def iceberg(folder: Path) -> Lake:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": str(folder)}
    opened = load_catalog(**catalog)
    opened.create_namespace("lake")
    table = opened.create_table("lake.trips", rows(0, 0).schema)
    return Lake(mr.sources.Iceberg("lake.trips", catalog=catalog, schema=SCHEMA), table.append)


def appended(spark: SparkSession, folder: Path, make: Callable[[Path], Lake]) -> dict[str, Any]:
    """Append by epochs, in real time and in real time again, and between the sessions."""
    folder.mkdir()
    lake, found = make(folder), {}
    lake.append(KEYS)

    def right() -> str:
        seen, due = passed(folder / "out"), wanted(lake.rows // 2)
        return "right" if seen == due else f"missing {due - seen}, too many {seen - due}"

    for number, how in enumerate(({}, {"realtime": True}, {"realtime": True})):
        pipeline = numbers(lake.source, folder / "out", Counting())
        run = pipeline.start(spark, checkpoint=str(folder / "checkpoint"), **how)

        def feed() -> None:
            for _ in range(12):
                lake.append(5 * KEYS)

        feeding = threading.Thread(target=feed)
        feeding.start()
        while feeding.is_alive():  # what has come so far is seen meanwhile
            assert run.process_available("300 s")
        feeding.join()
        done = run.process_available("300 s")
        found[f"session {number}"] = [done, right(), dict(run.status().injected), lake.rows]
        run.stop()
        lake.append(2 * KEYS)
    return found


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    return {make.__name__: appended(spark, root / make.__name__, make) for make in (delta, iceberg)}
