"""What KafkaSink writes, its type reads back to the same value; values are drawn, no broker."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.connectors.kafka.sink import encode_rows
from millrace.model.errors import CoderError
from millrace.runtime.values import SinkColumns


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blü\0"


class Point(msgspec.Struct):
    x: float
    name: str | None
    data: bytes


class Line(msgspec.Struct):
    number: int
    mean: float
    text: str
    data: bytes
    day: dt.date
    at: dt.datetime
    maybe: float | None
    price: Decimal
    id: uuid.UUID
    colour: Colour
    means: list[float]
    blobs: list[bytes]
    days: list[dt.date]
    names: set[str]
    pair: tuple[int, float]
    counts: dict[str, int]
    ratios: dict[str, float | None]
    point: Point
    points: list[Point]
    by_name: dict[str, Point]
    nothing: None
    any: Any


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats()
#: What a value may have within JSON text, as JSON has it.
FINITE = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
POINTS = st.builds(Point, FLOATS, st.none() | TEXT, st.binary())
JSON = st.recursive(
    st.none() | st.booleans() | FINITE | TEXT | WHOLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
#: By the name of a field; the order is that of the class.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "number": WHOLE,
    "mean": FLOATS,
    "text": TEXT,
    "data": st.binary(),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.just(dt.UTC)),
    "maybe": st.none() | FLOATS,
    "price": st.decimals(-(10**19), 10**19, places=18),  # as many as its column has
    "id": st.uuids(),
    "colour": st.sampled_from(Colour),
    "means": st.lists(FLOATS, max_size=3),
    "blobs": st.lists(st.binary(), max_size=3),
    "days": st.lists(st.dates(), max_size=3),
    "names": st.sets(TEXT, max_size=3),
    "pair": st.tuples(WHOLE, FINITE),
    "counts": st.dictionaries(TEXT, WHOLE, max_size=3),
    "ratios": st.dictionaries(TEXT, st.none() | FINITE, max_size=3),
    "point": POINTS,
    "points": st.lists(POINTS, max_size=3),
    "by_name": st.dictionaries(TEXT, st.builds(Point, FINITE, st.none() | TEXT, st.binary())),
    "nothing": st.none(),
    "any": JSON,
}
LINES = st.builds(Line, **FIELDS)


def same(value: Any) -> str:
    """Return a text that tells values apart, -0.0 and 0.0 too; all NaN are one."""
    return repr(msgspec.to_builtins(value, order="deterministic"))


def messages(format: Any, *values: Any) -> list[bytes | None]:
    """Return what the sink sends of records with some values."""
    coder = mr.coders.Msgpack(format)
    columns = SinkColumns(format, coder, bytes)
    count = len(values)
    records = columns.array(
        [coder.encode(value) for value in values],
        [None] * count,
        pa.array([0] * count, pa.int64()),
        pa.array([bytes(16)] * count, pa.binary()),
    )
    rows = pa.RecordBatch.from_struct_array(records)
    return encode_rows(rows.drop_columns(["_key", "_timestamp", "_id"]))


def read(format: Any, data: bytes | None) -> Any:
    """Return a message's value as its type has it, texts of numbers among them."""
    assert data is not None
    return msgspec.json.decode(data, type=format, strict=False)


@given(st.lists(LINES, min_size=1, max_size=2))
@settings(max_examples=60)
def test_a_record_comes_back(lines: list[Line]) -> None:
    for line, data in zip(lines, messages(Line, *lines), strict=True):
        assert same(read(Line, data)) == same(line)


@given(FLOATS)
@example(float("nan"))
@example(float("inf"))
@example(float("-inf"))
@example(-0.0)
def test_a_number_comes_back(number: float) -> None:
    alone, within = messages(float, number) + messages(list[float], [number])

    assert same(read(dict[str, float], alone)) == same({"value": number})
    assert same(read(dict[str, list[float]], within)) == same({"value": [number]})


@given(st.lists(st.none() | TEXT))
def test_text_is_sent_as_it_is_and_none_as_a_null_message(texts: list[str | None]) -> None:
    assert messages(str | None, *texts) == [
        None if text is None else text.encode() for text in texts
    ]


@given(st.lists(st.none() | st.binary()))
def test_bytes_are_sent_as_they_are_and_none_as_a_null_message(blobs: list[bytes | None]) -> None:
    assert messages(bytes | None, *blobs) == blobs


def test_a_value_without_a_type_of_arrow_s_is_json_and_no_text_of_json() -> None:
    assert messages(dict[str, int], {"a": 1}) == [b'{"value":{"a":1}}']
    assert messages(Decimal, Decimal("19.90")) == [b'{"value":"19.900000000000000000"}']
    assert messages(Any, "text", {"a": [None]}) == [b'{"value":"text"}', b'{"value":{"a":[null]}}']
    assert messages(int | None, 7, None) == [b'{"value":7}', b'{"value":null}']


@pytest.mark.parametrize("number", [1 << 64, -(1 << 64)])
def test_an_integer_beyond_64_bits_is_refused_where_it_is_produced(number: int) -> None:
    with pytest.raises(CoderError, match="is not of format int"):
        mr.coders.Msgpack(int).encode(number)
