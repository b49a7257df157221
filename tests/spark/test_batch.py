"""A batch is the streaming run of the same pipeline over input that has an end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr


class Row(msgspec.Struct):
    name: str
    size: int


class Windows(mr.Computation):
    inputs = {"rows": mr.by("name")}
    outputs = {"sums": int, "order": str}
    # A user's names are the user's: compilers ask an operator, not this class.
    settings = mr.MapState(int)
    bound = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.value.size < 0:
            raise ValueError("negative")
        window = record.timestamp // 10 * 10
        self.settings[window] = self.settings.get(window, 0) + record.value.size
        self.set_timer(window, at=window + 10)
        self.set_timer("end", at=self.wall_time, domain=mr.WALL_TIME)
        if record.timestamp < self.bound.get(0) or record.late:
            self.produce("order", f"{record.timestamp} after {self.bound.get()}")
        self.bound.set(record.timestamp)

    def process_timer(self, timer: mr.Timer) -> None:
        if timer.domain == mr.WALL_TIME:
            self.produce("order", "wall", timestamp=1)
        else:
            self.produce("sums", self.settings.pop(timer.tag), timestamp=timer.at - 1)


class Tops(mr.Computation):
    inputs = {"sums": mr.by(lambda total: total % 3)}
    outputs = {"tops": int}
    columnar = mr.CombiningState(int, max)

    def process_record(self, record: mr.Record) -> None:
        self.columnar.add(record.value)
        self.set_timer("top", at=mr.MAX_TIMESTAMP)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("tops", self.columnar.get(), timestamp=3)


class Shares(mr.Computation):
    """What each row is of the last sum of its name; and how many sums there were of all names."""

    inputs = {"rows": mr.by("name")}
    outputs = {"shares": str}
    sums = mr.SideInput("sums")

    def process_start(self) -> None:
        self.produce("shares", "begun", timestamp=0)

    def process_record(self, record: mr.Record) -> None:
        last, names = self.sums.get(self.key), len(self.sums)
        self.produce("shares", f"{record.value.size} of {last}, {names} names")


DDL = "name string, size long, at long"
STREAMS = ("sums", "tops", "order", "shares", "rejects")


def _pipeline(source: Any, sinks: dict[str, Any]) -> mr.Pipeline:
    p = mr.Pipeline("batch")
    p.inject("rows", source, timestamp="at", low_watermark=mr.BoundedDelay("1 h"), format=Row)
    p.add(Windows)
    p.add(Tops)
    if "shares" in sinks:
        p.add(Shares, keys=["k1", "nobody"])
    p.dead_letter("rejects")
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


class Where(mr.Computation):
    inputs = {"rows": mr.by("id")}
    outputs = {"tasks": int}

    def process_record(self, record: mr.Record) -> None:
        from pyspark import TaskContext

        self.produce("tasks", TaskContext.get().partitionId())


def test_a_batch_has_as_many_tasks_as_the_session_runs_at_once(
    spark: SparkSession, tools: Any
) -> None:
    sinks = [tools.Kept(), tools.Kept()]
    spark.conf.set("spark.sql.shuffle.partitions", "9")
    try:
        for sink, options in zip(sinks, ({}, {"tasks": 4}), strict=True):
            p = mr.Pipeline("where")
            rows = spark.range(200).selectExpr("id", "id AS at")
            p.inject("rows", rows, timestamp="at")
            p.add(Where)
            p.sink("tasks", sink)
            p.run_batch(spark, **options)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert [set(sink.values) for sink in sinks] == [{0, 1}, {0, 1, 2, 3}]


def test_a_batch_gives_what_a_stream_gives(spark: SparkSession, tools: Any) -> None:
    feed = tools.feed(DDL)
    for turn in range(2):
        feed.add(*((f"k{n % 23}", n, (n * 7919 + turn) % 200) for n in range(150)))
    feed.add(("bad", -1, 5), ("k1", None, 5), ("k2", 3, None))
    streamed = {name: tools.Kept() for name in STREAMS}
    batched = {name: tools.Kept() for name in STREAMS}

    streaming = tools.run(_pipeline(feed.stream, streamed))
    before = {name: spark.conf.get(name) for name in ("spark.sql.adaptive.enabled", *SETTINGS)}
    status = _pipeline(feed.bounded, batched).run_batch(spark, tasks=3)

    assert {name: spark.conf.get(name) for name in before} == before
    for name in ("sums", "tops", "shares"):
        found, expected = tools.by_key(batched[name].rows), tools.by_key(streamed[name].rows)
        assert {k: sorted(v) for k, v in found.items()} == {
            k: sorted(v) for k, v in expected.items()
        }
        assert found
    shares = batched["shares"].values
    assert len(shares) == 301 + 2
    assert {share.split(", ")[-1] for share in shares} >= {"begun", "0 names", "23 names"}
    # Timers fire in order of time, and records come in it; nothing is late.
    for rows in tools.by_key(batched["sums"].rows).values():
        assert [at for _, at in rows] == sorted(at for _, at in rows)
    assert set(batched["order"].values) == {"wall"}
    # A name that only had a refused record has no state, and so no timer.
    assert len(batched["order"].rows) == 23
    reasons = sorted(letter["reason"] for letter in batched["rejects"].values)
    assert reasons == sorted(letter["reason"] for letter in streamed["rejects"].values)
    assert len(reasons) == 3
    assert status.state == "drained"
    assert status.injected == streaming.injected == {"rows": 301, "Shares.keys": 2}
    assert status.dead_letters == streaming.dead_letters == {"rows": 2, "Windows": 1}
    for counters in (status.counters, streaming.counters):
        assert (counters["Windows"].records, counters["Windows"].dead_letters) == (301, 1)
    names = ("Windows", "Tops", "Shares")
    assert status.low_watermarks == dict.fromkeys(names, mr.MAX_TIMESTAMP)
    assert status.late == 0


SETTINGS = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.shuffle.partitions")


def test_empty_input(spark: SparkSession, tools: Any, caplog: pytest.LogCaptureFixture) -> None:
    sinks = {name: tools.Kept() for name in STREAMS if name != "shares"}

    with caplog.at_level(logging.INFO, logger="millrace.progress"):
        status = _pipeline(tools.feed(DDL).bounded, sinks).run_batch(spark)

    assert caplog.messages[-1] == (
        f"{status.pipeline}: drained, epoch 0, 0 records, low watermark at the end of time"
    )
    assert all(sink.rows == [] for sink in sinks.values())
    assert (status.state, status.injected.get("rows", 0)) == ("drained", 0)


def test_a_stream_that_goes_to_a_sink_alone(spark: SparkSession, tools: Any) -> None:
    kept, p = tools.Kept(), mr.Pipeline("copied")
    rows = spark.createDataFrame([("a", 1), ("b", 2)], "name string, at long")
    p.inject("rows", rows.select("at", F.col("name").alias("value")), timestamp="at", format=str)
    p.sink("rows", kept)

    assert p.run_batch(spark).injected == {"rows": 2}
    assert sorted(kept.values) == ["a", "b"]


def test_one_giant_key(spark: SparkSession, tools: Any) -> None:
    sink = tools.Kept()
    source = spark.range(250_000).select(
        F.expr("if(id % 1000 = 0, concat('k', id), 'giant')").alias("name"),
        F.lit(1).cast("long").alias("size"),
        (F.lit(1_000_000) - F.col("id")).alias("at"),
    )

    class Count(mr.Computation):
        inputs = {"rows": mr.by("name")}
        outputs = {"counts": int}
        count = mr.CombiningState(int)
        last = mr.CombiningState(int, max)

        def process_record(self, record: mr.Record) -> None:
            assert record.timestamp >= self.last.get(0)
            self.last.add(record.timestamp)
            self.count.add(1)
            self.set_timer("end", at=mr.MAX_TIMESTAMP)

        def process_timer(self, timer: mr.Timer) -> None:
            self.produce("counts", self.count.get(), timestamp=0)

    p = mr.Pipeline("giant")
    p.inject("rows", source, timestamp="at", format=Row)
    p.add(Count)
    p.sink("counts", sink)
    p.run_batch(spark, tasks=5)

    counts = {key: value for key, value, _ in sink.rows}
    assert len(counts) == len(sink.rows) == 251
    assert counts.pop("giant") == 249_750
    assert set(counts.values()) == {1}


def test_a_second_batch_does_not_hide_behind_the_first(
    spark: SparkSession, tools: Any, tmp_path: Path
) -> None:
    """The same directory again is refused, and has what the first batch wrote."""
    out = tmp_path / "out"
    first, second = (spark.createDataFrame([("a", size, 5)], DDL) for size in (1, 2))
    _pipeline(first, {"sums": mr.sinks.Parquet(out)}).run_batch(spark)

    with pytest.raises(
        mr.MillraceError, match=r"the output of another checkpoint .* earlier batch"
    ):
        _pipeline(second, {"sums": mr.sinks.Parquet(out)}).run_batch(spark)

    assert [row.value for row in spark.read.parquet(str(out)).collect()] == [1]


def test_the_sinks_of_a_failed_batch_have_nothing(
    spark: SparkSession, tools: Any, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tools.Kept()
    frame = spark.createDataFrame([("a", 1, 5), ("a", -1, 6)], DDL)
    p = _pipeline(frame, {"sums": mr.sinks.Parquet(out), "order": kept})
    p.dead_letters = None
    before = spark.conf.get("spark.sql.adaptive.enabled")

    with pytest.raises(mr.MillraceError, match=r"(?s)ValueError: negative.*no part of it"):
        p.run_batch(spark)

    assert kept.rows == []
    assert not list(out.glob("epoch=[0-9]*"))  # epoch=-1 has the schema, and no rows
    assert spark.conf.get("spark.sql.adaptive.enabled") == before
