"""Records of an injected stream through steps that are expressions, whole columns at a time.

What the columns become leaves as it would record by record: the same rows, with the same ids. Where
a stream has a consumer that needs objects, or a step that is a function, objects are made of the
records that have come so far. Rows to a sink that has the columns are a batch: many records in one
row of the wire, which the levels pass on as they are.

What is not as it should be is left to the row encoder, which can say at which record.

Source: docs/design/2026-11-28-expressions.md.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from millrace.compile.sink_limits import NO_LIMITS, fields_of
from millrace.compile.topology import Edge, StreamSpec, Topology
from millrace.kernel.router import Route, Router, RowsBuilder
from millrace.model.coder import MsgpackCoder
from millrace.model.errors import RAISED
from millrace.model.expression import (
    Condition,
    Expression,
    Extension,
    Result,
    Selection,
    column_type_of,
    listed,
)
from millrace.model.keys import encode_key
from millrace.model.stream import KeyExtractor, Step, by_key
from millrace.runtime import wire

Ints = npt.NDArray[np.int64]

#: Bytes of columns in a batch, about: a packet is cut between rows (``packets.py``).
_BATCH_BYTES: Final = 640 << 10


class Sent(NamedTuple):
    """What records have become.

    Attributes:
        counts: How many rows each has become.
        parts: Rows on edges.
    """

    counts: Ints
    parts: list[_Part]

    def rows(self, origins: Ints, sequences: Ints) -> Iterator[tuple[RowsBuilder, Ints, Ints]]:
        """Yield rows with both halves of their ids.

        Args:
            origins: First halves of the ids of all rows, those of the first record first.
            sequences: Second halves.
        """
        firsts = np.cumsum(self.counts) - self.counts
        for part in self.parts:
            at = firsts[part.records] + part.made
            yield part.finished(origins[at], sequences[at])


@dataclass
class _Part:
    """Rows of one kind.

    Attributes:
        records: Of each row, its record.
        made: Which of the rows of its record it is.
    """

    records: Ints
    made: Ints

    def finished(self, origins: Ints, sequences: Ints) -> tuple[RowsBuilder, Ints, Ints]:
        """Return the rows with both halves of their ids."""
        raise NotImplementedError


@dataclass
class _Encoded(_Part):
    rows: RowsBuilder

    def finished(self, origins: Ints, sequences: Ints) -> tuple[RowsBuilder, Ints, Ints]:
        return self.rows, origins, sequences


@dataclass
class _Batched(_Part):
    edge: int
    columns: dict[str, pa.Array]
    keys: pa.Array
    at_us: Ints

    def finished(self, origins: Ints, sequences: Ints) -> tuple[RowsBuilder, Ints, Ints]:
        whole = pa.RecordBatch.from_arrays(
            [
                *self.columns.values(),
                self.keys,
                *map(pa.array, (self.at_us, origins, sequences)),
            ],
            names=[*self.columns, *wire.BATCH],
        )
        rows = RowsBuilder()
        step = max(1, -(-len(self.at_us) // max(1, -(-whole.nbytes // _BATCH_BYTES))))
        firsts = np.arange(0, len(self.at_us), step)
        for first in firsts.tolist():
            rows.edges.append(wire.batched(self.edge))
            rows.hashes.append(0)
            rows.keys.append(b"")
            rows.values.append(_written(whole.slice(first, step)))
            rows.timestamps.append(int(self.at_us[first]))
        return rows, origins[firsts], sequences[firsts]


def _written(batch: pa.RecordBatch) -> bytes:
    to = pa.BufferOutputStream()
    with ipc.new_stream(to, batch.schema) as writer:
        writer.write_batch(batch)
    return to.getvalue().to_pybytes()  # type: ignore[no-any-return]


class _NeedsRecords(Exception):
    """Something can only be said record by record."""


@dataclass(frozen=True)
class _Some:
    """Records on a stream.

    Attributes:
        records: Which of those that were sent they are, ascending.
        columns: Their fields as columns; None if they are objects.
        values: Makes objects of them.
        keys: Their keys; None if they have none.
    """

    records: Ints
    columns: Mapping[str, pa.Array] | None
    values: Callable[[], Sequence[Any]]
    keys: pa.Array | None = None

    def where(self, rows_kept: npt.NDArray[np.bool_]) -> _Some:
        mask, flags = pa.array(rows_kept), rows_kept.tolist()
        columns, values, keys = self.columns, self.values, self.keys
        return _Some(
            self.records[rows_kept],
            None if columns is None else {n: c.filter(mask) for n, c in columns.items()},
            lambda: [value for value, flag in zip(values(), flags, strict=True) if flag],
            None if keys is None else keys.filter(mask),
        )

    def made(self, by: Expression) -> dict[str, pa.Array]:
        """Return the columns that an expression makes of them."""
        if self.columns is None:
            return by.columns(by.gathered(self.values()), len(self.records))
        if missing := [name for name in by.reads if name not in self.columns]:
            raise _NeedsRecords(missing)
        return by.columns(self.columns, len(self.records))


class ColumnEncoder:
    """Makes rows on edges of the records of an injected stream.

    Args:
        topology: The pipeline.
        stream: The injected stream.
        router: Sends what becomes objects.
        batches: Whether rows to sinks may be batches.
    """

    def __init__(self, topology: Topology, stream: str, router: Router, *, batches: bool) -> None:
        self._topology = topology
        self._stream = topology.streams[stream]
        self._router = router
        self._batches = batches
        self._routes: dict[tuple[str, Any], Route] = {}

    def of_columns(
        self,
        columns: Mapping[str, pa.Array],
        values: Callable[[], Sequence[Any]],
        at_us: Ints,
    ) -> Sent | None:
        """Return the rows of records whose fields are columns.

        Args:
            columns: Fields, of the types that they have as columns.
            values: Makes objects of all records.
            at_us: Event times.

        Returns:
            None if it must be done record by record.
        """
        return self._sent(_Some(np.arange(len(at_us)), columns, _once(values)), at_us)

    def of_values(self, values: Sequence[Any], at_us: Ints) -> Sent | None:
        """Return the rows of records that are objects; see :meth:`of_columns`."""
        try:
            for value in values:
                self._stream.coder.encode(value)
        except RAISED:
            return None
        return self._sent(_Some(np.arange(len(at_us)), None, lambda: values), at_us)

    def _sent(self, some: _Some, at_us: Ints) -> Sent | None:
        walk = _Walk(self, at_us)
        try:
            walk.over(self._stream, some)
        except _NeedsRecords:
            return None
        except RAISED:  # whatever user code and kernels raise, it is found again at its record
            return None
        return Sent(walk.counts, walk.parts)

    def spec(self, stream: str) -> StreamSpec:
        """Return what is known of a stream."""
        return self._topology.streams[stream]

    def route(
        self, stream: str, part: Step | tuple[Edge, ...], extractor: KeyExtractor | None = None
    ) -> Route:
        """Return some edges of a stream, or one of its steps, as a way of its own."""
        name = part.target if isinstance(part, Step) else tuple(edge.number for edge in part)
        if (stream, name) not in self._routes:
            self._routes[stream, name] = self._router.part(stream, part, extractor)
        return self._routes[stream, name]

    def send(self, made: RowsBuilder, route: Route, value: Any, at_us: int, key: Any) -> None:
        """Append the rows of an object."""
        self._router.send_on(made, route, value, at_us, key)

    def sink_columns(
        self, spec: StreamSpec, edge: Edge, columns: Mapping[str, pa.Array] | None
    ) -> dict[str, pa.Array] | None:
        """Return the columns of records as a sink gets them; None if it must be told objects."""
        if not self._batches or edge.sink is None or edge.identified or columns is None:
            return None
        limits = spec.limits
        if limits is not None and (limits.nul != NO_LIMITS.nul or limits.columns):
            return None
        return typed_columns(spec, columns)


def typed_columns(spec: StreamSpec, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array] | None:
    """Return columns as those of a stream's format; None if only objects can tell."""
    fields = _plain_fields(spec)
    if fields is None:
        return None
    arrays = {}
    for name, kind in fields.items():
        known, column = column_type_of(kind), columns.get(name)
        if known is None or column is None or typing.get_origin(kind) is typing.Annotated:
            return None
        wanted, nullable = known
        if column.null_count and not nullable:
            return None
        if column.type != wanted:
            if not (pa.types.is_integer(column.type) and pa.types.is_floating(wanted)):
                return None
            column = column.cast(wanted, safe=False)
        arrays[name] = column
    return arrays


