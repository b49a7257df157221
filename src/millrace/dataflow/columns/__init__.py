"""Columns: groupings whose windows emit once, kept and folded as columns and not key by key.

Most groupings are plain: fixed windows or sessions, one pane when the low watermark has passed, a
sum or a count. Nothing of a window is asked for before that, so its elements need not be found key
by key when others come: each bundle leaves chunks, all keys together, and the panes are made of the
chunks. That costs a few rows for each bundle, where a row and a timer for each key cost ten times
as much and more when keys are many and elements of one few.

The panes are those of :class:`~millrace.dataflow.grouping.GroupByKeyAndWindow`, which says when a
grouping is that plain.
"""

from millrace.dataflow.columns.numbers import foldable
from millrace.dataflow.columns.sessions import SessionColumns
from millrace.dataflow.columns.windows import WindowColumns

__all__ = ["SessionColumns", "WindowColumns", "foldable"]
