"""Values of columns: one Python value, in every session's zone, as the coder reads it back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace.model.coder import MsgpackCoder
from millrace.runtime.values import ValueReader, display_value

AT = dt.datetime(2026, 11, 27, 8, 30, tzinfo=dt.UTC)
NEW_YORK = pa.timestamp("us", "America/New_York")


def read(column, format):
    return ValueReader("rows", format, ("v",)).read_columns({"v": column}, len(column))


COLUMNS = [
    pa.array([AT, None], NEW_YORK),
    pa.array([[AT, None], None], pa.list_(NEW_YORK)),
    pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int32())),
    pa.array([[(AT, [AT])]], pa.map_(NEW_YORK, pa.list_(NEW_YORK))),
    pa.array(
        [{"at": AT, "by": [("k", {"d": dt.date(2026, 1, 1)})]}],
        pa.struct({"at": NEW_YORK, "by": pa.map_(pa.string(), pa.struct({"d": pa.date32()}))}),
    ),
    pa.array([Decimal("1.50"), None]),
    pa.array([dt.date(2026, 1, 1), None]),
    pa.array([b"x", None]),
    pa.array([dt.time(1, 2)]),
    pa.array([dt.timedelta(seconds=1)]),
]


class Row(msgspec.Struct):
    v: Any


@pytest.mark.parametrize("format", [Any, dict, Row])
@pytest.mark.parametrize("column", COLUMNS, ids=[str(column.type) for column in COLUMNS])
def test_an_untyped_value_is_what_its_coder_reads_back(column, format):
    found = read(column, format)
    assert not found.refused
    coder = MsgpackCoder(format)
    back = [coder.decode(coder.encode(value)) for value in found.values]
    assert found.values == back
    assert list(map(repr, found.values)) == list(map(repr, back))


@pytest.mark.parametrize(
    ("kind", "value", "format", "made"),
    [
        (NEW_YORK, AT, dt.datetime, AT),
        (NEW_YORK, AT, int, 1_795_768_200_000_000),
        (NEW_YORK, AT, int | None, 1_795_768_200_000_000),
        (pa.list_(NEW_YORK), [AT], list[dt.datetime], [AT]),
        (pa.list_(NEW_YORK), [AT], tuple[dt.datetime, ...], (AT,)),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], dict[str, int], {"a": 1}),
        (pa.map_(pa.int64(), pa.string()), [(1, None)], dict[int, str | None], {1: None}),
        (pa.struct({"_1": pa.int64(), "_2": pa.string()}), (1, "a"), tuple[int, str], (1, "a")),
        (
            pa.map_(pa.string(), pa.list_(pa.struct({"_1": pa.int64(), "_2": NEW_YORK}))),
            [("a", [(1, AT)])],
            dict[str, list[tuple[int, dt.datetime]]],
            {"a": [(1, AT)]},
        ),
        (pa.decimal128(20, 0), Decimal(2**64 - 1), int, 2**64 - 1),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal, Decimal("1.50")),
    ],
)
def test_a_typed_value_is_of_its_type(kind, value, format, made):
    found = read(pa.array([value], kind), format)
    assert (found.values, found.refused) == ([made], {})
    assert repr(found.values) == repr([made])


def test_only_dict_itself_is_a_whole_row():
    arrays = {"a": pa.array([1]), "m": pa.array([[("k", 2)]], pa.map_(pa.string(), pa.int64()))}
    reader = ValueReader("rows", dict, ("a", "m"))
    assert reader.read_columns(arrays, 1).values == [{"a": 1, "m": {"k": 2}}]


BEYOND = pa.array([0, 1 << 62, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
INVALID = pa.StringArray.from_buffers(
    3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")
)
TWICE = pa.array([[("a", 1)], [("b", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize("column", [BEYOND, INVALID, TWICE], ids=["instant", "text", "map"])
@pytest.mark.parametrize("format", [Any, dict, Row])
def test_a_value_that_python_cannot_hold_is_refused_alone_and_by_name(column, format):
    found = read(column, format)
    assert list(found.refused) == [1]
    assert "stream 'rows': column 'v' (" in found.refused[1]
    assert found.values[1] is None
    assert None not in (found.values[0], found.values[2])
    struct = pa.StructArray.from_arrays([column], ["v"])
    assert ValueReader("rows", format, ("v",)).accepted(struct).tolist() == [
        True,
        column is INVALID,  # what Spark calls text is looked at where it is read
        True,
    ]
    assert display_value(struct, 1)["v"]


@dataclass
class Positive:
    v: int

    def __post_init__(self):
        if self.v < 0:
            raise RuntimeError("below zero")


def test_a_value_that_its_class_refuses_is_refused_alone():
    found = read(pa.array([1, -1]), Positive)
    assert found.values == [Positive(1), None]
    assert "below zero" in found.refused[1]
