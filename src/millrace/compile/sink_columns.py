"""Columns that sinks have beside the fields of a record; no field may have the name of one.

Spark finds a column whatever the case of its name, so two names are the same if they differ in
nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from millrace.model.coder import Coder, type_name
from millrace.model.pane import PanedCoder

#: What a sink's DataFrame has of every record.
OF_RECORDS: Final = ("_key", "_timestamp", "_id")
#: What it has of the pane as well, on a stream that comes out of a grouping.
OF_PANES: Final = (
    "_window_start", "_window_end", "_pane_index", "_pane_timing", "_is_first", "_is_last",
    "_retraction", "_production_time", "_percentile", "_trigger",
)  # fmt: skip


def hidden_field(stream: str, format: Any, coder: Coder, sink: Any) -> str | None:
    """Return what is wrong with a stream's fields as columns of a sink; None if nothing is.

    Args:
        stream: Name of the stream.
        format: Of its records.
        coder: Of its records.
        sink: The sink. The names in its attribute ``adds``, if it has one, are of columns that it
            makes itself.
    """
    if isinstance(coder, PanedCoder):
        format = coder.format
    taken = {name.lower(): "that sinks get beside the record's" for name in OF_RECORDS}
    if isinstance(coder, PanedCoder):
        taken |= {name.lower(): "that sinks get of a pane" for name in OF_PANES}
    taken |= {name.lower(): f"that {sink!r} adds" for name in getattr(sink, "adds", ())}
    for name in _fields(format):
        if name.lower() in taken:
            return (
                f"{type_name(format)}, the format of stream {stream!r}, has a field {name!r}, "
                f"which is the name of a column {taken[name.lower()]} (case makes no difference). "
                "One would hide the other. Rename the field."
            )
    return None


def _fields(format: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(format):
        return tuple(field.name for field in dataclasses.fields(format))
    return getattr(format, "__struct_fields__", ())
