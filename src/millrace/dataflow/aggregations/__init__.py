"""Aggregations: what is computed over the values of a window."""

from millrace.dataflow.aggregations.combine_fn import CombineFn, Recomputed, combine
from millrace.dataflow.aggregations.extremes import Max, Min, Top
from millrace.dataflow.aggregations.group import Group
from millrace.dataflow.aggregations.numeric import Count, Mean, Sum

__all__ = [
    "CombineFn",
    "Count",
    "Group",
    "Max",
    "Mean",
    "Min",
    "Recomputed",
    "Sum",
    "Top",
    "combine",
]
