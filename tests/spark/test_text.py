"""Text that is not UTF-8, which only Spark lets into a column: a letter, or an error by name."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from millrace.model.errors import RecordRejected, RunFailed

DDL = "name string, note string, size long, at long"


class Row(msgspec.Struct):
    name: str
    note: str
    size: int


class Work(mr.Computation):
    inputs = {"rows": mr.by("name")}
    outputs = {"out": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("out", record.value.size)


def spoiled(rows: Any) -> Any:
    """Return rows in which the text that says so is the bytes ff 41."""
    bad = F.expr("CAST(X'FF41' AS STRING)")
    for column in ("name", "note"):
        rows = rows.withColumn(column, F.when(F.col(column) == "bad", bad).otherwise(F.col(column)))
    return rows


def pipeline(source: Any, sinks: dict[str, Any], kind: str) -> mr.Pipeline:
    p = mr.Pipeline("text")
    stream = p.inject(
        "rows", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Row
    )
    if kind == "computation":
        p.add(Work)
    elif kind == "step":
        stream.map(lambda row: row.size).to("out", int)
    else:
        stream.key_by("name").window(mr.FixedWindows("1 h")).count().to("out")
    for name, sink in sinks.items():
        p.sink(name, sink)
    if "letters" in sinks:
        p.dead_letter("letters")
    return p


ROWS = [("a", "x", 1, 1_000_000), ("bad", "x", 2, 1_000_000), ("a", "bad", 3, 1_000_000),
        ("b", "x", 4, 1_000_000)]  # fmt: skip


@pytest.mark.parametrize("kind", ["computation", "step", "grouping"])
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "epochs"])
def test_text_that_is_no_utf8_is_a_letter_and_the_rest_goes_on(
    spark: SparkSession, tools: Any, kind: str, batch: bool
) -> None:
    feed = tools.feed(DDL)
    sinks = {name: tools.Kept() for name in ("out", "letters")}
    feed.add(*ROWS)
    if batch:
        pipeline(spoiled(feed.bounded), sinks, kind).run_batch(spark)
    else:
        run = tools.start(pipeline(spoiled(feed.stream), sinks, kind))
        tools.step(run)
        feed.add(("a", "x", 9, 9_000_000_000))
        tools.step(run)
        tools.step(run)
    letters = sinks["letters"].values
    assert len(letters) == 2
    assert all("utf-8" in one["reason"] for one in letters)
    assert all("b'\\xffA'" in one["value"] for one in letters)
    if kind == "grouping":
        rows = sinks["out"].rows
        found = sorted((key, value["value"]) for key, value, at_us in rows if at_us < 4_000_000_000)
        assert found == [("a", 1), ("b", 1)]
    else:
        assert sorted(set(sinks["out"].values) - {9}) == [1, 4]


def test_text_that_is_no_utf8_is_refused_by_name_without_letters(
    spark: SparkSession, tools: Any
) -> None:
    feed = tools.feed(DDL)
    feed.add(*ROWS)
    p = pipeline(spoiled(feed.bounded), {"out": tools.Kept()}, "computation")
    with pytest.raises((RecordRejected, RunFailed), match="utf-8"):
        p.run_batch(spark)


def test_a_process_may_have_a_name_that_is_no_utf8(spark: SparkSession, tools: Any) -> None:
    feed, kept = (
        tools.feed("name string, note string, size long, at long, until long"),
        tools.Kept(),
    )
    feed.add(
        ("a", "x", 1, 1_000_000, None),
        ("bad", "x", 2, 2_000_000, -(1 << 63)),
        ("bad", "x", 3, 3_000_000, (1 << 63) - 1),
        ("a", "x", 4, 4_000_000, 3_600_000_000),
    )
    p = mr.Pipeline("processes")
    p.inject(
        "rows",
        spoiled(feed.stream),
        timestamp="at",
        process="name",
        low_watermark=mr.WatermarkColumn("until"),
    ).key_by("note").window(mr.FixedWindows("1 h")).sum("size").to("out")
    p.sink("out", kept)
    run = tools.start(p)
    tools.step(run)
    tools.step(run)
    assert [int(value["value"]) for value in kept.values] == [10]
