"""A program that reads tables of a lake while others append to them: by epochs, and in real time.

One of them is in a bucket, and some of what is written. Its cases are those of
``test_live_tables.py``.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from obstore.store import S3Store
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
    """A table, and how many rows it has.

    Args:
        source: Reads it.
        append: Appends to it.
        bucket: The URL of what is written to a bucket, too; empty: nothing is.
    """

    def __init__(
        self, source: mr.sources.Injector, append: Callable[[pa.Table], None], bucket: str = ""
    ) -> None:
        self.source = source
        self._append = append
        self.bucket = bucket
        self.rows = 0

    def append(self, count: int) -> None:
        self._append(rows(self.rows, count))
        self.rows += count


def delta(folder: Path) -> Lake:
    bucket = f"s3://checkpoints/live-tables-{secrets.token_hex(4)}"
    path = f"{bucket}/trips"
    write_deltalake(path, rows(0, 0))

    def append(some: pa.Table) -> None:
        write_deltalake(path, some, mode="append")
        if some["number"][0].as_py() % 300 == 0:
            DeltaTable(path).optimize.compact()

    return Lake(mr.sources.Delta(path, schema=SCHEMA), append, bucket)


def iceberg(folder: Path) -> Lake:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": str(folder)}
    opened = load_catalog(**catalog)
    opened.create_namespace("lake")
    table = opened.create_table("lake.trips", rows(0, 0).schema)
    return Lake(mr.sources.Iceberg("lake.trips", catalog=catalog, schema=SCHEMA), table.append)


def in_table(url: str) -> Counter[tuple[int, int]]:
    """Return how often each key and count is in a Delta table."""
    return counted(DeltaTable(url).to_pyarrow_table())


def in_files(url: str) -> Counter[tuple[int, int]]:
    """Return how often each key and count is in the files of complete marks."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
    names = [entry["path"] for page in store.list() for entry in page]
    files = [name for name in names if name.startswith("epoch=") and name.endswith(".parquet")]
    tables = [pq.read_table(io.BytesIO(store.get(name).bytes())) for name in files]
    return sum(map(counted, tables), Counter())


def counted(table: pa.Table) -> Counter[tuple[int, int]]:
    columns = (table.column(name).to_pylist() for name in ("key", "count"))
    return Counter(zip(*columns, strict=True))


def appended(spark: SparkSession, folder: Path, make: Callable[[Path], Lake]) -> dict[str, Any]:
    """Append by epochs, in real time and in real time again, and between the sessions."""
    folder.mkdir()
    lake, found = make(folder), {}
    lake.append(KEYS)

    def right() -> str:
        due = wanted(lake.rows // 2)
        outputs = [passed(folder / "out")]
        if lake.bucket:
            outputs += [in_table(f"{lake.bucket}/table"), in_files(f"{lake.bucket}/files")]
        wrong = [f"missing {due - seen}, too many {seen - due}" for seen in outputs if seen != due]
        return "; ".join(wrong) or "right"

    for number, how in enumerate(({}, {"realtime": True}, {"realtime": True})):
        pipeline = numbers(lake.source, folder / "out", Counting())
        if lake.bucket:
            pipeline.sink("passed", mr.sinks.Delta(f"{lake.bucket}/table"))
            pipeline.sink("passed", mr.sinks.Parquet(f"{lake.bucket}/files"))
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
