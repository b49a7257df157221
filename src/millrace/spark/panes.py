"""The columns of a pane in a sink's DataFrame, beside those of its value.

A stream that comes out of a grouping has them; a value without a pane has nulls there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millrace.model.pane import Pane, Paned

_INSTANT = (pa.timestamp("us", tz="UTC"), "timestamp")
_TEXT = (pa.string(), "string")
_TRUTH = (pa.bool_(), "boolean")

#: Name, Arrow type, Spark type, and how to get it from a pane. A global window has no start and no
#: end: nulls.
COLUMNS: list[tuple[str, pa.DataType, str, Callable[[Pane], Any]]] = [
    ("_window_start", *_INSTANT, lambda pane: pane.window.start),
    ("_window_end", *_INSTANT, lambda pane: pane.window.end),
    ("_pane_index", pa.int64(), "bigint", lambda pane: pane.index),
    ("_pane_timing", *_TEXT, lambda pane: str(pane.timing)),
    ("_is_first", *_TRUTH, lambda pane: pane.is_first),
    ("_is_last", *_TRUTH, lambda pane: pane.is_last),
    ("_retraction", *_TRUTH, lambda pane: pane.retraction),
    ("_production_time", *_INSTANT, lambda pane: pane.production_time),
    ("_percentile", pa.int64(), "bigint", lambda pane: pane.percentile),
    ("_trigger", *_TEXT, lambda pane: pane.trigger),
]


def split(values: list[Any]) -> tuple[list[Any], list[Pane | None]]:
    """Return plain values and their panes.

    >>> from millrace.model.pane import Window
    >>> split([Paned(3, Pane(Window(0, 10))), 4])[0]
    [3, 4]
    """
    return (
        [value.value if type(value) is Paned else value for value in values],
        [value.pane if type(value) is Paned else None for value in values],
    )


def arrays(panes: list[Pane | None]) -> list[pa.Array]:
    """Return a column for each of :data:`COLUMNS`."""
    return [
        pa.array([None if pane is None else get(pane) for pane in panes], kind)
        for _, kind, _, get in COLUMNS
    ]
