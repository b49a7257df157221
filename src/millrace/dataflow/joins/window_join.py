"""Joins of two streams within windows: inner, left and outer.

A join is a grouping like any other: its aggregation keeps the values of both sides, and its result
is the pairs. So every window, trigger and mode goes with it, and retractions on either side do.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.dataflow.aggregations.combine_fn import CombineFn, without
from millrace.dataflow.element_types import check_keys, plain_format
from millrace.dataflow.grouping import GroupByKeyAndWindow, GroupingOperator
from millrace.dataflow.windowing import Windowing
from millrace.model.coder import Coder
from millrace.model.errors import PipelineError
from millrace.model.record import Record
from millrace.model.stream import KeyExtractor

HOW = ("inner", "left", "outer")


def checked_how(how: str) -> str:
    """Return how two sides are joined, by its one name; ``full`` is another for ``outer``."""
    if how not in (*HOW, "full"):
        raise PipelineError(f"join(how={how!r}): expected one of {', '.join(HOW)} (or full).")
    return "outer" if how == "full" else how


class Pairs(CombineFn):
    """The pairs of the values of two sides; an element is (side, value), side 0 or 1.

    Args:
        how: ``inner``; ``left``: a left value without a right one is paired with None; ``outer``,
            or ``full``: a right value without a left one, too.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(Pairs("left"), [(0, "a"), (0, "b")]), combine(Pairs("inner"), [(0, "a"), (1, "x")])
    ([('a', None), ('b', None)], [('a', 'x')])
    """

    def __init__(self, how: str) -> None:
        self.how = checked_how(how)

    def create(self) -> tuple[list[Any], list[Any]]:
        """Return two empty sides."""
        return [], []

    def add(self, accumulator: Any, value: Any) -> Any:
        """Append a value to its side."""
        side, element = value
        accumulator[side].append(element)
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Append the other's sides."""
        for side in (0, 1):
            accumulator[side].extend(other[side])
        return accumulator

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Drop one equal value from its side."""
        side, element = value
        without(accumulator[side], element, self)
        return accumulator

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of two lists."""
        left, right = value
        return tuple[list[left], list[right]]  # type: ignore[valid-type]  # made at run time

    def result_type(self, value: Any) -> Any:
        """Return the type of the list of pairs."""
        left, right = (Any if kind is Any else kind | None for kind in value)
        return list[tuple[left, right]]  # type: ignore[valid-type]  # made at run time

    def extract(self, accumulator: Any) -> list[tuple[Any, Any]]:
        """Return the pairs, by left value and then by right, in order of arrival."""
        left, right = accumulator
        if not right and self.how != "inner":
            return [(value, None) for value in left]
        if not left and self.how == "outer":
            return [(None, value) for value in right]
        return list(itertools.product(left, right))


class JoinByKeyAndWindow(GroupByKeyAndWindow):
    """Pairs the values of two streams by key and window.

    Args:
        sides: Left and right: stream and key extractor.
        windowing: Where, when and how.
        how: See :class:`Pairs`.
        output: Output stream, of lists of pairs.
    """

    def __init__(
        self,
        sides: tuple[tuple[str, KeyExtractor], tuple[str, KeyExtractor]],
        windowing: Windowing,
        how: str,
        output: str,
    ) -> None:
        (left, _), (right, _) = sides
        super().__init__(dict(sides), windowing, Pairs(how), None, output)
        self._sides = {left: 0, right: 1}

    def kind_of(self, formats: Sequence[Any]) -> Any:
        """Return the types of the values of both sides."""
        return tuple(plain_format(format) for format in formats)

    def process_record(self, record: Record) -> None:
        """Add an element to its side."""
        if record.stream in self._sides:
            record.value = self._sides[record.stream], record.value
        super().process_record(record)


class JoinOperator(GroupingOperator):
    """The operator of :class:`JoinByKeyAndWindow`: every value of a side is kept as it came."""

    def settings(self) -> dict[str, str]:
        """Return what pairs depend on, besides the sides."""
        return {name: text for name, text in super().settings().items() if name != "of"}

    def sides(self) -> tuple[str, ...]:
        """Return left and right."""
        return tuple(self._grouping.inputs)

    def _what(self) -> str:
        left, right = self._grouping.inputs
        return f"{left!r} and {right!r}"

    def lifting(self, stream: str, coder: Coder) -> str:
        """Return why values are not combined beforehand."""
        return "a join pairs every value"

    def columnar(self, formats: Mapping[str, Coder]) -> None:
        """Return that pairs are kept key by key, if keys of both sides can be equal at all."""
        check_keys(self._grouping.output, self._grouping.inputs, formats)


def pair_format(format: Any) -> Any:
    """Return the format of a pair, for that of the list of them."""
    return typing.get_args(plain_format(format))[0]
