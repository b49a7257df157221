"""Windows of groupings that are kept key by key: what a row of one says, by the schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from millrace.compile.schemas import Schema
from millrace.compile.values import Encoded, plain_reader, reader
from millrace.dataflow.grouping.window_state import WindowRow

#: What :class:`~millrace.dataflow.grouping.window_state.RowCoder` calls itself.
_ROWS: Final = "window"
_decode = msgspec.msgpack.Decoder(WindowRow).decode


class WindowState(msgspec.Struct, frozen=True, kw_only=True):
    """What a grouping keeps of one window of one key. All times in microseconds.

    Attributes:
        start: Of the window; None if it has no start.
        end: Of the window; None if it has no end.
        size: Elements in the accumulator, retracted ones taken off.
        pending: Elements since the last pane.
        panes: How many panes were emitted.
        accumulator: What is aggregated so far, as the aggregation keeps it.
    """

    start: int | None
    end: int | None
    size: int
    pending: int
    panes: int
    accumulator: Any


def cell_reader(schema: Schema) -> Callable[[bytes], Any]:
    """Return what makes values of a cell from bytes: as other formats, or windows of a grouping."""
    if schema["coder"] != _ROWS or "accumulator" not in schema:
        return reader(schema)
    accumulator = schema["accumulator"]["format"]
    plain = plain_reader(accumulator)
    opaque = reader(accumulator)

    def read(data: bytes) -> Any:
        try:
            row = _decode(data)
        except msgspec.ValidationError:
            return Encoded(_ROWS, data)  # by a coder of the user's own with that name
        # What has a coder of its own stands in the row as its bytes.
        kept = plain(row.accumulator) if plain is not None else opaque(row.accumulator)
        return WindowState(
            start=row.window.start,
            end=row.window.end,
            size=row.size,
            pending=row.pending,
            panes=row.panes,
            accumulator=kept,
        )

    return read
