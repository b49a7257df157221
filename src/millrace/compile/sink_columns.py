"""Names of columns: those that sinks have beside the fields of a record, and those they refuse.

Spark finds a column whatever the case of its name, so two names are the same if they differ in
nothing else.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Final

from millrace.compile.column_types import JSON, bare, column_type, fields_of
from millrace.compile.sink_limits import NO_LIMITS, SinkLimits
from millrace.model.coder import Coder, type_name
from millrace.model.pane import PanedCoder

#: What a sink's DataFrame has of every record.
OF_RECORDS: Final = ("_key", "_timestamp", "_id")
#: What it has of the pane as well, on a stream that comes out of a grouping.
OF_PANES: Final = (
    "_window_start", "_window_end", "_pane_index", "_pane_timing", "_is_first", "_is_last",
    "_retraction", "_production_time", "_percentile", "_trigger",
)  # fmt: skip


def refused_field(stream: str, format: Any, coder: Coder, sink: Any) -> str:
    """Return what is wrong with a stream's fields as columns of a sink; empty if nothing is.

    Args:
        stream: Name of the stream.
        format: Of its records.
        coder: Of its records.
        sink: The sink. The names in its attribute ``adds``, if it has one, are of columns that it
            makes itself; its attribute ``limits`` tells what names it can write.
    """
    if isinstance(coder, PanedCoder):
        format = coder.format
    taken = {name.lower(): "that sinks get beside the record's" for name in OF_RECORDS}
    if isinstance(coder, PanedCoder):
        taken |= {name.lower(): "that sinks get of a pane" for name in OF_PANES}
    taken |= {name.lower(): f"that {sink!r} adds" for name in getattr(sink, "adds", ())}
    limits: SinkLimits = getattr(sink, "limits", NO_LIMITS)
    taken |= dict.fromkeys(limits.names, f"of {sink!r} itself")
    has = f"{type_name(format)}, the format of stream {stream!r}, has"
    for name in fields_of(format) or ():
        if name.lower() in taken:
            return (
                f"{has} a field {name!r}, which is the name of a column {taken[name.lower()]} "
                "(case makes no difference). One would hide the other. Rename the field."
            )
        if limits.name_bytes is not None and len(name.encode()) > limits.name_bytes:
            return (
                f"{has} a field {name!r} of {len(name.encode())} bytes, and a column of {sink!r} "
                f"has a name of at most {limits.name_bytes}. Rename the field."
            )
    return _refused_names(format, has, sink, ())


def _refused_names(format: Any, has: str, sink: Any, within: tuple[Any, ...]) -> str:
    """Return which name of a field no sink can write, of a record and of those in it."""
    there: dict[str, str] = {}
    # That names are identifiers, which every sink can write, msgspec and dataclasses see to.
    for name, kind in (fields_of(format) or {}).items():
        if (other := there.setdefault(name.lower(), name)) != name:
            return (
                f"{has} the fields {other!r} and {name!r}, which differ only in case: as columns "
                f"of {sink!r} they are one. Rename one of them."
            )
        for record in _records_in(kind):
            if record not in within and (
                wrong := _refused_names(
                    record,
                    f"{has} a field {name!r}, which has" if not within else has,
                    sink,
                    (*within, record),
                )
            ):
                return wrong
    return ""


def _records_in(kind: Any) -> Iterator[Any]:
    """Yield the records that become structs in the column of a type."""
    if column_type(kind) is JSON:
        return
    kind = bare(kind)
    if fields_of(kind):
        yield kind
    for argument in typing.get_args(kind):
        yield from _records_in(argument)
