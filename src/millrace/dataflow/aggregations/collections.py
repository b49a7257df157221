"""Group, Distinct and exact Quantiles: they keep the values, and can take one out again."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.dataflow.aggregations.combine_fn import CombineFn, Listed, without
from millrace.dataflow.aggregations.numeric import number
from millrace.dataflow.aggregations.vector import Mask, Starts, Vector, for_numbers, numbers, plain
from millrace.model.equality import canonical
from millrace.model.errors import PipelineError


@dataclass(frozen=True)
class Ordered:
    """Sorts the numbers of each segment.

    Attributes:
        largest: Keep so many, the largest first; None: all, the smallest first.
    """

    largest: int | None = None
    needs_values = True

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which values are numbers."""
        column = numbers(values)
        return None if column is None else plain(column, values)

    def accumulators(self, values: pa.Array, starts: Starts) -> list[list[Any]]:
        """Return the numbers of each segment, in order."""
        column = numbers(values)
        assert column is not None, "only usable values are folded"
        bounds = [*starts.tolist(), len(column)]
        segments = np.repeat(np.arange(len(starts)), np.diff(bounds))
        ordered = column[np.lexsort((column, segments))].tolist()
        pairs = itertools.pairwise(bounds)
        if self.largest is None:
            return [ordered[first:last] for first, last in pairs]
        return [ordered[first:last][: -self.largest - 1 : -1] for first, last in pairs]


class Distinct(CombineFn):
    """How many different values there are. Values are equal by :mod:`millrace.model.equality`.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(Distinct(), ["a", "b", "a"])
    2
    """

    #: Encoded value -> how often it is there, below zero while a retraction is ahead of its value.
    accumulator = dict[bytes, int]
    inverts = True

    def create(self) -> dict[bytes, int]:
        """Return no values."""
        return {}

    def add(self, accumulator: dict[bytes, int], value: Any) -> dict[bytes, int]:
        """Count a value."""
        return self._count(accumulator, canonical(value), 1)

    def merge(self, accumulator: dict[bytes, int], other: dict[bytes, int]) -> dict[bytes, int]:
        """Add the counts up."""
        for encoded, n in other.items():
            self._count(accumulator, encoded, n)
        return accumulator

    def uncombine(self, accumulator: dict[bytes, int], value: Any) -> dict[bytes, int]:
        """Count a value off."""
        return self._count(accumulator, canonical(value), -1)

    def extract(self, accumulator: dict[bytes, int]) -> int:
        """Return how many values are there."""
        return sum(n > 0 for n in accumulator.values())

    def vector(self, values: Any) -> Vector:
        """Return how integers, text and bytes are counted."""
        return _Counted()

    def result_type(self, value: Any) -> Any:
        """Return int."""
        return int

    @staticmethod
    def _count(accumulator: dict[bytes, int], encoded: bytes, n: int) -> dict[bytes, int]:
        left = accumulator.get(encoded, 0) + n
        if left:
            accumulator[encoded] = left
        else:
            del accumulator[encoded]
        return accumulator


class _Counted:
    """The vector form of Distinct."""

    needs_values = True

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which values are there, of integers, text and bytes; of others, none are taken."""
        kind = values.type
        if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
            return values.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        return None

    def accumulators(self, values: pa.Array, starts: Starts) -> list[dict[bytes, int]]:
        """Return the encoded values of each segment, and how often each is there."""
        coded = pc.dictionary_encode(values)
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        names = [canonical(name) for name in coded.dictionary.to_pylist()]
        segments = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(codes)))
        pairs, counts = np.unique(segments * len(names) + codes, return_counts=True)
        accumulators: list[dict[bytes, int]] = [{} for _ in range(len(starts))]
        windows, numbers = np.divmod(pairs, len(names))
        for segment, code, count in zip(
            windows.tolist(), numbers.tolist(), counts.tolist(), strict=True
        ):
            accumulators[segment][names[code]] = count
        return accumulators


class Quantiles(CombineFn):
    """The smallest values that so large a share of the values do not exceed (nearest rank).

    Args:
        at: Shares, from 0 (the smallest value) to 1 (the largest).

    The result is a list, in order of ``at``; of no values, a list of None.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(Quantiles([0, 0.5, 0.9, 1]), [7, 1, 3, 5])
    [1, 3, 7, 7]
    """

    accumulator = list[int | float | Decimal]

    def __init__(self, at: Sequence[float]) -> None:
        self.at = shares(at)

    def create(self) -> list[Any]:
        """Return no values."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Put a value in its place."""
        bisect.insort(accumulator, number(value, "quantiles"))
        return accumulator

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        """Return the values of both, in order."""
        return sorted(accumulator + other)

    def uncombine(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Drop one value that equals this one."""
        return without(accumulator, value, self)

    def extract(self, accumulator: list[Any]) -> list[Any]:
        """Return the quantiles."""
        if not accumulator:
            return [None for _ in self.at]
        last = len(accumulator) - 1
        return [accumulator[min(last, max(0, math.ceil(q * (last + 1)) - 1))] for q in self.at]

    def vector(self, values: Any) -> Vector | str:
        """Return how the numbers of segments are sorted."""
        return for_numbers(self, Ordered(), values)

    def result_type(self, value: Any) -> Any:
        """Return the type of a list of the numbers' own type."""
        return list[value | None] if value in (int, float, Decimal) else Any


def shares(at: Sequence[float]) -> tuple[float, ...]:
    """Return shares that quantiles can be at.

    Raises:
        PipelineError: One is not between 0 and 1, or there is none.
    """
    given = tuple(at) if not isinstance(at, int | float | str) else (at,)
    if not given or not all(isinstance(q, int | float) and 0 <= q <= 1 for q in given):
        raise PipelineError(
            f"quantiles({at!r}): expected shares from 0 to 1, such as [0.5, 0.99]; for percentiles "
            "divide by 100."
        )
    return given


class Group(Listed):
    """The list of the values, in the order in which they came.

    >>> Group().add(["a"], "b")
    ['a', 'b']
    """

    whole = "a list of all values is no shorter in parts, and the order of arrival would be lost"

    def extract(self, accumulator: list[Any]) -> list[Any]:
        """Return the list."""
        return list(accumulator)

    def vector(self, values: Any) -> str:
        """Return why values are not combined beforehand."""
        return f"{self!r} keeps every value, in order of arrival"

    def result_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[value]
