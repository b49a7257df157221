"""Columns whose names differ in case only, or not at all: refused by name, or both are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import PipelineError


class Both(msgspec.Struct):
    """A row with two fields that SQL takes for one."""

    Name: str
    name: str


class Passes(mr.Computation):
    """Says what it got, as text: no sink has such columns."""

    inputs = {"rows": mr.by("name")}
    outputs = {"seen": str}

    def process_record(self, record: mr.Record) -> None:
        value = record.value
        self.produce("seen", repr((self.key, value if isinstance(value, dict) else value.Name)))


def pipeline(
    source: Any, memory: mr.sinks.Memory, format: Any = Any, **options: Any
) -> mr.Pipeline:
    p = mr.Pipeline("names")
    options = {"timestamp": "at", "unit": "us", "low_watermark": mr.BoundedDelay(0)} | options
    p.inject("rows", source, format=format, **options)
    p.add(Passes)
    p.sink("seen", memory)
    return p


@pytest.mark.parametrize(
    ("names", "format", "options"),
    [
        (["Name", "name", "at"], Any, {}),
        (["Name", "name", "at"], Both, {}),
        (["name", "name", "at"], Any, {}),
        (["name", "at", "AT"], dict, {}),
        (["name", "at", "Part", "part"], Any, {"process": "part"}),
        (["name", "at", "ID", "id"], Any, {"id": "id"}),
        (["name", "at", "Mark", "mark"], Any, {"low_watermark": mr.WatermarkColumn("mark")}),
    ],
    ids=["value", "struct", "the same", "event time", "process", "id", "promise"],
)
def test_a_data_frame_is_refused_by_name(
    spark: SparkSession, names: list[str], format: Any, options: dict[str, Any]
) -> None:
    frame = spark.createDataFrame(
        pa.table([["a"]] * len(names), [f"c{n}" for n in range(len(names))])
    )
    kinds = ["bigint" if name.lower() in ("at", "mark") else "string" for name in names]
    frame = frame.selectExpr(*(f"cast(c{n} AS {kind})" for n, kind in enumerate(kinds))).toDF(
        *names
    )
    twice = next(name for name in names if [n.lower() for n in names].count(name.lower()) > 1)

    for ask in (mr.Pipeline.explain, lambda p: p.run_batch(spark, progress=False)):
        with pytest.raises(PipelineError, match=rf"'rows'.*{twice!r}.*toDF"):
            ask(pipeline(frame, mr.sinks.Memory(), format, **options))


def test_columns_that_nobody_takes_may_be_alike(spark: SparkSession) -> None:
    class Trimmed(msgspec.Struct):
        name: str

    frame = spark.sql("SELECT 'a' AS name, 1L AS at, 'x' AS other, 'y' AS OTHER")
    memory = mr.sinks.Memory()
    p = mr.Pipeline("names")
    p.inject("rows", frame, timestamp="at", unit="us", format=Trimmed)
    p.sink("rows", memory)
    p.run_batch(spark, progress=False)

    assert [row.name for row in memory.rows] == ["a"]


def test_the_fields_of_a_struct_column_are_both_there(spark: SparkSession) -> None:
    """And so is a column whose name has what Spark quotes names with."""
    both = "named_struct('X', 1, 'x', 2) AS both, 3 AS `a``b`"
    frame = spark.sql(f"SELECT 'a' AS name, {both}, 1L AS at")
    memory = mr.sinks.Memory()
    pipeline(frame, memory).run_batch(spark, progress=False)

    (row,) = memory.rows
    assert row.value == repr(("a", {"name": "a", "both": {"X": 1, "x": 2}, "a`b": 3}))


def parquet(folder: Path) -> None:
    pq.write_table(pa.table({"Name": ["A"], "name": ["a"], "at": [1]}), folder / "rows.parquet")


def lines(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps({"Name": "A", "name": "a", "at": 1}) + "\n")


@pytest.mark.parametrize("write", [parquet, lines])
@pytest.mark.parametrize("format", [dict, Both])
def test_files_hold_both(
    spark: SparkSession, tools: Any, tmp_path: Path, write: Any, format: Any
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder)
    source = mr.sources.Files(folder, schema="Name string, name string, at long")
    expected = repr(("a", {"Name": "A", "name": "a"} if format is dict else "A"))

    memory = mr.sinks.Memory()
    pipeline(source, memory, format).run_batch(spark, progress=False)
    assert [row.value for row in memory.rows] == [expected]

    memory = mr.sinks.Memory()
    run = tools.start(pipeline(source, memory, format))
    tools.step(run)
    run.stop()
    assert [row.value for row in memory.rows] == [expected]
