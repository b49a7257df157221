"""Random expressions over random rows: one result, however they are computed.

Row by row, as Arrow columns, and in a pipeline: at once, one by one, and with a function in front,
so that objects are what comes.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgspec
import narwhals as nw
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.model.expression import Condition, Selection, alone, named
from millrace.model.row_expression import Unsure, compute_of


class Row(msgspec.Struct):
    n: int
    m: int | None
    x: float
    y: float | None
    s: str
    t: str | None
    b: bool | None
    at: dt.datetime | None


FIELDS = {info.name: info.type for info in msgspec.structs.fields(Row)}
LEAST, MOST = -(1 << 63), (1 << 63) - 1

integers = st.one_of(
    st.integers(-3, 3), st.sampled_from([LEAST, LEAST + 1, MOST, 1 << 53, (1 << 53) + 1]),
    st.integers(LEAST, MOST),
)  # fmt: skip
floats = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]), st.floats(width=64)
)
texts = st.one_of(st.sampled_from(["", "a", "A", "ab", "ß", "İ"]), st.text(max_size=4))
instants = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2262, 1, 1), timezones=st.just(dt.UTC))
rows = st.builds(
    Row, n=integers, m=st.none() | integers, x=floats, y=st.none() | floats, s=texts,
    t=st.none() | texts, b=st.none() | st.booleans(), at=st.none() | instants,
)  # fmt: skip

ints = st.one_of(
    st.sampled_from(["n", "m"]).map(nw.col), st.integers(-3, 3).map(nw.lit),
    st.just(nw.col("s").str.len_chars()), st.just(nw.col("at").dt.hour()),
)  # fmt: skip
numbers = st.recursive(
    st.one_of(ints, st.sampled_from(["x", "y"]).map(nw.col)),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a / b, inner, inner),
        st.builds(lambda a, b: 2 * a + b, inner, st.floats(-9, 9)),
        st.builds(lambda a: a % 3, ints),
        st.builds(lambda a, b: a // b, ints, ints),
    ),
    max_leaves=4,
)
words = st.one_of(
    st.sampled_from(["s", "t"]).map(nw.col),
    st.sampled_from(["s", "t"]).map(lambda name: nw.col(name).str.to_lowercase()),
    st.sampled_from(["s", "t"]).map(lambda name: nw.col(name).str.to_uppercase()),
)
truths = st.recursive(
    st.one_of(
        st.just(nw.col("b")),
        st.builds(lambda a, b: a < b, numbers, numbers),
        st.builds(lambda a, b: a >= b, numbers, numbers),
        st.builds(lambda a, b: a == b, numbers, numbers),
        st.builds(lambda a, b: a != b, words, texts.map(nw.lit)),
        st.builds(lambda a, b: a < b, words, words),
        st.builds(lambda a: a.is_null(), st.one_of(numbers, words)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)
choices = st.one_of(
    st.builds(lambda t, a, b: nw.when(t).then(a).otherwise(b), truths, words, words),
    st.builds(lambda t, a, b: nw.when(t).then(a).otherwise(b), truths, numbers, numbers),
)


def arrow(expression: Any, values: list[Row]) -> list[Any] | str:
    """Return what the kernels say of values, or that they refuse one."""
    try:
        (found,) = expression.of_values(values).values()
    except Exception as refused:  # noqa: BLE001  Arrow's errors
        return type(refused).__name__
    return found


@settings(deadline=None)
@given(st.one_of(numbers, truths, words, choices), st.lists(rows, min_size=1, max_size=5))
def test_a_value_by_itself_has_the_result_that_it_has_in_a_column(
    expression: Any, values: list[Row]
) -> None:
    one = Selection((alone(expression),))
    if one.problem(FIELDS) is not None:
        return
    bound = one.bound(FIELDS)
    by_row = [arrow(bound, [value]) for value in values]
    whole = arrow(bound, values)
    if isinstance(whole, list):
        assert repr(whole) == repr([each[0] for each in by_row])
    else:
        assert any(isinstance(each, str) for each in by_row)
    for value, found in zip(values, by_row, strict=True):
        if isinstance(found, list):
            assert repr([*bound.of_value(value).values()]) == repr(found)


@settings(deadline=None, max_examples=25)
@given(truths, numbers, st.lists(rows, min_size=1, max_size=5))
def test_a_pipeline_has_one_result_however_records_come(
    condition: Any, number: Any, values: list[Row]
) -> None:
    made = named("select", ("n", "s"), {"made": number})
    if Condition((alone(condition),)).problem(FIELDS) or Selection(made).problem(FIELDS):
        return
    found = [
        _outputs(values, condition, number, together=together, apart=apart)
        for together, apart in ((True, False), (False, False), (True, True))
    ]
    assert found[0] == found[1] == found[2]


def _outputs(
    values: list[Row], condition: Any, number: Any, *, together: bool, apart: bool
) -> tuple[str, str]:
    p = mr.Pipeline("rows")
    p.dead_letter("rejects")
    stream = p.inject("rows", format=Row)
    if apart:
        stream = stream.filter(lambda _: True).to("as they are", Row)
    stream.filter(condition).select("n", "s", made=number).to("out")
    p.sink("out", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        for group in [values] if together else [[value] for value in values]:
            h.inject("rows", [(value, 0) for value in group])
        letters = [letter.value.value for letter in h.outputs("rejects")]
        return repr([output.value for output in h.outputs("out")]), repr(letters)


def test_of_what_it_is_not_sure_a_row_says_nothing() -> None:
    compute = compute_of(nw.col("n") + nw.col("n"))
    assert compute is not None
    try:
        compute(lambda _: MOST)
    except Unsure:
        return
    raise AssertionError
