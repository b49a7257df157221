"""Aggregating: the aggregations by name, for whatever can be aggregated.

Each is short for :meth:`~millrace.dataflow.stream.WindowedStream.aggregate`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypedDict, TypeVar, Unpack

from millrace.dataflow.aggregates import Aggregate
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
from millrace.dataflow.formats import Chosen
from millrace.model.guarantees import DeliveryMode, ProductionMode

#: What comes of an aggregation.
Made = TypeVar("Made")


class Settings(TypedDict, total=False):
    """What may be said of every grouping by its name: see :meth:`Aggregating.aggregate`."""

    name: str | None
    fanout: int | None
    productions: ProductionMode | None
    delivery: DeliveryMode | None


class Aggregating(Generic[Made]):
    """What can be aggregated, by windows that somebody else knows."""

    @abstractmethod
    def aggregate(
        self,
        combine: CombineFn | None = None,
        value: Chosen = None,
        *,
        name: str | None = None,
        fanout: int | None = None,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
        **several: Aggregate,
    ) -> Made:
        """Aggregate the values of each key and window."""

    def sum(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Add numbers up."""
        return self.aggregate(Sum(), value, **settings)

    def count(self, **settings: Unpack[Settings]) -> Made:
        """Count the elements."""
        return self.aggregate(Count(), **settings)

    def mean(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the arithmetic mean."""
        return self.aggregate(Mean(), value, **settings)

    def variance(
        self, value: Chosen = None, *, sample: bool = True, **settings: Unpack[Settings]
    ) -> Made:
        """Return the variance: of a sample, or of all there is; None where there are too few."""
        return self.aggregate(Variance(sample=sample), value, **settings)

    def stddev(
        self, value: Chosen = None, *, sample: bool = True, **settings: Unpack[Settings]
    ) -> Made:
        """Return the standard deviation: the square root of the variance."""
        return self.aggregate(StdDev(sample=sample), value, **settings)

    def min(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the smallest value."""
        return self.aggregate(Min(), value, **settings)

    def max(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the largest value."""
        return self.aggregate(Max(), value, **settings)

    def top(
        self, n: int, value: Chosen = None, *, key: Chosen = None, **settings: Unpack[Settings]
    ) -> Made:
        """Return the n largest values, the largest first, compared by ``key`` if given."""
        return self.aggregate(Top(n, key), value, **settings)

    def distinct(
        self, value: Chosen = None, *, approximate: bool = False, **settings: Unpack[Settings]
    ) -> Made:
        """Count the different values: exactly, keeping them, or within 2% or so in 2 kB."""
        combine = ApproximateDistinct() if approximate else Distinct()
        return self.aggregate(combine, value, **settings)

    def quantiles(
        self,
        at: Sequence[float],
        value: Chosen = None,
        *,
        approximate: bool = False,
        **settings: Unpack[Settings],
    ) -> Made:
        """Return quantiles, a list: exactly, keeping the values, or within 1% of rank in 4 kB.

        Args:
            at: Shares: 0.5 is the median, 0.99 the 99th percentile.
            value: What to aggregate of an element.
            approximate: By a t-digest.
            **settings: See :meth:`aggregate`.
        """
        combine = ApproximateQuantiles(at) if approximate else Quantiles(at)
        return self.aggregate(combine, value, **settings)

    def group(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the list of the values, in order of arrival."""
        return self.aggregate(Group(), value, **settings)
