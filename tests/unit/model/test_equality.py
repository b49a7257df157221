"""Which two values are one: the rule of keys, at any depth of a value."""

import datetime as dt
from decimal import Decimal

import msgspec
import pytest

from millrace.model.equality import canonical, equalities

NAN = float("nan")


class Reading(msgspec.Struct):
    at: float
    tags: set[str]


def equal(one, other):
    return any(test(one) for test in equalities(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (NAN, -NAN),
        ((1, NAN), [1, NAN]),
        ({"a": -0.0, "b": [NAN]}, {"b": [NAN], "a": 0.0}),
        ({1.0, 2.0}, {2.0, 1.0}),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("-0"), Decimal("0.00")),
        (Decimal("1E+2"), Decimal("100")),
        (Reading(NAN, {"x", "y"}), Reading(NAN, {"y", "x"})),
        (
            dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
            dt.datetime(2026, 1, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        ),
    ],
)
def test_equal_values(one, other):
    assert canonical(one) == canonical(other)
    assert equal(one, other)
    assert equal(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (1, True), ([1], [1.0]), ([1], [True]), ("1", 1), (b"1", "1"), (0.0, 5e-324),
        (NAN, float("inf")), ([1, 2], [2, 1]), ({"a": 1}, {"a": 1.0}),
        (Decimal("1.0"), Decimal("1.01")), (Reading(0.0, set()), Reading(1.0, set())),
    ],
    ids=repr,
)  # fmt: skip
def test_different_values(one, other):
    assert canonical(one) != canonical(other)
    assert not equal(one, other)
    assert not equal(other, one)


def test_a_value_that_msgpack_does_not_carry_is_equal_by_its_own_rule():
    assert equal(2**70, 2**70)
    assert equal(range(3), range(3))
    assert not equal(range(3), range(4))
