"""Grouping by key and window: the one computation that windows and triggers compile to."""

from millrace.dataflow.grouping.computation import GroupByKeyAndWindow
from millrace.dataflow.grouping.operator import GroupingOperator

__all__ = ["GroupByKeyAndWindow", "GroupingOperator"]
