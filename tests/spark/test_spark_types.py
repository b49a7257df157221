"""Types that only Spark has, and what Spark reads of Parquet files that others have written.

A value comes as Spark itself has it, or the column is refused by name when the pipeline is built.
"""

from __future__ import annotations

import datetime as dt
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import matrix_page
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import millrace as mr

TIMES = [dt.time(9, 30), dt.time(23, 59, 59, 999999), None]
INSTANTS = [dt.datetime(1969, 7, 20, 20, 17, 40, tzinfo=dt.UTC), None]
WHOLE = dt.timedelta(days=1, hours=2, seconds=4)

#: Name -> the type that is declared, and an expression of Spark's.
EXPRESSIONS: dict[str, tuple[Any, str]] = {
    "char": (str, "CAST('tea' AS CHAR(5))"),
    "varchar": (str, "CAST('tea' AS VARCHAR(5))"),
    "text with a collation": (str, "'tea' COLLATE UTF8_LCASE"),
    "null": (int, "NULL"),
    "array of nulls": (list[int | None], "array(NULL)"),
    "time": (dt.time, "TIME'09:30:00.5'"),
    "time within": (list[dt.time], "array(TIME'09:30:00')"),
    "interval of time": (dt.timedelta, "INTERVAL '1 02:03:04.5' DAY TO SECOND"),
    "interval before": (dt.timedelta, "INTERVAL '-1 02:03:04.5' DAY TO SECOND"),
    "interval within": (dict[str, dt.timedelta], "map('a', INTERVAL '1' DAY)"),
    "float": (float, "CAST(1.5 AS FLOAT)"),
}

#: Of which Python has no value: words of the refusal.
REFUSED = {
    "INTERVAL '1-2' YEAR TO MONTH": "no values of interval year to month",
    "make_interval(1, 2, 3)": "no values of interval",
    "parse_json('{}')": "a variant does not say what it holds",
    "array(INTERVAL '1' YEAR)": "no values of interval year",
    "named_struct('a', parse_json('{}'))": "a variant does not say",
    "map('a', make_interval(1))": "no values of interval",
    "map(INTERVAL '1' YEAR, 1)": "no values of interval year",
    "timestamp_ntz'2026-01-01 00:00:00'": "names no instant",
}

#: Name -> the type that is declared, and a column of a Parquet file.
PARQUET: dict[str, tuple[Any, pa.Array]] = {
    "uint8": (int, pa.array([0, 255, None], pa.uint8())),
    "uint16": (int, pa.array([0, 65535, None], pa.uint16())),
    "uint32": (int, pa.array([0, (1 << 32) - 1, None], pa.uint32())),
    "uint64": (int, pa.array([0, (1 << 64) - 1, None], pa.uint64())),
    "decimal(9,2)": (Decimal, pa.array([Decimal("19.99"), None], pa.decimal128(9, 2))),
    "decimal(38,2)": (Decimal, pa.array([Decimal("19.99"), None], pa.decimal128(38, 2))),
    "large text": (str, pa.array(["tea", None], pa.large_string())),
    "dictionary": (str, pa.array(["tea", None]).dictionary_encode()),
    "large bytes": (bytes, pa.array([b"tea", None], pa.large_binary())),
    "bytes of a size": (bytes, pa.array([b"four", None], pa.binary(4))),
    "large list": (list[int], pa.array([[1], None, []], pa.large_list(pa.int64()))),
    "list of a size": (list[int], pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))),
    "struct": (dict[str, int], pa.array([{"x": 1}, None], pa.struct([("x", pa.int8())]))),
    "map": (dict[str, int], pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))),
    "date": (dt.date, pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32())),
    "date64": (dt.date, pa.array([dt.date(1969, 12, 31), None], pa.date64())),
    "float16": (float, pa.array([np.float16(0.5), None], pa.float16())),
    "nothing": (int, pa.array([None, None], pa.null())),
    **{
        f"timestamp of {unit}": (dt.datetime, pa.array(INSTANTS, pa.timestamp(unit, "UTC")))
        for unit in ("s", "ms", "us", "ns")
    },
    "time": (dt.time, pa.array(TIMES, pa.time64("us"))),
    "duration": (int, pa.array([WHOLE, None], pa.duration("us"))),
}  # fmt: skip


