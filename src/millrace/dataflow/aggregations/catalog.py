"""Aggregates: what to compute of which elements, each by a name, many in one pass.

``stream.aggregate(n=mr.agg.count(), high=mr.agg.max("price"))`` takes what these functions make.
Each goes by the elements for which ``where`` is true: a field of truths, or a function of the
element.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    VectorFold,
)
from millrace.dataflow.aggregations.several import Part, Several
from millrace.dataflow.element_types import Chosen, Picks, as_stored, picker
from millrace.dataflow.value import text
from millrace.model.errors import PipelineError

__all__ = [
    "Aggregate", "count", "distinct", "group", "max", "mean", "min", "quantiles", "stddev", "sum",
    "top", "variance",
]  # fmt: skip

#: Which elements count: the name of a field of truths, a function of the element, or None: all.
Filter = str | Callable[[Any], Any] | None


@dataclass(frozen=True)
class Aggregate:
    """One of several aggregates, by a CombineFn of Millrace's or of your own.

    Attributes:
        combine: How.
        value: What to aggregate of an element: a column name or a function; by default itself.
        where: Which elements count.

    Raises:
        PipelineError: One of them is something else.
    """

    combine: CombineFn
    value: Chosen = None
    where: Filter = None

    def __post_init__(self) -> None:
        if not isinstance(self.combine, CombineFn):
            raise PipelineError(
                f"mr.agg.Aggregate({self.combine!r}): expected a mr.CombineFn, which has create, "
                "add, merge and extract."
            )
        picker(self.value)
        picker(self.where)


def count(*, where: Filter = None) -> Aggregate:
    """Count the elements.

    >>> count(where="paid")
    Aggregate(combine=Count(), value=None, where='paid')
    """
    return Aggregate(Count(), None, where)


def sum(value: Chosen = None, *, where: Filter = None) -> Aggregate:
    """Add numbers up."""
    return Aggregate(Sum(), value, where)


def mean(value: Chosen = None, *, where: Filter = None) -> Aggregate:
    """Return the arithmetic mean; None of none."""
    return Aggregate(Mean(), value, where)


def variance(value: Chosen = None, *, sample: bool = True, where: Filter = None) -> Aggregate:
    """Return the variance: of a sample, or of all there is; None where there are too few."""
    return Aggregate(Variance(sample=sample), value, where)


def stddev(value: Chosen = None, *, sample: bool = True, where: Filter = None) -> Aggregate:
    """Return the standard deviation: the square root of the variance."""
    return Aggregate(StdDev(sample=sample), value, where)


def min(value: Chosen = None, *, where: Filter = None) -> Aggregate:
    """Return the smallest value; None of none."""
    return Aggregate(Min(), value, where)


def max(value: Chosen = None, *, where: Filter = None) -> Aggregate:
    """Return the largest value; None of none."""
    return Aggregate(Max(), value, where)


def top(n: int, value: Chosen = None, *, key: Chosen = None, where: Filter = None) -> Aggregate:
    """Return the n largest values, the largest first, compared by ``key`` if given."""
    return Aggregate(Top(n, key), value, where)


def distinct(value: Chosen = None, *, approximate: bool = False, where: Filter = None) -> Aggregate:
    """Count the different values: exactly, keeping them, or within 2% or so in 2 kB."""
    return Aggregate(ApproximateDistinct() if approximate else Distinct(), value, where)


def quantiles(
    at: Sequence[float], value: Chosen = None, *, approximate: bool = False, where: Filter = None
) -> Aggregate:
    """Return quantiles, a list: exactly, keeping the values, or within 1% of rank in 4 kB."""
    return Aggregate(ApproximateQuantiles(at) if approximate else Quantiles(at), value, where)


def group(value: Chosen = None, *, where: Filter = None) -> Aggregate:
    """Return the list of the values, in order of arrival."""
    return Aggregate(Group(), value, where)


def together(aggregates: Mapping[str, Any]) -> tuple[Several, Picks]:
    """Return what folds several aggregates, and what chooses what they need of an element.

    What several of them need is chosen once.

    Args:
        aggregates: By name.

    Raises:
        PipelineError: A name cannot be that of a field of a record, or one is no aggregate.
    """
    for name, aggregate in aggregates.items():
        _check(name, aggregate)
    sources: dict[str, tuple[Chosen, list[Filter]]] = {}
    wheres: dict[str, Filter] = {}
    inputs: list[tuple[str, Aggregate, str | None, str | None]] = []
    for name, aggregate in aggregates.items():
        source = condition = None
        if not isinstance(aggregate.combine, VectorFold) or aggregate.combine.needs_values:
            source = _identity(aggregate.value)
            sources.setdefault(source, (aggregate.value, []))[1].append(aggregate.where)
        if aggregate.where is not None:
            condition = _identity(aggregate.where)
            wheres[condition] = aggregate.where
        inputs.append((name, aggregate, source, condition))
    of_source, of_where = list(sources), list(wheres)
    needed = tuple(
        None if None in users else tuple(of_where.index(_identity(each)) for each in users)
        for _, users in sources.values()
    )
    parts = tuple(
        Part(
            name,
            aggregate.combine,
            None if source is None else of_source.index(source),
            None if condition is None else len(of_source) + of_where.index(condition),
            _about(aggregate),
        )
        for name, aggregate, source, condition in inputs
    )
    comparisons = {
        source: aggregate.combine.comparison
        for _, aggregate, source, _ in inputs
        if aggregate.combine.comparison is not None
    }
    chosen = tuple(
        as_stored(value, comparisons.get(source)) for source, (value, _) in sources.items()
    )
    return Several(parts), Picks(chosen, tuple(wheres.values()), needed)


def _identity(chosen: Any) -> str:
    """Return what two choices of the same share: a name, or the function itself."""
    return f"of {id(chosen)}" if callable(chosen) else f"named {chosen}"


def _about(aggregate: Aggregate) -> str:
    """Return what is aggregated, as text."""
    of = "" if aggregate.value is None else f" of {text(aggregate.value)}"
    return of if aggregate.where is None else f"{of} where {text(aggregate.where)}"


def _check(name: str, aggregate: Any) -> None:
    if not isinstance(aggregate, Aggregate):
        raise PipelineError(
            f"aggregate({name}={aggregate!r}): expected an aggregate, such as "
            f"{name}=mr.agg.count() or "
            f'{name}=mr.agg.max("price"); by a CombineFn of your own mr.agg.Aggregate(YourOwn(), '
            '"price").'
        )
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise PipelineError(
            f"aggregate({name}=...): {name!r} cannot name a result. Expected the name of a field; "
            "names with a leading underscore belong to columns that sinks add, such as _key."
        )