def _plain_fields(spec: StreamSpec) -> dict[str, Any] | None:
    """Return the fields of a format that checks nothing but their types."""
    coder = spec.coder
    if not isinstance(coder, MsgpackCoder):
        return None
    kind = coder.type
    if hasattr(kind, "__post_init__"):
        return None
    config = getattr(kind, "__struct_config__", None)
    if config is not None and (config.forbid_unknown_fields or config.tag is not None):
        return None
    if isinstance(spec.format, type) and issubclass(spec.format, msgspec.Struct):
        return fields_of(spec.format)
    if isinstance(spec.format, type) and dataclasses.is_dataclass(spec.format):
        return fields_of(spec.format)
    return fields_of(coder)


def _once(values: Callable[[], Sequence[Any]]) -> Callable[[], Sequence[Any]]:
    """Return the same, called once: an object that a step changes is the next one's, too."""
    cached: list[Sequence[Any]] = []

    def made() -> Sequence[Any]:
        if not cached:
            cached.append(values())
        return cached[0]

    return made


class _Walk:
    """Takes some records down the streams, depth first, as a router takes one."""

    def __init__(self, encoder: ColumnEncoder, at_us: Ints) -> None:
        self._encoder = encoder
        self._at_us = at_us
        self.counts: Ints = np.zeros(len(at_us), dtype=np.int64)
        self.parts: list[_Part] = []

    def over(self, spec: StreamSpec, some: _Some) -> None:
        """Send records on a stream."""
        if not len(some.records):
            return
        self._to_edges(spec, some)
        for step in spec.steps:
            self._through(spec, step, some)

    def _to_edges(self, spec: StreamSpec, some: _Some) -> None:
        if not spec.edges:
            return
        first = self.counts[some.records]
        self.counts[some.records] += len(spec.edges)
        objects, alone = list[tuple[int, Edge]](), list[tuple[int, Edge, Result]]()
        for n, edge in enumerate(spec.edges):
            columns = self._encoder.sink_columns(spec, edge, some.columns)
            if (by := edge.key_expression) is not None:
                alone.append((n, edge, by))
                continue
            if columns is None:
                objects.append((n, edge))
                continue
            keys = [None] * len(some.records) if some.keys is None else _encoded(listed(some.keys))
            self.parts.append(
                _Batched(
                    some.records,
                    first + n,
                    edge.number,
                    columns,
                    pa.array(keys, pa.binary()),
                    self._at_us[some.records],
                )
            )
        if objects:
            route = self._encoder.route(spec.name, tuple(edge for _, edge in objects))
            rows, counts = self._routed(route, some)
            if (counts != len(objects)).any():
                raise _NeedsRecords(spec.name)
            row_numbers = first[:, None] + np.array([n for n, _ in objects])[None, :]
            records = np.repeat(some.records, len(objects))
            self.parts.append(_Encoded(records, row_numbers.reshape(-1), rows))

        for n, edge, by in alone:
            (keyed,) = some.made(by).values()
            route = self._encoder.route(spec.name, (edge,), by_key())
            rows, _ = self._routed(route, dataclasses.replace(some, keys=keyed))
            self.parts.append(_Encoded(some.records, first + n, rows))

    def _routed(self, route: Route, some: _Some) -> tuple[RowsBuilder, Ints]:
        """Return the rows of objects on a way, and how many each has become."""
        rows, ends = RowsBuilder(), [0]
        keys = [None] * len(some.records) if some.keys is None else listed(some.keys)
        times = self._at_us[some.records].tolist()
        for value, at_us, key in zip(some.values(), times, keys, strict=True):
            self._encoder.send(rows, route, value, at_us, key)
            ends.append(len(rows))
        return rows, np.diff(ends)

    def _through(self, spec: StreamSpec, step: Step, some: _Some) -> None:
        target, expression = self._encoder.spec(step.target), step.expression
        if isinstance(expression, Condition):
            (flags,) = some.made(expression).values()
            mask = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
            self.over(target, some if mask.all() else some.where(mask))
        elif isinstance(expression, Selection | Extension):
            columns: Mapping[str, pa.Array] = some.made(expression)
            if isinstance(expression, Extension):
                if some.columns is None or expression.fields.keys() - some.columns.keys():
                    return self._by_function(spec, step, some)
                columns = {**{n: some.columns[n] for n in expression.fields}, **columns}
            self.over(
                target, _Some(some.records, columns, _once(lambda: _dicts(columns)), some.keys)
            )
        elif isinstance(expression, Result) and step.kind == "key_by":
            (keys,) = some.made(expression).values()
            self.over(target, dataclasses.replace(some, keys=keys))
        elif isinstance(expression, Result):
            (column,) = some.made(expression).values()
            self.over(target, _Some(some.records, {}, _once(lambda: listed(column)), some.keys))
        elif step.only_names and self._same(spec, target, some):
            if step.kind == "key_by":
                (name, *more) = step.function.fields  # type: ignore[attr-defined]  # ByFields
                if more or some.columns is None or name not in some.columns:
                    return self._by_function(spec, step, some)
                some = dataclasses.replace(some, keys=some.columns[name])
            self.over(target, some)
        else:
            self._by_function(spec, step, some)
        return None

    def _same(self, spec: StreamSpec, target: StreamSpec, some: _Some) -> bool:
        """Return whether records are of the format of the next stream as well."""
        if target.coder == spec.coder:
            return True
        return some.columns is not None and typed_columns(target, some.columns) is not None

    def _by_function(self, spec: StreamSpec, step: Step, some: _Some) -> None:
        rows, counts = self._routed(self._encoder.route(spec.name, step), some)
        first = self.counts[some.records]
        self.counts[some.records] += counts
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        row_numbers = np.repeat(first, counts) + within
        self.parts.append(_Encoded(np.repeat(some.records, counts), row_numbers, rows))


def _dicts(columns: Mapping[str, pa.Array]) -> list[dict[str, Any]]:
    lists = map(listed, columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _encoded(keys: list[Any]) -> list[bytes | None]:
    return [None if key is None else encode_key(key) for key in keys]


def read_batch(data: bytes) -> pa.RecordBatch:
    """Return the records of a batch, with the columns of :data:`~millrace.runtime.wire.BATCH`."""
    with ipc.open_stream(data) as reader:
        return reader.read_next_batch()
