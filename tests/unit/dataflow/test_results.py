"""Results of several aggregates as columns: encoded, and refused, as their dicts are."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.dataflow.aggregations.fields import FieldsCoder, Results, record_of
from millrace.model.errors import CoderError

NAMES = ("n", "high", "who")


def results(*rows: tuple[Any, ...]) -> Results:
    return Results(record_of(NAMES), [list(column) for column in zip(*rows, strict=True)])


@pytest.mark.parametrize(
    "kinds", [(int, float | None, str), (int, Any, Any), (int, list[int] | float | None, str)]
)
def test_columns_become_the_bytes_of_their_dicts(kinds: tuple[Any, ...]) -> None:
    coder = FieldsCoder(tuple(zip(NAMES, kinds, strict=True)))
    found = results((1, 0.5, "a"), (-(2**63), None, ""), (2, 3, "é"))

    assert coder.encode_all(found) == [coder.encode(one) for one in found]
    assert coder.encode_all(list(found)) == coder.encode_all(found)


@pytest.mark.parametrize(
    "wrong", [(1.5, 0.5, "a"), (1, "x", "a"), (2**70, 0.5, "a"), (1, 1, "\ud800")]
)
def test_a_result_of_another_type_is_refused_as_its_dict_is(wrong: tuple[Any, ...]) -> None:
    coder = FieldsCoder(tuple(zip(NAMES, (int, float | None, str), strict=True)))
    found = results((1, 0.5, "a"), wrong)
    with pytest.raises(CoderError) as alone:
        coder.encode(found[1])
    with pytest.raises(CoderError) as together:
        coder.encode_all(found)

    assert str(together.value) == str(alone.value)


def test_who_takes_one_gets_a_dict() -> None:
    found = results((1, 0.5, "a"), (2, None, "b"), (3, 1.0, "c"))

    assert found[1] == {"n": 2, "high": None, "who": "b"}
    assert found[1:] == [found[1], found[2]] != found
    assert len(found) == 3
