"""Aggregations: what is computed over the values of a window."""

from millrace.dataflow.aggregations.collections import Distinct, Group, Quantiles
from millrace.dataflow.aggregations.combine_fn import CombineFn, Recomputed, combine
from millrace.dataflow.aggregations.extremes import Max, Min, Top
from millrace.dataflow.aggregations.numeric import Count, Mean, StdDev, Sum, Variance
from millrace.dataflow.aggregations.sketches import ApproximateDistinct, ApproximateQuantiles
from millrace.dataflow.aggregations.vector import VectorFold

__all__ = [
    "ApproximateDistinct",
    "ApproximateQuantiles",
    "CombineFn",
    "Count",
    "Distinct",
    "Group",
    "Max",
    "Mean",
    "Min",
    "Quantiles",
    "Recomputed",
    "StdDev",
    "Sum",
    "Top",
    "Variance",
    "VectorFold",
    "combine",
]
