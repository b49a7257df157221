"""Folds: what a CombineFn does to the values of many keys and windows at once, as columns.

Values come sorted into segments, those of one key and window side by side, in order of arrival.
What comes out is an accumulator for each, equal to what ``add`` would have made of them one by one
(sums of floats up to rounding, as always where they are added in another order).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations import (
    CombineFn,
    Count,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
    Top,
)

#: A column of values, sorted into segments.
Column = npt.NDArray[Any]
#: Where each segment begins.
Starts = npt.NDArray[np.intp]
#: Makes the accumulators of a column's segments; None if these values cannot be folded.
Fold = Callable[[Column, Starts], list[Any] | None]

_LARGEST = 2**63 - 1


def _sum(values: Column, starts: Starts) -> list[Any] | None:
    if values.dtype == np.int64:
        # Python's integers have no end; these do.
        size = max(int(values.max()), -int(values.min()))
        if size * len(values) > _LARGEST:
            return None
    with np.errstate(invalid="ignore", over="ignore"):
        return np.add.reduceat(values, starts).tolist()  # type: ignore[no-any-return]


def _count(values: Column, starts: Starts) -> list[Any]:
    return np.diff(starts, append=len(values)).tolist()  # type: ignore[no-any-return]


def _mean(values: Column, starts: Starts) -> list[Any] | None:
    sums = _sum(values, starts)
    return None if sums is None else list(zip(sums, _count(values, starts), strict=True))


def _min(values: Column, starts: Starts) -> list[Any]:
    return np.minimum.reduceat(values, starts).tolist()  # type: ignore[no-any-return]


def _max(values: Column, starts: Starts) -> list[Any]:
    return np.maximum.reduceat(values, starts).tolist()  # type: ignore[no-any-return]


def _ascending(values: Column, starts: Starts) -> list[list[Any]]:
    """Return the values of each segment, sorted."""
    bounds = [*starts.tolist(), len(values)]
    segments = np.repeat(np.arange(len(starts)), np.diff(bounds))
    ordered = values[np.lexsort((values, segments))].tolist()
    return [ordered[first:last] for first, last in itertools.pairwise(bounds)]


def _largest(n: int, values: Column, starts: Starts) -> list[list[Any]]:
    return [ascending[: -n - 1 : -1] for ascending in _ascending(values, starts)]


def distinct_counts(codes: Column, starts: Starts, names: list[bytes]) -> list[dict[bytes, int]]:
    """Return the accumulators of ``Distinct``, for values that are numbered.

    Args:
        codes: The values' numbers.
        starts: Where each segment begins.
        names: The encoded value of each number.
    """
    bounds = [*starts.tolist(), len(codes)]
    segments = np.repeat(np.arange(len(starts)), np.diff(bounds))
    pairs, counts = np.unique(segments * len(names) + codes, return_counts=True)
    folded: list[dict[bytes, int]] = [{} for _ in range(len(starts))]
    of, what = np.divmod(pairs, len(names))
    for segment, code, count in zip(of.tolist(), what.tolist(), counts.tolist(), strict=True):
        folded[segment][names[code]] = count
    return folded


_FOLDS: dict[type[CombineFn], Fold] = {
    Sum: _sum,
    Count: _count,
    Mean: _mean,
    Min: _min,
    Max: _max,
    Quantiles: _ascending,
}


def fold_of(combine: CombineFn) -> Fold | None:
    """Return how values are folded for a CombineFn; None if they cannot be.

    >>> import numpy as np
    >>> fold_of(Mean())(np.array([1, 2, 6]), np.array([0, 2]))
    [(3, 2), (6, 1)]
    """
    if isinstance(combine, Top):
        return None if combine.key is not None else partial(_largest, combine.n)
    return _FOLDS.get(type(combine))


def needs_values(combine: CombineFn) -> bool:
    """Return whether the values matter, and not only how many there are."""
    return type(combine) is not Count
