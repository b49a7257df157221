"""Variance and StdDev: how far numbers lie from their mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from millrace.dataflow.aggregations.numeric import number
from millrace.dataflow.aggregations.vector import (
    Column,
    Columns,
    Mask,
    Starts,
    VectorFold,
    none_where,
    quotients,
)
from millrace.model.brief import brief
from millrace.model.errors import PipelineError


class Variance(VectorFold):
    """The variance of numbers, a float; None where there are too few.

    It is as exact as floats allow however large the numbers are, as it never squares them but only
    how far they lie from a mean. A value cannot be taken out again without losing that.

    Args:
        sample: Divide by one less than how many there are, as for a sample of more; None below
            two. Else they are all there is, and the variance of one is 0.

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (1979).

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(Variance(), [1, 2, 6]), combine(Variance(sample=False), [1, 2, 6])
    (7.0, 4.666666666666667)
    """

    #: How many, their mean, and the sum of the squares of their distances from it.
    accumulator = tuple[int, float, float]
    numbers_only = True

    def __init__(self, *, sample: bool = True) -> None:
        self.sample = sample

    def create(self) -> tuple[int, float, float]:
        """Return those of no values."""
        return 0, 0.0, 0.0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return those with one more value."""
        count, mean, squares = accumulator
        at = self._finite(value)
        away = at - mean
        mean += away / (count + 1)
        return count + 1, mean, squares + away * (at - mean)

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return those of the values of both."""
        (count, mean, squares), (more, their_mean, their_squares) = accumulator, other
        if not count or not more:
            return other if not count else accumulator
        both, away = count + more, their_mean - mean
        squares += their_squares + away * away * count * more / both
        return both, mean + away * more / both, squares

    def extract(self, accumulator: Any) -> float | None:
        """Return the variance."""
        count, _, squares = accumulator
        divisor = count - 1 if self.sample else count
        return float(squares / divisor) if divisor > 0 else None

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the variances."""
        count, _, squares = columns
        divisor = count - 1 if self.sample else count
        found = quotients(squares, divisor)
        return None if found is None else none_where(divisor <= 0, self._of_variances(found))

    def _of_variances(self, variances: Column) -> Column:
        return variances

    def result_type(self, value: Any) -> Any:
        """Return float, or None for too few values."""
        return float | None

    # -- whole columns -----------------------------------------------------------------------------

    def takes(self, values: Column) -> Mask:
        """Return which are finite."""
        return np.isfinite(values)

    def of(self, values: Column) -> Columns:
        """Return 1, the value and 0 for each."""
        ones = np.ones(len(values), np.int64)
        return ones, values.astype(np.float64), np.zeros(len(values))

    def reduce(self, columns: Columns, starts: Starts) -> Columns:
        """Return those of segments, by way of how far the means lie from the first of each."""
        counts, means, squares = columns
        sizes = np.diff(starts, append=len(counts))
        with np.errstate(invalid="ignore", over="ignore"):
            first, count = means[starts], np.add.reduceat(counts, starts)
            away = means - np.repeat(first, sizes)
            mean = first + np.add.reduceat(counts * away, starts) / count
            away = means - np.repeat(mean, sizes)
            total = np.add.reduceat(squares + counts * away * away, starts)
        return count, mean, total

    def _finite(self, value: Any) -> float:
        what = type(self).__name__.lower()
        try:
            at = float(number(value, what))
        except OverflowError:
            at = math.inf
        if math.isinf(at):
            raise PipelineError(
                f"{what} was given {brief(value, 120)}, which is no finite float: nothing lies a "
                "known way from it. Filter such values out before the window."
            )
        return at


class StdDev(Variance):
    """The standard deviation of numbers: the square root of their variance.

    Args:
        sample: See :class:`Variance`.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(StdDev(), [2, 4]), combine(StdDev(), [2])
    (1.4142135623730951, None)
    """

    def extract(self, accumulator: Any) -> float | None:
        """Return the square root of the variance."""
        variance = super().extract(accumulator)
        return None if variance is None else math.sqrt(variance)

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the square roots of the variances."""
        return super().extracted(columns)

    def _of_variances(self, variances: Column) -> Column:
        with np.errstate(invalid="ignore"):
            return np.sqrt(variances)
