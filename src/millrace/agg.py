"""Aggregates: what a window or a key comes to, by the columns of its records."""

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.catalog import (
    Aggregate,
    count,
    distinct,
    group,
    max,
    mean,
    min,
    quantiles,
    stddev,
    sum,
    top,
    variance,
)

__all__ = [
    "Aggregate",
    "VectorFold",
    "count",
    "distinct",
    "group",
    "max",
    "mean",
    "min",
    "quantiles",
    "stddev",
    "sum",
    "top",
    "variance",
]
