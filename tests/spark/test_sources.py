"""Sources: formats, event times, several injectors, and what is refused before anything runs."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from millrace.model.errors import PipelineError, RunFailed


class Seen(mr.Computation):
    """Says what value it got, of which type, and when."""

    inputs = {"rows": mr.by("name")}
    outputs = {"seen": str}

    def process_record(self, record: mr.Record) -> None:
        value = record.value
        if isinstance(value, msgspec.Struct):
            value = (type(value).__name__, msgspec.structs.asdict(value))
        self.produce("seen", repr(value))


class SeenScalar(Seen):
    inputs = {"rows": mr.by(lambda value: value)}


class Full(msgspec.Struct):
    name: str
    size: int
    ratio: float | None
    at: int
    when: dt.datetime


class Trimmed(msgspec.Struct):
    name: str


@dataclass
class Data:
    name: str
    size: int | None


ROW = ("a", 7, None, 1_500_000)
DDL = "name string, size long, ratio double, at timestamp"


def _seen(
    spark: SparkSession, tools: Any, format: Any, frame: Any, computation: Any = Seen
) -> list[tuple[Any, Any, int]]:
    sink = tools.Kept()
    p = mr.Pipeline("sources")
    p.inject("rows", frame, timestamp="at", format=format)
    p.add(computation)
    p.sink("seen", sink)
    p.run_batch(spark)
    return sink.rows


def test_formats(spark: SparkSession, tools: Any) -> None:
    feed = tools.feed(DDL)
    feed.add(ROW)
    frame = feed.bounded
    when = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)

    (struct,) = _seen(spark, tools, Full, frame.withColumn("when", F.col("at")))
    assert struct[2] == 1_500_000
    name, fields = eval(struct[1], {"datetime": dt, "zoneinfo": __import__("zoneinfo")})
    assert name == "Full"
    assert fields == {"name": "a", "size": 7, "ratio": None, "at": 1_500_000, "when": when}
    assert _seen(spark, tools, Trimmed, frame) == [("a", "('Trimmed', {'name': 'a'})", 1_500_000)]
    assert _seen(spark, tools, Data, frame) == [("a", "Data(name='a', size=7)", 1_500_000)]
    assert _seen(spark, tools, Any, frame) == [
        ("a", "{'name': 'a', 'size': 7, 'ratio': None}", 1_500_000)
    ]
    assert _seen(spark, tools, int, frame.select("size", "at"), SeenScalar) == [
        ("7", "7", 1_500_000)
    ]


def test_event_times_as_timestamps_and_as_integers(spark: SparkSession, tools: Any) -> None:
    feed = tools.feed("name string, at timestamp")
    feed.add(("a", 1_500_001))
    frame = feed.bounded
    for times in (frame, frame.withColumn("at", F.unix_micros("at"))):
        assert _seen(spark, tools, Trimmed, times)[0][2] == 1_500_001
    integers = frame.withColumn("at", F.lit(2_000_000_000).cast("int"))
    assert _seen(spark, tools, Trimmed, integers)[0][2] == 2_000_000_000


class ByFunction(Seen):
    inputs = {"rows": mr.by(lambda value: value["name"])}


@pytest.mark.parametrize("computation", [Seen, ByFunction])
def test_integers_of_a_unit(spark: SparkSession, tools: Any, computation: Any) -> None:
    # 2023, and what is out of all range in every unit but the one it is in.
    numbers = {"s": 1_700_000_000, "ms": 1_700_000_000_123, "ns": 1_700_000_000_123_456_789}
    for unit, number in numbers.items():
        rows, letters = tools.Kept(), tools.Kept()
        frame = spark.createDataFrame(
            [("a", number), ("b", 2**62), ("c", -1), ("d", None)], "name string, at long"
        )
        p = mr.Pipeline("units")
        p.inject("rows", frame, timestamp="at", unit=unit)
        p.add(computation, name="Seen")
        p.dead_letter("letters")
        p.sink("seen", rows)
        p.sink("letters", letters)
        p.run_batch(spark)
        us = {"s": number * 10**6, "ms": number * 10**3, "ns": number // 1000}[unit]
        assert [at for _, _, at in rows.rows] == [us]
        reasons = sorted(letter["reason"] for letter in letters.values)
        # The largest number of nanoseconds is in 2116.
        far = "too far past the wall clock" if unit == "ns" else "after 2262"
        for reason, words in zip(reasons, ("before 1970", far, "is null"), strict=True):
            assert words in reason


@pytest.mark.parametrize("computation", [Seen, ByFunction])
def test_milliseconds_are_not_taken_for_microseconds(
    spark: SparkSession, tools: Any, computation: Any
) -> None:
    rows, letters = tools.Kept(), tools.Kept()
    frame = spark.createDataFrame(
        [("a", 1_700_000_000_000), ("b", 1_700_000_000), ("c", 1_700_000_000_000_000), ("d", 9)],
        "name string, at long",
    )
    p = mr.Pipeline("units")
    p.inject("rows", frame, timestamp="at")
    p.add(computation, name="Seen")
    p.dead_letter("letters")
    p.sink("seen", rows)
    p.sink("letters", letters)
    p.run_batch(spark)
    assert sorted(at for _, _, at in rows.rows) == [9, 1_700_000_000_000_000]
    found = sorted(letter["reason"] for letter in letters.values)
    assert 'inject(..., unit="s")' in found[0]
    assert 'inject(..., unit="ms")' in found[1]


class Timed(msgspec.Struct):
    name: str
    at: int


class Typed(Seen):
    inputs = {"rows": mr.by("name")}


class TypedByFunction(Seen):
    inputs = {"rows": mr.by(lambda value: value.name)}


@pytest.mark.parametrize("computation", [Typed, TypedByFunction])
def test_a_null_time_is_called_so_where_the_column_is_a_field_too(
    spark: SparkSession, tools: Any, computation: Any
) -> None:
    frame = spark.createDataFrame([("a", None)], "name string, at timestamp")
    p = mr.Pipeline("nulls")
    p.inject("rows", frame, timestamp="at", format=Timed)
    p.add(computation, name="Seen")
    with pytest.raises(RunFailed) as caught:
        p.run_batch(spark)
    for words in ("the timestamp is null", "column 'at'", "stream 'rows'", "'a'", "p.dead_letter"):
        assert words in str(caught.value)
    assert "Expected `int`" not in str(caught.value)


def test_two_injected_sources_of_different_columns(tools: Any) -> None:
    class Both(mr.Computation):
        inputs = {"left": mr.by("name"), "right": mr.by("who")}
        outputs = {"out": str}
        lefts = mr.CombiningState(int)

        def process_record(self, record: mr.Record) -> None:
            if record.stream == "left":
                self.lefts.add(record.value["size"])
                self.set_timer("t", at=record.timestamp)
            else:
                self.produce("out", f"right {record.value['flag']}")

        def process_timer(self, timer: mr.Timer) -> None:
            self.produce("out", f"left {self.lefts.get()}")

    left = tools.feed("name string, size long, at timestamp")
    right = tools.feed("who string, at long, flag boolean")
    sink = tools.Kept()
    p = mr.Pipeline("two")
    delay = mr.BoundedDelay(0)
    p.inject("left", left.stream, timestamp="at", low_watermark=delay)
    p.inject("right", right.stream, timestamp="at", low_watermark=delay)
    p.add(Both)
    p.sink("out", sink)
    run = tools.start(p)
    left.add(("a", 1, 100), ("b", 2, 200))
    tools.step(run)
    assert sink.rows == []  # the right injector has published nothing

    right.add(("a", 150, True))
    tools.step(run)
    assert sink.rows == [("a", "right True", 150), ("a", "left 1", 100)]
    assert run.status().low_watermarks == {"Both": 150}
    assert run.status().newest == {"left": 200, "right": 150}

    status = tools.finish(run)
    assert sink.rows[2:] == [("b", "left 2", 200)]
    assert status.injected == {"left": 2, "right": 1}


class Needy(msgspec.Struct):
    name: str
    missing: int


class Numbered(msgspec.Struct):
    name: int
    size: int


REFUSED = {
    "a time without a zone": (
        lambda df: df.withColumn("at", F.col("at").cast("timestamp_ntz")),
        {},
        r"'at' is timestamp_ntz: it has no time zone",
    ),
    "a time as text": (
        lambda df: df.withColumn("at", F.col("at").cast("string")),
        {},
        r"'at' is string: parse it first",
    ),
    "a unit of a timestamp": (lambda df: df, {"unit": "ms"}, "is a timestamp.*Leave unit='ms' out"),
    "no such time": (lambda df: df.drop("at"), {}, r"no column 'at'.*\['name', 'size', 'ratio'\]"),
    "a missing column": (lambda df: df, {"format": Needy}, r"needs columns \['missing'\]"),
    "no policy": (lambda df: df, {"low_watermark": None}, r"no low-watermark policy.*BoundedDelay"),
    "a column of another type": (
        lambda df: df,
        {"format": Numbered},
        r"column 'name' is string, and Numbered\.name is int",
    ),
    "several columns for one value": (
        lambda df: df,
        {"format": str},
        r"a single value, but its source has columns",
    ),
    "no such key": (lambda df: df.drop("name"), {}, r"key from field 'name'.*does not have"),
    "no frame": (lambda _: [1, 2], {}, r"its source is list; expected a Spark DataFrame"),
    "no source": (lambda _: None, {}, r"'rows' has no source"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_cannot_work_is_refused_before_anything_is_written(
    spark: SparkSession, tools: Any, tmp_path: Path, case: str
) -> None:
    change, options, message = REFUSED[case]
    source = change(tools.feed(DDL).stream)
    p = mr.Pipeline("refused")
    p.inject("rows", source, timestamp="at", **{"low_watermark": mr.BoundedDelay("1 s"), **options})
    # Of a single value a field is no key, which is said before a source is looked at.
    p.add(SeenScalar if options.get("format") is str else Seen)

    with pytest.raises(PipelineError, match=message):
        tools.start(p)

    assert not Path(tools.checkpoint).exists()


def test_bounded_and_streaming_sources_are_not_mixed_up(spark: SparkSession, tools: Any) -> None:
    feed = tools.feed(DDL)

    def pipeline(frame: Any) -> mr.Pipeline:
        p = mr.Pipeline("refused")
        p.inject("rows", frame, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
        p.add(Seen)
        return p

    with pytest.raises(PipelineError, match=r"\['rows'\] have bounded sources.*run_batch"):
        tools.start(pipeline(feed.bounded))
    with pytest.raises(PipelineError, match=r"\['rows'\] have streaming sources.*start"):
        pipeline(feed.stream).run_batch(spark)
    assert not Path(tools.checkpoint).exists()
