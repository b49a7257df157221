"""Columns: groupings whose windows emit once, kept and folded as columns and not key by key.

Most groupings are plain: fixed windows or sessions, one pane when the low watermark has passed, a
sum or a count. Nothing of a window is asked for before that, so its elements need not be found key
by key when others come: each bundle leaves chunks, all keys together, and the panes are made of the
chunks. That costs a few rows for each bundle, where a row and a timer for each key cost ten times
as much and more when keys are many and elements of one few.

The panes are those of :class:`~millrace.dataflow.grouping.GroupByKeyAndWindow`. When a grouping is
that plain says :mod:`millrace.dataflow.columnar.plan`; what its aggregation and its windows do to
columns they say themselves.
"""

from millrace.dataflow.columnar.plan import columns_of

__all__ = ["columns_of"]
