"""Values that a sink cannot hold: refused where they are produced."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.compile import sink_limits
from millrace.compile.sink_limits import DECIMAL_DIGITS, DECIMAL_SCALE, SinkLimits, limited
from millrace.dataflow.aggregations.fields import FieldsCoder, Results, record_of
from millrace.model.coder import MsgpackCoder, PickleCoder
from millrace.model.errors import CoderError
from millrace.model.pane import PanedCoder
from millrace.runtime.values import SinkColumns

NO_NUL = SinkLimits(nul=False)
FAR_EAST = dt.timezone(dt.timedelta(hours=5))


class Colour(enum.Enum):
    RED = "red"


class Price(msgspec.Struct):
    day: dt.date
    amount: Decimal


@pytest.mark.parametrize(
    ("format", "value", "why"),
    [
        (int, 2**63, "Expected `int` <= 9223372036854775807"),
        (int, 2**64, "can't serialize ints"),
        (int | None, 2**63, "Expected `int` <="),
        (list[int], [1, 2**63], r"at `\$\[1\]`"),
        (Decimal, Decimal(1) / 3, "18 behind it"),
        (Decimal, Decimal(10**20), "20 digits before the point"),
        (Decimal, Decimal("NaN"), "a Decimal of at most"),
        (Price, Price(dt.date(2026, 1, 1), Decimal("1E-19")), r"at `\$\.amount`"),
        (dt.datetime, dt.datetime(2026, 1, 1), "timezone"),
        (dt.datetime, dt.datetime(1, 1, 1, tzinfo=FAR_EAST), "out of range"),
        (str, "a\0b", "NUL"),
        (str, "\ud800", "surrogates"),
        (dict[str, float], {"x": float("nan")}, "JSON, which has no nan"),
        (dict[str, str], {"x": "a\0"}, "NUL"),
        (Any, {"at": dt.datetime(2026, 1, 1)}, "naive"),
        (Any, float("inf"), "JSON, which has no inf"),
        (Any, {(1, 2): 3}, "JSON"),
    ],
)
def test_a_value_that_no_column_holds_is_refused(format: Any, value: Any, why: str) -> None:
    with pytest.raises(CoderError, match=why):
        limited(MsgpackCoder(format), NO_NUL).encode(value)
    with pytest.raises(CoderError, match=why):
        limited(PanedCoder(format), NO_NUL).encode(value)


@pytest.mark.parametrize(
    ("format", "value"),
    [
        (int, -(2**63)),
        (Decimal, Decimal("19.99")),
        (Decimal, Decimal("1E+3")),
        (Decimal, 5),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        (float, float("nan")),
        (dict[str, int], {"x": 2**63}),
        (Any, {"x": [1, None, "tea"]}),
        (Colour, Colour.RED),
        (Price, Price(dt.date(2026, 1, 1), Decimal("0.000000000000000001"))),
    ],
)
def test_any_other_has_the_bytes_that_it_had(format: Any, value: Any) -> None:
    coder = MsgpackCoder(format)
    assert limited(coder, NO_NUL).encode(value) == coder.encode(value)


def test_a_value_of_a_coder_of_your_own_has_to_have_json() -> None:
    with pytest.raises(CoderError, match=r"range\(0, 3\) .*JSON"):
        limited(PickleCoder(), NO_NUL).encode(range(3))


def test_a_type_without_limits_keeps_its_coder() -> None:
    coder = MsgpackCoder(dict[str, int])
    assert limited(coder, SinkLimits()) is coder


def test_a_validation_of_the_users_still_sees_the_value() -> None:
    class Even(msgspec.Struct):
        n: int
        price: Decimal

        def __post_init__(self) -> None:
            if not isinstance(self.price, Decimal) or self.n % 2:
                raise ValueError("odd")

    good = Even(2, Decimal(1))
    coder = limited(MsgpackCoder(Even), NO_NUL)
    assert MsgpackCoder(Even).decode(coder.encode(good)) == good
    good.n = 3
    with pytest.raises(CoderError, match="odd"):
        coder.encode(good)


@given(st.decimals())
def test_a_decimal_is_accepted_exactly_if_its_column_holds_it(number: Decimal) -> None:
    try:
        pa.array([number], pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE))
        fits = number.is_finite()
    except (pa.ArrowInvalid, ValueError):
        fits = False
    try:
        limited(MsgpackCoder(Decimal), NO_NUL).encode(number)
        accepted = True
    except CoderError:
        accepted = False
    assert accepted == fits


def test_columns_have_the_types_of_their_values() -> None:
    class Row(msgspec.Struct):
        amount: Decimal
        day: dt.date
        days: list[dt.date]
        price: Price
        colour: Colour | None
        id: uuid.UUID
        took: dt.timedelta
        counts: dict[str, int]

    id = uuid.UUID(int=7)
    day = dt.date(2026, 1, 1)
    row = Row(
        Decimal("19.99"), day, [day], Price(day, Decimal(3)), Colour.RED, id,
        dt.timedelta(seconds=90), {"a": 1},
    )  # fmt: skip
    coder = MsgpackCoder(Row)
    columns = SinkColumns(Row, coder)
    made = columns.array([coder.encode(row)], ["k"], pa.array([0]), pa.array([b""], pa.binary()))
    found = made.to_pylist()[0]
    assert {name: found[name] for name in columns.names} == {
        "amount": Decimal("19.99"),
        "day": day,
        "days": [day],
        "price": {"day": day, "amount": Decimal(3)},
        "colour": "red",
        "id": str(id),
        "took": "PT90S",
        "counts": '{"a":1}',
    }
    assert "`amount`: decimal(38,18), `day`: date, `days`: array<date>" in columns.ddl


class Order(msgspec.Struct):
    n: int


class Doubles(mr.Computation):
    inputs = {"orders": mr.by(str)}
    outputs = {"doubled": Order}

    def process_record(self, record: mr.Record) -> None:
        self.produce("doubled", Order(record.value * 2))


def _pipeline(format: Any, stream: str, *, letters: bool) -> mr.Pipeline:
    p = mr.Pipeline("p")
    if letters:
        p.dead_letter("letters")
    p.inject("orders", format=format)
    if stream == "doubled":
        p.add(Doubles)
    p.sink(stream, print)
    return p


@pytest.mark.parametrize("stream", ["doubled", "orders"])
def test_what_no_sink_holds_is_a_dead_letter_and_the_rest_goes_on(stream: str) -> None:
    with mr.testing.Harness(_pipeline(int, stream, letters=True)) as h:
        h.inject("orders", [(2**63 if stream == "orders" else 2**62, 0), (5, 1)])
        (letter,) = h.outputs("letters")
        kept = [output.value for output in h.outputs(stream)]
    assert "a sink of the stream cannot hold" in letter.value.reason
    assert kept == ([Order(10)] if stream == "doubled" else [5])


def test_without_dead_letters_the_error_names_stream_field_and_line() -> None:
    with (
        pytest.raises(mr.MillraceError, match=r"(?s)'doubled'.*`\$\.n`"),
        mr.testing.Harness(_pipeline(int, "doubled", letters=False)) as h,
    ):
        h.inject("orders", [(2**62, 0)])


_LEAVES = st.one_of(
    st.none(),
    st.integers(-9, 9),
    st.floats(),
    st.sampled_from(["", "tea", "a\0"]),
    st.sampled_from([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    st.sampled_from([Colour.RED, Decimal("19.99"), b"\0"]),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a\0"), inner, max_size=3),
)


@given(_VALUES, st.booleans())
def test_a_quick_look_accepts_nothing_that_a_thorough_one_refuses(value: Any, nul: bool) -> None:
    if sink_limits._is_surely_json(value, not nul):
        assert not sink_limits._not_json(value, SinkLimits(nul=nul))


@given(
    st.dictionaries(
        st.sampled_from(["a", "b\0"]), st.lists(st.floats() | st.sampled_from(["x", "\0"]))
    ),
    st.booleans(),
)
def test_bounds_accept_what_a_walk_accepts(value: Any, nul: bool) -> None:
    limits = SinkLimits(nul=nul)
    coder = limited(MsgpackCoder(dict[str, list[float | str]]), limits)
    try:
        coder.encode(value)
        refused = ""
    except CoderError as error:
        refused = str(error)
    assert bool(refused) == bool(sink_limits._not_json(value, limits))
    assert refused.rstrip(".").endswith(sink_limits._not_json(value, limits))


def test_results_in_columns_are_refused_as_values_are() -> None:
    coder = limited(FieldsCoder((("n", int), ("mean", float | None))), SinkLimits())
    good = Results(record_of(("n", "mean")), [[1, 2], [0.5, None]])
    assert coder.encode_all(good) == [coder.encode(result) for result in good]  # type: ignore[attr-defined]
    with pytest.raises(CoderError, match=r"9223372036854775808.*at `\$\.n`"):
        coder.encode_all(Results(record_of(("n", "mean")), [[1, 2**63], [0.5, 1.5]]))  # type: ignore[attr-defined]
