"""Min, Max and Top: the smallest and the largest values."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from millrace.dataflow.aggregations.collections import Ordered
from millrace.dataflow.aggregations.combine_fn import CombineFn
from millrace.dataflow.aggregations.numeric import FoldOfItself
from millrace.dataflow.aggregations.vector import Vector, for_numbers
from millrace.dataflow.element_types import picker
from millrace.model.errors import PipelineError


class _Extreme(FoldOfItself):
    """What Min and Max share: the accumulator is the value, or None before the first."""

    comparison: ClassVar[str]

    def create(self) -> None:
        """Return None."""

    def _better(self, value: Any, than: Any) -> bool:
        raise NotImplementedError

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the one of both to keep."""
        if accumulator is None or value is None:
            return comparable(value, self.comparison)
        if type(value) in (tuple, list):  # found out by its items, and not by comparing it
            comparable(value, self.comparison)
        try:
            better = self._better(value, accumulator)
        except TypeError:
            raise mixed(self.comparison, accumulator, value) from None
        return (
            value
            if better
            else comparable(accumulator if value == value else value, self.comparison)
        )

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the one of both to keep."""
        return accumulator if other is None else self.add(accumulator, other)

    def accumulator_type(self, value: Any) -> Any:
        """Return the values' type, or None."""
        return Any if value is Any else value | None

    result_type = accumulator_type


class Min(_Extreme):
    """The smallest value; None for none.

    >>> Min().add(Min().add(None, 3), 1)
    1
    """

    comparison = "min"
    folds = (np.minimum,)

    def _better(self, value: Any, than: Any) -> bool:
        return bool(value < than)


class Max(_Extreme):
    """The largest value; None for none.

    >>> Max().add(Max().add(None, 3), 1)
    3
    """

    comparison = "max"
    folds = (np.maximum,)

    def _better(self, value: Any, than: Any) -> bool:
        return bool(value > than)


class Top(CombineFn):
    """The n largest values, the largest first.

    Args:
        n: How many; above zero.
        key: What to compare of a value: a column name or a callable; by default the value.

    >>> top = Top(2)
    >>> top.extract(top.add(top.add(top.add([], 1), 3), 2))
    [3, 2]
    """

    comparison = "top"

    def __init__(self, n: int, key: str | Callable[[Any], Any] | None = None) -> None:
        if type(n) is not int or n < 1:
            raise PipelineError(f"top({n!r}): expected how many to keep, an int above zero.")
        self.n = n
        self.key = key
        self._key = None if key is None else picker(key)

    def create(self) -> list[Any]:
        """Return no values."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Return the n largest of both."""
        size, key = len(accumulator), self._key
        compared = comparable(value if key is None else key(value), "top")
        place = size
        try:
            # Most values are below the smallest that is kept, and compared with nothing else.
            while place:
                before = accumulator[place - 1]
                if not (before if key is None else key(before)) < compared:
                    break
                place -= 1
        except TypeError:
            raise mixed("top", accumulator[0], value) from None
        if place == self.n:
            return accumulator
        return [*accumulator[:place], value, *accumulator[place : self.n - 1]]

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        """Return the n largest of both."""
        try:
            return heapq.nlargest(self.n, [*accumulator, *other], key=self._key)
        except TypeError:
            raise mixed("top", accumulator[0], other[-1]) from None

    def extract(self, accumulator: list[Any]) -> list[Any]:
        """Return the values, the largest first; of equal ones the one that came first."""
        return list(accumulator)

    @property
    def stable(self) -> bool:
        """Whether a result stays as it is: it is a list of its own."""
        return True

    @property
    def reads(self) -> tuple[str, ...]:
        """The column to compare, if it is one."""
        return (self.key,) if isinstance(self.key, str) else ()

    def vector(self, values: Any) -> Vector | str:
        """Return how the largest numbers of segments are found; not where a key is compared."""
        if self.key is not None:
            return f"{self!r} compares by a key"
        return for_numbers(self, Ordered(self.n), values)

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[value]

    result_type = accumulator_type


def comparable(value: Any, what: str) -> Any:
    """Return a value that has an order; None and NaN have none."""
    if value is None or value != value or (type(value) in (tuple, list) and _has_nan(value)):
        raise PipelineError(
            f"{what} was given {'None' if value is None else 'NaN'}, which is neither above nor "
            "below anything. Filter such values out before the window."
        )
    return value


def _has_nan(values: Any) -> bool:
    """Return whether a tuple or list, which goes by its items, has one that has no order."""
    return any(item != item or (type(item) in (tuple, list) and _has_nan(item)) for item in values)


def mixed(what: str, one: Any, other: Any) -> PipelineError:
    """Return what to say of two values that cannot be compared."""
    return PipelineError(
        f"{what} cannot compare {other!r} ({type(other).__name__}) with {one!r} "
        f"({type(one).__name__}). Values of one window must be of one type."
    )
