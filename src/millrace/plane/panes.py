"""The columns of a pane in a sink's DataFrame, beside those of its value.

A stream that comes out of a grouping has them; a value without a pane has nulls there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from millrace.model.pane import Pane, PanedCoder, decode_pane

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


def decode(coder: PanedCoder, values: Sequence[bytes]) -> tuple[list[Any], list[pa.Array]]:
    """Return plain values, and a column of their panes for each of :data:`COLUMNS`.

    The panes of a batch are mostly those of a few windows, so each different one is read once.

    >>> from millrace.model.pane import Paned, Window
    >>> coder = PanedCoder(int)
    >>> encoded = [coder.encode(Paned(3, Pane(Window(0, 10)))), coder.encode(4)]
    >>> plain, columns = decode(coder, encoded)
    >>> plain, columns[1].cast(pa.int64()).to_pylist()
    ([3, 4], [10, None])
    """
    index: dict[bytes, int] = {}
    plain, which = [], []
    for inner, pane in map(coder.parts, values):
        plain.append(inner)
        which.append(index.setdefault(pane, len(index)))
    panes = [decode_pane(pane) for pane in index]
    positions = pa.array(which, pa.int32())
    columns = []
    for _, kind, _, get in COLUMNS:
        distinct = pa.array([None if pane is None else get(pane) for pane in panes], kind)
        columns.append(distinct.take(positions))
    return plain, columns
