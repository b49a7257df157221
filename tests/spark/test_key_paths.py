"""Keys made by the JVM and keys made by Python: the same bytes, hashes, tasks and results."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.keys import encode_key, hash_key
from millrace.spark.plan import task_column
from millrace.spark.source import Numbering, native_rows, sources_of
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Merge, Remap, Split, remapped


class Keyed(msgspec.Struct):
    text: str
    number: int
    data: bytes


class _Counting(mr.Computation):
    outputs = {"counts": str}
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        self.produce("counts", f"{type(self.key).__name__} {self.count.get()} {record.value}")


class ByText(_Counting):
    inputs = {"rows": mr.by("text")}


class ByNumber(_Counting):
    inputs = {"rows": mr.by("number")}


class ByData(_Counting):
    inputs = {"rows": mr.by("data")}


class BySeveral(_Counting):
    inputs = {"rows": mr.by("text", "number")}


DDL = "text string, number {integer}, data binary, at timestamp"
COMPUTATIONS = [ByText, ByNumber, ByData]


def _keys(count: int) -> list[tuple[str, int, bytes]]:
    draw = random.Random(2013)
    texts = ["", "JFK", "é", "日本", "\U0001f600", "x" * 500, "\x00", "a\x00b"]
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31) - 1]
    return [
        (
            texts[n] if n < len(texts) else _text(draw),
            numbers[n] if n < len(numbers) else draw.randrange(-(2**63), 2**63),
            draw.randbytes(draw.randrange(40)),
        )
        for n in range(count)
    ]


def _text(draw: random.Random) -> str:
    return "".join(chr(draw.randrange(1, 0xD7FF)) for _ in range(draw.randrange(12)))


@pytest.mark.parametrize(
    ("tasks", "intervals", "remaps"),
    [
        (1, 1, []),
        (2, 16, [Split(15), Split(3, (3 << 60) + 7)]),
        (3, 16, [Merge(7, 8), Split(0)]),
        (5, 4, [Merge(0, 1)]),
        (7, 128, [Split(n) for n in range(60, 70)]),
        (16, 2, [Split(1)]),
    ],
)
def test_spark_gives_a_key_to_the_task_that_owns_its_interval(
    spark: SparkSession, tools: Any, tasks: int, intervals: int, remaps: list[Remap]
) -> None:
    keys = _keys(10_000)
    feed = tools.feed(DDL.format(integer="long"))
    feed.add(*((*key, 0) for key in keys))
    p = mr.Pipeline("keys")
    p.inject("rows", feed.bounded, timestamp="at", format=Keyed)
    for computation in COMPUTATIONS:
        p.add(computation)
    topology = p.build()
    (source,) = sources_of(topology, spark)
    assert source.native
    names = [computation.__name__ for computation in COMPUTATIONS]

    rows = Numbering().apply(native_rows(source, several=True))
    # One of the maps is of intervals that were split and merged.
    equal = IntervalMap.uniform(intervals)
    unequal = remapped(equal, remaps, first_id=200).intervals
    maps = {edge.number: unequal if n == 1 else equal for n, edge in enumerate(topology.edges)}
    owned = rows.withColumn("pid", task_column(maps, tasks))
    made = owned.select("pid", "edge", "hash", "key", "sequence").toArrow()
    made = made.sort_by([("edge", "ascending"), ("sequence", "ascending")])

    columns = [names.index(str(edge.computation)) for edge in topology.edges]
    expected = [encode_key(key[column]) for column in columns for key in keys]
    assert made.column("key").to_pylist() == expected
    hashes = made.column("hash").to_numpy().view(np.uint64)
    assert hashes.tolist() == [hash_key(key) for key in expected]
    edges = made.column("edge").to_numpy()
    for number, intervals_of in maps.items():
        here = edges == number
        owners = intervals_of.task_of(hashes[here], tasks)
        assert made.column("pid").to_numpy()[here].tolist() == owners.tolist()


class _Rows(mr.sources.Injector):
    schema = "text string, number long, data binary, at long"

    def processes(self) -> list[str]:
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(offset)

    def read(self, process: str, start: Any, end: Any) -> Any:
        yield from ()


@pytest.mark.parametrize("batch", [False, True])
def test_an_injectors_keys_are_in_columns_unless_it_is_read_in_a_batch(
    spark: SparkSession, *, batch: bool
) -> None:
    p = mr.Pipeline("injected")
    p.inject("rows", _Rows(), timestamp="at", format=Keyed)
    for computation in COMPUTATIONS:
        p.add(computation)
    (source,) = sources_of(p.build(), spark, batch=batch)
    assert source.native is not batch
    assert source.reason == ("a batch reads 'rows' by its injector" if batch else None)


def test_a_stream_that_needs_python_takes_others_along(spark: SparkSession, tools: Any) -> None:
    feed, p = tools.feed(DDL.format(integer="long")), mr.Pipeline("two")
    for name in ("rows", "others"):
        p.inject(name, feed.bounded, timestamp="at", format=Keyed)
    p.add(ByText)
    p.add(type("Others", (_Counting,), {
        "inputs": {"others": mr.by("text", "number")}, "outputs": {"more": str},
    }))  # fmt: skip
    assert {one.stream.name: one.reason for one in sources_of(p.build(), spark)} == {
        "rows": "'rows' is read with 'others'",
        "others": "Others takes its key from 'others' by('text', 'number')",
    }
    live = sources_of(p.build(), spark, realtime=True)
    assert {one.stream.name: one.native for one in live} == {"rows": True, "others": False}


@pytest.mark.parametrize("integer", ["tinyint", "smallint", "int", "bigint"])
def test_both_paths_give_the_same_results(spark: SparkSession, tools: Any, integer: str) -> None:
    feed = tools.feed(DDL.format(integer=integer))
    keys = enumerate(_keys(60))
    feed.add(*((text, number % 200 - 100, data[:2], at) for at, (text, number, data) in keys))

    def results(*more: type[mr.Computation]) -> dict[Any, list[Any]]:
        sink = tools.Kept()
        p = mr.Pipeline("paths")
        p.inject("rows", feed.bounded, timestamp="at", format=Keyed)
        for computation in [*COMPUTATIONS, *more]:
            p.add(computation)
        p.sink("counts", sink)
        native = all(source.native for source in sources_of(p.build(), spark))
        assert native == (not more)
        explained = str(p.explain()).splitlines()[2]
        assert explained == "sources, " + (
            "with Python before the first shuffle: "
            "BySeveral takes its key from 'rows' by('text', 'number')"
            if more
            else "by Spark alone: keys are encoded and hashed in the JVM"
        )
        p.run_batch(spark)
        return tools.by_key([row for row in sink.rows if not row[1].startswith("tuple")])

    assert results() == results(BySeveral)


def test_a_key_is_what_the_format_makes_of_the_column(spark: SparkSession, tools: Any) -> None:
    """A field that is a float stays one, though its column holds integers."""

    class Measured(msgspec.Struct):
        level: float

    class ByLevel(mr.Computation):
        inputs = {"rows": mr.by("level")}
        outputs = {"counts": str}

        def process_record(self, record: mr.Record) -> None:
            self.produce("counts", f"{self.key!r} {record.value.level!r}")

    sink = tools.Kept()
    frame = spark.createDataFrame([(1, 0)], "level long, at long")
    p = mr.Pipeline("levels")
    p.inject("rows", frame, timestamp="at", format=Measured)
    p.add(ByLevel)
    p.sink("counts", sink)
    p.run_batch(spark)
    with mr.testing.Harness(p) as h:
        h.inject("rows", [(Measured(1.0), 0)])
        expected = [output.value for output in h.outputs("counts")]

    assert sink.values == expected == ["1.0 1.0"]


def test_a_dict_is_the_same_on_both_paths(spark: SparkSession, tools: Any) -> None:
    ddl = "name string, day date, price decimal(9,2), seen timestamp, tags array<string>, at long"
    feed = tools.feed(ddl)
    feed.add(("a", dt.date(2013, 2, 8), Decimal("1.50"), 5, ["x"], 9))

    class Repr(mr.Computation):
        outputs = {"texts": str}

        def process_record(self, record: mr.Record) -> None:
            plain = {
                name: value.isoformat() if isinstance(value, dt.datetime) else value
                for name, value in record.value.items()
            }
            self.produce("texts", repr(plain))

    found = []
    for extractor in (mr.by("name"), mr.by(lambda value: value["name"])):
        sink = tools.Kept()
        p = mr.Pipeline("dicts")
        p.inject("rows", feed.bounded, timestamp="at")
        computation = Repr()
        computation.inputs = {"rows": extractor}
        p.add(computation)
        p.sink("texts", sink)
        p.run_batch(spark)
        found += sink.values

    assert found[0] == found[1]


def test_a_refused_record_is_refused_once_on_both_paths(spark: SparkSession, tools: Any) -> None:
    """Two consumers of one stream; what the format or the time refuses is one dead letter."""
    far = 9_000_000_000_000_000
    rows = [("a", 1, b"a", 1), ("b", None, b"b", 2), ("c", 3, b"c", None), ("d", 4, b"d", -1)]
    rows.append(("e", 5, b"e", far))
    frame = spark.createDataFrame(rows, "text string, number long, data binary, at long")

    def results(*more: type[mr.Computation]) -> Any:
        counts, rejects = tools.Kept(), tools.Kept()
        p = mr.Pipeline("refusals")
        p.inject("rows", frame, timestamp="at", format=Keyed)
        for computation in [ByText, ByData, *more]:
            p.add(computation)
        p.sink("counts", counts)
        p.sink("rejects", rejects)
        p.dead_letter("rejects")
        status = p.run_batch(spark)
        letters = sorted(
            (
                letter["stream"],
                letter["reason"].split(";")[0].split(" is after 20")[0],
                letter["timestamp"] or 0,
            )
            for letter in rejects.values
        )
        kept = tools.by_key([row for row in counts.rows if not row[1].startswith("tuple")])
        return kept, letters, status.injected, status.dead_letters

    native, python = results(), results(BySeveral)

    assert native == python
    assert (native[2], native[3]) == ({"rows": 1}, {"rows": 4})
    assert len(native[1]) == 4


def test_a_null_key_for_one_of_two_consumers_is_the_same_on_both_paths(
    spark: SparkSession, tools: Any
) -> None:
    class Loose(msgspec.Struct):
        text: str | None
        number: int

    rows = [("a", 1, 1), (None, 2, 2)]
    frame = spark.createDataFrame(rows, "text string, number long, at long")

    def results(*more: type[mr.Computation]) -> Any:
        counts, rejects = tools.Kept(), tools.Kept()
        p = mr.Pipeline("refusals")
        p.inject("rows", frame, timestamp="at", format=Loose)
        for computation in [ByText, ByNumber, *more]:
            p.add(computation)
        p.sink("counts", counts)
        p.sink("rejects", rejects)
        p.dead_letter("rejects")
        status = p.run_batch(spark)
        kept = tools.by_key([row for row in counts.rows if not row[1].startswith("tuple")])
        return kept, len(rejects.rows), status.injected, status.dead_letters

    native, python = results(), results(BySeveral)

    assert native == python


class Total(msgspec.Struct):
    number: int


def test_a_key_column_outside_of_the_format_is_treated_alike(
    spark: SparkSession, tools: Any
) -> None:
    """By both paths, or by none: a second consumer must not break the first."""
    rows = [("a", 1, 1), ("b", 2, 2)]
    frame = spark.createDataFrame(rows, "text string, number long, at long")

    def results(*more: type[mr.Computation]) -> Any:
        counts = tools.Kept()
        p = mr.Pipeline("outside")
        p.inject("rows", frame, timestamp="at", format=Total)
        for computation in [ByText, *more]:
            p.add(computation)
        p.sink("counts", counts)
        try:
            p.run_batch(spark)
        except mr.MillraceError:
            return "refused"
        return [row for row in sorted(counts.rows) if row[0] in ("a", "b")]

    class ByNumberFunction(_Counting):
        inputs = {"rows": mr.by(lambda total: total.number)}

    assert results() == results(ByNumberFunction)


@dataclasses.dataclass
class Point:
    x: int
    y: float


def test_the_key_of_a_dataclass(spark: SparkSession, tools: Any) -> None:
    class ByX(mr.Computation):
        inputs = {"points": mr.by("x")}
        outputs = {"out": Point}

        def process_record(self, record: mr.Record) -> None:
            assert isinstance(record.value, Point)
            self.produce("out", Point(self.key + 1, record.value.y * 2))

    sink = tools.Kept()
    p = mr.Pipeline("points")
    p.inject(
        "points",
        spark.createDataFrame([(3, 1.5, 0)], "x int, y double, at long"),
        timestamp="at",
        format=Point,
    )
    p.add(ByX)
    p.sink("out", sink)
    p.run_batch(spark)

    assert sink.rows == [("3", {"x": 4, "y": 3.0}, 0)]