def _named(kind: Any) -> str:
    """Return a type as a user writes it."""
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return kind.__name__
    # A bar would end the cell.
    return re.sub(r"(\w+) \| None", r"Optional[\1]", str(kind).replace("datetime.", ""))


class Seen(msgspec.Struct):
    stream: str
    n: int
    data: bytes


def came(spark: SparkSession, frames: dict[str, tuple[Any, DataFrame]]) -> dict[str, list[Any]]:
    """Return the values that come out of DataFrames with columns ``n`` and ``x``, by their name."""
    streams = {f"rows_{number}": name for number, name in enumerate(frames)}

    class Sees(mr.Computation):
        inputs = {stream: mr.by("n") for stream in streams}
        outputs = {"seen": Seen}

        def process_record(self, record: Any) -> None:
            row = record.value
            self.produce("seen", Seen(record.stream, row.n, pickle.dumps(row.x)))

    memory, p = mr.sinks.Memory(), mr.Pipeline("types")
    for stream, name in streams.items():
        kind, frame = frames[name]
        row = msgspec.defstruct("Row", [("n", int), ("x", kind | None)])
        p.inject(stream, frame, timestamp="n", unit="us", format=row)
    p.add(Sees)
    p.sink("seen", memory)
    p.run_batch(spark, progress=False)
    rows = sorted(memory.rows, key=lambda row: row.n)
    return {
        name: [pickle.loads(row.data) for row in rows if row.stream == stream]
        for stream, name in streams.items()
    }


def sparks(frame: DataFrame, kind: Any) -> list[Any]:
    """Return the values that Spark has, as Python has them."""
    return [_plain(row.x, kind) for row in frame.orderBy("n").collect()]


def _plain(value: Any, kind: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Decimal) and kind is int:
        return int(value)
    return value.asDict() if hasattr(value, "asDict") else value


def test_types_of_spark(spark: SparkSession) -> None:
    frames = {
        name: (kind, spark.range(1).selectExpr("id AS n", f"{text} AS x"))
        for name, (kind, text) in EXPRESSIONS.items()
    }
    seen = came(spark, frames)

    assert seen == {name: sparks(frame, kind) for name, (kind, frame) in frames.items()}
    cells = {
        f"`{frame.schema['x'].dataType.simpleString()}`": {"DataFrame": f"equal: `{_named(kind)}`"}
        for kind, frame in frames.values()
    }
    for text in REFUSED:
        kind = spark.range(1).selectExpr(f"{text} AS x").schema["x"].dataType
        cells[f"`{kind.simpleString()}`"] = {"DataFrame": "refused"}
    matrix_page.check_table("types of Spark", ["DataFrame"], cells)


@pytest.mark.parametrize("text", REFUSED)
def test_a_type_that_python_does_not_have_is_refused(spark: SparkSession, text: str) -> None:
    frame = spark.range(1).selectExpr("id AS n", f"{text} AS x")
    p = mr.Pipeline("types")
    p.inject("rows", frame, timestamp="n", unit="us", format=dict)
    p.sink("rows", mr.sinks.Memory())

    with pytest.raises(mr.MillraceError, match=f"'rows': column 'x' is .*{REFUSED[text]}"):
        p.explain()


def test_parquet_files_of_others(spark: SparkSession, tmp_path: Path) -> None:
    frames, refused = {}, set()
    for number, (name, (kind, column)) in enumerate(PARQUET.items()):
        file = str(tmp_path / f"{number}.parquet")
        numbers = pa.array(range(len(column)), pa.int64())
        pq.write_table(pa.table({"n": numbers, "x": column}), file)
        try:
            frame = spark.read.parquet(file)
            frame.collect()
        except PySparkException:
            refused.add(name)
        else:
            frames[name] = kind, frame

    # These ``mr.sources.Files`` reads, or names: see unit/connectors/test_parquet_types.py.
    assert refused == {"float16", "timestamp of ns", "time"}
    seen = came(spark, frames)
    assert seen == {name: sparks(frame, kind) for name, (kind, frame) in frames.items()}
    cells = {
        f"`{column.type}`": {
            "spark.read.parquet": "Spark refuses the file"
            if name in refused
            else f"equal: `{_named(kind)}`"
        }
        for name, (kind, column) in PARQUET.items()
    }
    matrix_page.check_table("files read by Spark", ["spark.read.parquet"], cells)
