"""Group: the values themselves."""

from __future__ import annotations

from typing import Any

from millrace.dataflow.aggregations.combine_fn import CombineFn, without


class Group(CombineFn):
    """The list of the values, in the order in which they came.

    >>> Group().add(["a"], "b")
    ['a', 'b']
    """

    whole = "a list of all values is no shorter in parts, and the order of arrival would be lost"

    def create(self) -> list[Any]:
        """Return no values."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Append a value."""
        accumulator.append(value)
        return accumulator

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        """Append the other's values."""
        accumulator.extend(other)
        return accumulator

    def uncombine(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Drop one value that equals this one."""
        return without(accumulator, value, self)

    def extract(self, accumulator: list[Any]) -> list[Any]:
        """Return the list."""
        return list(accumulator)

    def vector(self, values: Any) -> str:
        """Return why values are not combined beforehand."""
        return f"{self!r} keeps every value, in order of arrival"

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[value]

    def result_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[value]
