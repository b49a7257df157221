"""Output: one record as it left the pipeline, and the taps by which a test reads it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from html import escape
from itertools import pairwise
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from millrace.compile.build import build
from millrace.compile.topology import Edge, Topology, sink_scope
from millrace.connectors.function_sink import ArrowSink
from millrace.kernel.record_ids import record_id
from millrace.kernel.router import sink_key
from millrace.model.declarations import Declarations
from millrace.model.errors import PipelineError, brief
from millrace.model.pane import Pane, Paned, Timing, Window
from millrace.model.time import datetime_of, format_timestamp, timestamp_us
from millrace.runtime.sink_writer import values_and_ids

#: Columns of a sink's row that are no part of the value: the record's and the pane's.
_NO_VALUE = (
    "_key", "_timestamp", "_id",
    "_window_start", "_window_end", "_pane_index", "_pane_timing", "_is_first", "_is_last",
    "_retraction", "_production_time", "_percentile", "_trigger",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """One record of a stream, as a sink would have received it.

    Attributes:
        key: The producer's key; None for a record that came straight from an injector.
        value: The value.
        timestamp: Event time in microseconds.
        pane: What a window's trigger emitted it as; None outside of windows.
        wall_time: Wall clock of the epoch that it left in, in the Harness; microseconds.
        id: What a sink would have got as ``_id``: 16 bytes, unique, the same on every attempt. Two
            outputs that differ in nothing else, or in their wall time, are equal.
    """

    key: Any
    value: Any
    timestamp: int
    pane: Any = None
    wall_time: int = field(default=0, compare=False, repr=False)
    id: bytes = field(default=b"", compare=False, repr=False)

    @property
    def time(self) -> dt.datetime:
        """Event time as a datetime, UTC."""
        return datetime_of(self.timestamp)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return what a row is that a sink on Spark got.

        Args:
            row: Column -> value, with instants as datetimes with a time zone, or microseconds: as
                ``rows.toArrow().to_pylist()`` has it. The key is text, as in the column.

        Returns:
            The value is that of column ``value``, or else a dict of all columns that are neither of
            the record nor of the pane.

        Raises:
            PipelineError: It has no ``_timestamp``, or an instant has no time zone.

        >>> Output.of_row({"_key": "red", "_timestamp": 9, "_id": b"", "points": 5})
        Output(key='red', value={'points': 5}, timestamp=9, pane=None)
        """
        if "_timestamp" not in row:
            raise PipelineError(
                f"a row with the columns {list(row)} is not a row of a sink. Expected the columns "
                "_key, _timestamp and _id, and those of the value."
            )
        found = {name: row[name] for name in _NO_VALUE if name in row and not _is_null(row[name])}
        value: Any = {name: value for name, value in row.items() if name not in _NO_VALUE}
        if value.keys() - {"epoch"} == {
            "value"
        }:  # the epoch is that of mr.sinks.Parquet's directories
            value = value["value"]
        at_us = timestamp_us(found.get("_timestamp"))  # type: ignore[arg-type]
        id = bytes(found.get("_id") or b"")
        return cls(found.get("_key"), value, at_us, _pane(found), id=id)


class Outputs(list[Output]):
    """Outputs in a list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return a table: time, key, the fields of the values, and panes if there are any."""
        fields = dict.fromkeys(name for output in self for name in _fields(output.value))
        paned = any(output.pane is not None for output in self)
        columns = ["time", "key", *(fields or ["value"]), *(_OF_PANE if paned else [])]
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = ""
        for output in self[:_REPR_MAX]:
            cells = (f"<td>{escape(cell)}</td>" for cell in _cells(output, fields, paned))
            body += f"<tr>{''.join(cells)}</tr>"
        more = len(self) - _REPR_MAX
        said = f"<p>and {more:,} more</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}"


