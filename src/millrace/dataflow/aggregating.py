"""Aggregating: the aggregations by name, for whatever can be aggregated.

Each is short for :meth:`~millrace.dataflow.stream.WindowedStream.aggregate`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from millrace.dataflow.aggregations import (
    ApproximateDistinct,
    ApproximateQuantiles,
    CombineFn,
    Count,
    Distinct,
    Group,
    Max,
    Mean,
    Min,
    Quantiles,
    StdDev,
    Sum,
    Top,
    Variance,
)

#: What to aggregate of an element: a column name, or a function of it.
Chosen = str | Callable[[Any], Any] | None

#: What comes of an aggregation.
Made = TypeVar("Made")


class Aggregating(Generic[Made]):
    """What can be aggregated, by windows that somebody else knows."""

    @abstractmethod
    def aggregate(
        self,
        combine: CombineFn,
        value: Chosen = None,
        *,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Aggregate the values of each key and window."""

    def sum(
        self, value: Chosen = None, *, name: str | None = None, fanout: int | None = None
    ) -> Made:
        """Add numbers up."""
        return self.aggregate(Sum(), value, name=name, fanout=fanout)

    def count(self, *, name: str | None = None, fanout: int | None = None) -> Made:
        """Count the elements."""
        return self.aggregate(Count(), name=name, fanout=fanout)

    def mean(
        self, value: Chosen = None, *, name: str | None = None, fanout: int | None = None
    ) -> Made:
        """Return the arithmetic mean."""
        return self.aggregate(Mean(), value, name=name, fanout=fanout)

    def variance(
        self,
        value: Chosen = None,
        *,
        sample: bool = True,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Return the variance: of a sample, or of all there is; None where there are too few."""
        return self.aggregate(Variance(sample=sample), value, name=name, fanout=fanout)

    def stddev(
        self,
        value: Chosen = None,
        *,
        sample: bool = True,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Return the standard deviation: the square root of the variance."""
        return self.aggregate(StdDev(sample=sample), value, name=name, fanout=fanout)

    def min(
        self, value: Chosen = None, *, name: str | None = None, fanout: int | None = None
    ) -> Made:
        """Return the smallest value."""
        return self.aggregate(Min(), value, name=name, fanout=fanout)

    def max(
        self, value: Chosen = None, *, name: str | None = None, fanout: int | None = None
    ) -> Made:
        """Return the largest value."""
        return self.aggregate(Max(), value, name=name, fanout=fanout)

    def top(
        self,
        n: int,
        value: Chosen = None,
        *,
        key: Chosen = None,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Return the n largest values, the largest first, compared by ``key`` if given."""
        return self.aggregate(Top(n, key), value, name=name, fanout=fanout)

    def distinct(
        self,
        value: Chosen = None,
        *,
        approximate: bool = False,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Count the different values: exactly, keeping them, or within 2% or so in 2 kB."""
        combine = ApproximateDistinct() if approximate else Distinct()
        return self.aggregate(combine, value, name=name, fanout=fanout)

    def quantiles(
        self,
        at: Sequence[float],
        value: Chosen = None,
        *,
        approximate: bool = False,
        name: str | None = None,
        fanout: int | None = None,
    ) -> Made:
        """Return quantiles, a list: exactly, keeping the values, or within 1% of rank in 4 kB.

        Args:
            at: Shares: 0.5 is the median, 0.99 the 99th percentile.
            value: What to aggregate of an element.
            approximate: By a t-digest.
            name: Of the grouping.
            fanout: See :meth:`aggregate`.
        """
        combine = ApproximateQuantiles(at) if approximate else Quantiles(at)
        return self.aggregate(combine, value, name=name, fanout=fanout)

    def group(self, value: Chosen = None, *, name: str | None = None) -> Made:
        """Return the list of the values, in order of arrival."""
        return self.aggregate(Group(), value, name=name)
