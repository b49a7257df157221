"""Schemas as Spark writes them, and rows and columns that have to be of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import millrace as mr
from millrace.injectors.columns import arrow_schema, batches_of, column_names, conformed
from millrace.injectors.refusals import column_of, refusals_of, without_refusals
from millrace.model.errors import PipelineError, RecordRejected


def test_types_are_those_of_spark():
    ddl = """a string NOT NULL, b map<string, array<int>>, c struct<x: int, Y: decimal(5,2)>,
             `d e` long, f decimal, g: timestamp COMMENT 'x', h varchar(5)"""
    assert arrow_schema(ddl) == pa.schema(
        {
            "a": pa.string(),
            "b": pa.map_(pa.string(), pa.list_(pa.int32())),
            "c": pa.struct({"x": pa.int32(), "Y": pa.decimal128(5, 2)}),
            "d e": pa.int64(),
            "f": pa.decimal128(10, 0),
            "g": pa.timestamp("us", "UTC"),
            "h": pa.string(),
        }
    )
    assert column_names(ddl) == ["a", "b", "c", "d e", "f", "g", "h"]


@pytest.mark.parametrize(
    "kind",
    ["text", "interval", "array", "", "map<string>", "decimal(39)", "decimal(5, 6)", "dec(x)"],
)
def test_a_type_that_is_none_is_refused(kind):
    with pytest.raises(PipelineError, match="is no type of an injector's column"):
        arrow_schema(f"a {kind}")


@pytest.mark.parametrize("ddl", ["a int, b int, a string", "s struct<a: int, a: string>"])
def test_a_name_that_is_declared_twice_is_refused(ddl):
    with pytest.raises(PipelineError, match="declares 'a' 2 times"):
        arrow_schema(ddl)


def test_rows_become_batches():
    at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    rows = [("a", 1, Decimal("1.50"), at), (None, None, None, None), (True, 2, 3, 5)]
    (batch,) = batches_of(rows, "a string, n int, d decimal(5, 2), at timestamp", "here")
    assert batch.column("a").to_pylist() == ["a", None, "true"]
    assert batch.column("at").cast("int64").to_pylist() == [1767218400_000000, None, 5]
    assert list(batches_of([], "a string", "here")) == []
    assert [b.num_rows for b in batches_of([(1,)] * 25_000, "a int", "")] == [10_000, 10_000, 5_000]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1, 2), r"here, row 1: it gave a row of 2 values, and its schema has the 1 columns"),
        (("x",), r"here, row 1: column 'at' has values that are not timestamp\[us, tz=UTC\]"),
        ({"at": 5}, "here, row 1: it gave a dict, and a row is a tuple"),
        (None, "here, row 1: it gave a NoneType"),
        ((dt.datetime(2026, 1, 1),), "without a time zone, so it names no instant"),
    ],
)
def test_a_row_that_is_not_of_the_schema_is_refused_beside_the_others(row, words):
    (batch,) = batches_of([(5,), row, (7,)], "at timestamp", "here")
    assert batch.column("at").cast("int64").to_pylist() == [5, None, 7]
    assert list(refusals_of(column_of(batch))) == [1]
    with pytest.raises(RecordRejected, match=words):
        without_refusals(batch)


def test_columns_are_taken_by_name_and_types_that_say_the_same_converted():
    given = pa.RecordBatch.from_pydict(
        {
            "at": pa.array([1_999], pa.timestamp("ns", "Europe/Paris")),
            "more": [1],
            "n": pa.array([7], pa.int16()),
            "name": pa.array(["x"]).dictionary_encode(),
        }
    )
    ddl = "name string, n long, at timestamp"
    made = conformed(given, ddl, "here")
    assert made.schema == arrow_schema(ddl)
    assert [column[0].as_py() for column in made.columns[:2]] == ["x", 7]
    assert made.column("at").cast("int64").to_pylist() == [1]
    assert conformed(made, ddl, "here") is made


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": [1]}, r"here has no column 'at', which the schema .* declares. It has \['n'\]"),
        ({"n": ["x"], "at": [1]}, r"here: column 'n' is string, and the schema declares int32"),
        ({"n": [1], "at": pa.array([1], pa.timestamp("us"))}, "only one of the two has a time z"),
    ],
)
def test_columns_that_are_not_of_the_schema_are_an_error(given, words):
    with pytest.raises(PipelineError, match=words):
        conformed(pa.RecordBatch.from_pydict(given), "n int, at timestamp", "here")


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_without_a_zone_can_be_read_as_text(unit):
    given = pa.record_batch([pa.array([-1, None], pa.timestamp(unit))], ["at"])
    fraction = {"ms": "999000", "us": "999999", "ns": "999999"}[unit]
    text = [f"1969-12-31 23:59:59.{fraction}", None]
    assert conformed(given, "at string", "here").column("at").to_pylist() == text
    with pytest.raises(PipelineError, match="names no instant; it can be declared as string"):
        conformed(given, "at timestamp", "here")


def test_a_file_with_several_columns_of_one_name_is_an_error():
    batch = pa.record_batch([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(PipelineError, match=r"rows\.parquet has several columns 'a'"):
        conformed(batch, "a long", "rows.parquet")
    both = pa.record_batch([pa.array([1]), pa.array([2])], ["a", "A"])
    assert conformed(both, "A long", "rows.parquet").to_pydict() == {"A": [2]}


def test_a_value_that_a_declared_type_cannot_hold_is_refused_beside_the_others():
    at = pa.array([1, 2, 3, 4], pa.timestamp("us", "UTC"))
    given = pa.RecordBatch.from_pydict({"n": [1, 1 << 40, None, -(1 << 40)], "at": at})
    made = conformed(given, "n int, at timestamp", "here")
    assert made.column("n").to_pylist() == [1, None, None, None]
    assert made.column("at").cast("int64").to_pylist() == [1, None, 3, None]
    refused = refusals_of(column_of(made))
    assert list(refused) == [1, 3]
    assert refused[1].reason.startswith("column 'n' is int64, and the schema declares int32: Int")
    assert refused[1].place == "here"
    assert refused[1].raw.startswith(b'{"n":1099511627776,"at":"1970-01-01T00:00:00.000002')
    assert conformed(made, "n int, at timestamp", "there").equals(made)


def test_an_injector_reads_rows_or_columns():
    class Neither(mr.sources.Injector):
        schema = "n long"

        def processes(self):
            return []

        def advance(self, process, offset):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"Neither cannot be made: .* defines neither read"):
        Neither()

    class Rows(Neither):
        def read(self, process, start, end):
            return [(1,), (2,)]

    class Columns(Neither):
        def read_arrow(self, process, start, end):
            yield pa.RecordBatch.from_pydict({"n": [1, 2]})

    assert list(Rows().read("", 0, 1)) == list(Columns().read("", 0, 1)) == [(1,), (2,)]
    (made,), (given,) = Rows().read_arrow("", 0, 1), Columns().read_arrow("", 0, 1)
    assert made.equals(given)