#: More outputs than these are only counted.
_REPR_MAX = 100
_OF_PANE = ("window", "pane")


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a value by name; none of one that is no record."""
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclass_fields(value)}
    return {}


def _cells(output: Output, fields: Iterable[str], paned: bool) -> Iterator[str]:
    """Yield the cells of a row."""
    yield format_timestamp(output.timestamp)
    yield "" if output.key is None else str(output.key)
    found = _fields(output.value)
    names = list(fields)
    if not names or not found:
        yield _cell(output.value)
        yield from [""] * (len(names) - 1)
    else:
        yield from (_cell(found[name]) if name in found else "" for name in names)
    if paned and output.pane is not None:
        window = output.pane.window
        ends = (window.start, window.end)
        yield " to ".join("" if us is None else format_timestamp(us) for us in ends)
        back = ", taken back" if output.pane.retraction else ""
        yield f"{output.pane.timing.lower().replace('_', ' ')}{back}"
    elif paned:
        yield from ("", "")


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else brief(value, 200)
    return text if len(text) <= 200 else f"{text[:199]}…"


def outputs_of(rows: Any) -> list[Output]:
    """Return what the rows of a sink are, in their order.

    Args:
        rows: An Arrow table, a Spark or pandas DataFrame, or mappings; see :meth:`Output.of_row`.
            Outputs are returned as they are.

    Raises:
        PipelineError: They are none of these.
    """
    if hasattr(rows, "toArrow"):
        rows = rows.toArrow()
    if hasattr(rows, "to_pylist"):
        rows = rows.to_pylist()
    elif hasattr(rows, "to_dict"):
        rows = [
            {name: _of_pandas(value) for name, value in row.items()}
            for row in rows.to_dict("records")
        ]
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise PipelineError(
            f"{type(rows).__name__} is not rows of a sink. Expected an Arrow table, "
            "a Spark or pandas DataFrame, a list of mappings, or a Harness's outputs."
        )
    return [row if isinstance(row, Output) else Output.of_row(row) for row in rows]


def _pane(row: dict[str, Any]) -> Pane | None:
    if row.get("_pane_index") is None:
        return None
    ends = (row.get("_window_start"), row.get("_window_end"))
    percentile = row.get("_percentile")
    return Pane(
        Window(*(None if at is None else timestamp_us(at) for at in ends)),
        int(row["_pane_index"]),
        Timing(row["_pane_timing"]),
        bool(row["_is_first"]),
        bool(row["_is_last"]),
        bool(row["_retraction"]),
        timestamp_us(row.get("_production_time")),  # type: ignore[arg-type]
        None if percentile is None else int(percentile),
        row.get("_trigger") or "",
    )


def _is_null(value: Any) -> bool:
    # pandas has NaN and NaT where Arrow has null; neither is equal to itself.
    return value is None or bool(value != value)


def _of_pandas(value: Any) -> Any:
    """Return a cell as Arrow has it: pandas has NaN for null, and an array for a list."""
    if isinstance(value, np.ndarray):
        return [_of_pandas(each) for each in value]
    if isinstance(value, dict):
        return {name: _of_pandas(each) for name, each in value.items()}
    return None if _is_null(value) else value


def tapped(
    topology: Topology, batch: pa.RecordBatch, wall_time_us: int
) -> Iterator[tuple[str, Output]]:
    """Yield (stream, output) of the rows on edges to sinks, in their order."""
    edges = batch.column("edge").to_numpy()
    # Rows of one edge mostly stand together.
    starts = [0, *(np.flatnonzero(np.diff(edges)) + 1).tolist(), len(edges)]
    for start, end in pairwise(starts):
        if start == end or edges[start] < 0:
            continue
        edge = topology.edge(int(edges[start]))
        # What a task writes to a sink is not tapped: the stream has a tap beside it.
        if edge.sink is None or hasattr(topology.sinks[edge.sink], "for_tasks"):
            continue
        coder, rows = topology.streams[edge.stream].coder, batch.slice(start, end - start)
        columns = (rows.column("key").to_pylist(), rows.column("ts").to_pylist())
        parts = values_and_ids(topology, edge.number, rows)
        for encoded, origin, sequence, key, at_us in zip(*parts, *columns, strict=True):
            value, pane = coder.decode(encoded), None
            if type(value) is Paned:
                value, pane = value.value, value.pane
            id = record_id(int(origin), int(sequence))
            yield edge.stream, Output(sink_key(key), value, at_us, pane, wall_time_us, id)


def with_taps(pipeline: Declarations) -> Topology:
    """Return the topology with a tap on every stream; of the pipeline's own sinks, functions."""
    topology = build(pipeline)
    edges = [edge for edge in topology.edges if edge.sink is None]
    sinks = [
        *((stream, _nowhere) for stream in topology.streams),
        *(
            (edge.stream, topology.sinks[edge.sink])
            for edge in topology.edges
            if edge.sink is not None and isinstance(topology.sinks[edge.sink], ArrowSink)
        ),
    ]
    for number, (stream, _) in enumerate(sinks):
        spec = topology.streams[stream]
        scope = sink_scope(stream, spec.slacks, injected=spec.injection is not None)
        edges.append(Edge(len(edges), stream, None, number, None, scope))
    # What a value may be, the limits of the stream's own sinks say; a tap holds anything.
    streams = {
        name: replace(spec, edges=tuple(edge for edge in edges if edge.stream == name))
        for name, spec in topology.streams.items()
    }
    return replace(
        topology, streams=streams, edges=tuple(edges), sinks=tuple(sink for _, sink in sinks)
    )


def _nowhere(*_: Any) -> None:
    """Stand for a sink; the Harness keeps the records itself."""
