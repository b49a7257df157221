"""The inbox of a level's task: wire rows, read as records for its computations.

Records come as bytes, or, from a native source, as columns. What its record format refuses is set
aside here. Keys stay in their Arrow column until the kernel asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.topology import ComputationSpec, Edge
from millrace.injectors.injector import Origin
from millrace.injectors.refusals import Refusal
from millrace.kernel.bundle import Again, ReceivedRecords
from millrace.kernel.ordering import KeyColumn, arrival_order
from millrace.kernel.record_ids import (
    NO_FINGERPRINT,
    ROW_BITS,
    SourceIds,
    injected_origin,
    null_id,
    unseal,
)
from millrace.kernel.router import RowsBuilder
from millrace.kernel.user_errors import note
from millrace.model.coder import is_immutable
from millrace.model.time import EARLIEST_RECORD
from millrace.runtime import wire
from millrace.runtime.refusal import refuse
from millrace.runtime.reports import SourceObserver, TaskReport, count, observe_processes
from millrace.runtime.rows import Outbox
from millrace.runtime.values import display_value
from millrace.runtime.worker_process import SourceColumns, Task


def keys_in(column: pa.ChunkedArray) -> Sequence[bytes]:
    """Return encoded keys, by record.

    >>> keys = keys_in(pa.chunked_array([[b"sJFK"] * 300 + [b"sEWR"]]))
    >>> len(keys), keys[300], keys.at([0, 300]), keys.changed().nonzero()
    (301, b'sEWR', [b'sJFK', b'sEWR'], (array([299]),))
    """
    return ArrowKeys(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


class ArrowKeys(KeyColumn):
    """Keys in a binary column."""

    __slots__ = ("_column",)

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, n: int) -> bytes: ...
    @overload
    def __getitem__(self, n: slice) -> list[bytes]: ...
    def __getitem__(self, n: int | slice) -> Any:
        value = self._column[n]
        return value.to_pylist() if isinstance(n, slice) else value.as_py()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._column.to_pylist())

    def at(self, positions: list[int]) -> list[bytes]:
        """Return the keys at some places."""
        return self._column.take(pa.array(positions, pa.int64())).to_pylist()  # type: ignore[no-any-return]

    def take(self, order: npt.NDArray[np.intp]) -> ArrowKeys:
        """Return the keys in another order."""
        return ArrowKeys(self._column.take(pa.array(order)))

    def changed(self) -> npt.NDArray[np.bool_]:
        """Return of each key but the first whether it is another than the one before."""
        differs = pc.not_equal(self._column[1:], self._column[:-1])
        return differs.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


#: Processes of a stream have numbers below 2**20, so that the task fits above one in its 31 bits.
_WAY_SHIFT = ROW_BITS + 20


class Inbox:
    """Reads what was shuffled to one task.

    Args:
        task: The task.
        level: Its level.
        outbox: Takes the dead letters.
        report: Takes what is seen of injected streams.
    """

    def __init__(self, task: Task, level: int, outbox: Outbox, report: TaskReport) -> None:
        self._task = task
        self._runtime = task.runtime
        self._topology = task.topology
        self._manifest = task.manifest
        self._level = level
        self._latest_us = task.latest_us
        self._outbox = outbox
        self._report = report
        self._observer = SourceObserver(task, report)

    def received(
        self, table: pa.Table, edges: npt.NDArray[np.int32], spec: ComputationSpec
    ) -> ReceivedRecords:
        """Return the records on edges to a computation."""
        parts = []
        for edge in self._topology.edges:
            if edge.computation != spec.name:
                continue
            if (rows := _on(edge.number, table, edges)) is not None:
                native = self._native(edge.stream) if self._level == 1 else None
                one_origin = native is not None and not self._runtime.live
                for part, column in _by_form(rows, native):
                    parts.append(self._read(_ordered(part, one_origin=one_origin), edge, column))
            if (rows := _on(wire.lifted(edge.number), table, edges)) is not None:
                parts.append(self._read_partials(_ordered(rows, one_origin=False), edge))
        return ReceivedRecords.concat(parts)

    def _read_partials(self, rows: pa.Table, edge: Edge) -> ReceivedRecords:
        decode = edge.lift.coder.decode
        self._receive(edge, rows.column("value"))
        partials = [decode(value) for value in rows.column("value").to_pylist()]
        return ReceivedRecords(
            rows.column("hash").to_numpy().view(np.uint64),
            keys_in(rows.column("key")),
            partials,
            rows.column("ts").to_numpy(),
            edge.stream,
            rows.column("origin").to_numpy(),
            rows.column("sequence").to_numpy(),
            weights=np.array([partial.elements for partial in partials], np.int64),
        )

    def _read(self, rows: pa.Table, edge: Edge, native: str | None) -> ReceivedRecords:
        stream = self._topology.streams[edge.stream]
        ids: SourceIds | None = None
        self._receive(edge, rows.column("value" if native is None else native))
        copies, again = 1, None
        if native is not None:
            rows, values = self._read_native(rows, edge, native)
            again = self._reading_again(rows, edge, native)
            timestamps = rows.column("ts").to_numpy()
            self._observer.observe(edge, rows, timestamps)
            origins = self._origins(rows, edge.stream)
            if edge.identified:
                fingerprints = b"".join(rows.column(wire.FINGERPRINT).to_pylist())
                ids = SourceIds.of(edge.scope, fingerprints, origins, stream.slacks)
        else:
            copies = _copies(rows) if edge.everywhere else 1
            encoded = _repeated(rows.column("value"), copies)
            timestamps = rows.column("ts").to_numpy()
            origins = rows.column("origin").to_numpy()
            if edge.identified:
                encoded, ids = unseal(edge.scope, encoded, origins, stream.slacks)
            decode, each = stream.coder.decode, len(encoded) // copies
            values = [decode(value) for value in encoded[:each]] * copies
            if not is_immutable(stream.coder):
                again = _decoding_again(encoded, decode)
        return ReceivedRecords(
            rows.column("hash").to_numpy().view(np.uint64),
            keys_in(rows.column("key")) if copies == 1 else _repeated(rows.column("key"), copies),
            values,
            timestamps,
            edge.stream,
            origins,
            rows.column("sequence").to_numpy(),
            ids,
            again=again,
        )

    def _receive(self, edge: Edge, values: pa.ChunkedArray) -> None:
        count(self._report.received_bytes, str(edge.computation), values.nbytes)

    def _read_native(self, rows: pa.Table, edge: Edge, column: str) -> tuple[pa.Table, list[Any]]:
        """Return the accepted rows of a native source and their values; set the others aside."""
        struct = rows.column(column).chunk(0)
        read = self._runtime.readers[edge.stream].read(struct)
        refused = read.refused
        times, at_us = self._task.event_times(edge.stream), rows.column("ts").to_numpy()
        for n in np.flatnonzero(times.refused(at_us)).tolist():
            refused[n] = str(times.refusal(int(at_us[n])))
        if not refused:
            return rows, read.values
        if edge == self._topology.streams[edge.stream].edges[0]:
            origins = self._origins_of(edge.stream, rows, list(refused))
            for n, reason in refused.items():
                self._refuse(rows, n, edge, reason, display_value(struct, n), origins.get(n))
        read_rows = [n for n in range(len(read.values)) if n not in refused]
        accepted = rows.take(pa.array(read_rows, pa.int64())).combine_chunks()
        return accepted, [read.values[n] for n in read_rows]

    def _reading_again(self, rows: pa.Table, edge: Edge, column: str) -> Again:
        """Return what reads one of the accepted rows of a native source once more."""
        struct, read = rows.column(column), self._runtime.readers[edge.stream].read
        return lambda n: read(struct.slice(n, 1).chunk(0)).values[0]

    def _origins(self, rows: pa.Table, stream: str) -> npt.NDArray[np.int64]:
        """Return the first halves of the ids of a native source's rows."""
        if self._runtime.live:
            return rows.column("origin").to_numpy()  # type: ignore[no-any-return]
        return np.full(rows.num_rows, self._origin(stream), dtype=np.int64)

    def _letter_id(self, rows: pa.Table, n: int, stream: str) -> tuple[int, int]:
        """Return the id of the dead letter of a refused row."""
        sequence = rows.column("sequence")[n].as_py()
        if not self._runtime.live:
            return self._origin(stream), sequence
        # What this task says of a process is a channel of its own: other ways from the process to
        # the letter's reader have an order of their own.
        way = (self._task.number + 1) << _WAY_SHIFT
        return rows.column("origin")[n].as_py(), sequence + way

    def _origin(self, stream: str) -> int:
        number = next(s.number for s in self._runtime.sources if s.stream == stream)
        return injected_origin(number, self._manifest.epoch)

    def _native(self, stream: str) -> str | None:
        for source in self._runtime.sources:
            if source.stream == stream and source.native:
                return f"s{source.number}"
        return None

    def read_punctuation(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> None:
        """Take the low watermarks that come in rows of their own."""
        chosen = edges == wire.PUNCTUATION
        if not chosen.any():
            return
        rows = wire.where(table, chosen)
        for source in self._runtime.sources:
            if source.names_processes and f"s{source.number}" in table.column_names:
                punctuation = rows.filter(rows.column(f"s{source.number}").is_valid())
                latest_us = self._latest_us[source.stream]
                observe_processes(self._report, source.stream, punctuation, latest_us)

    def refuse_unread(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> None:
        """Set aside the rows that Spark itself could not give a key or a time."""
        refused = edges == wire.REFUSED
        if not refused.any():
            return
        for source in self._runtime.sources:
            name = f"s{source.number}"
            if name not in table.column_names:
                continue
            refused_rows = refused & table.column(name).is_valid().to_numpy()
            positions = np.flatnonzero(refused_rows).tolist()
            origins = self._origins_of(source.stream, table, positions)
            for n in positions:
                self._refuse_unread(table, n, source, origins.get(n))

    def _refuse_unread(
        self, table: pa.Table, n: int, source: SourceColumns, origin: Origin | None
    ) -> None:
        stream = self._topology.streams[source.stream]
        at_us = table.column("ts")[n].as_py()
        value = display_value(table.column(f"s{source.number}").slice(n, 1).combine_chunks(), 0)
        reason = self._task.event_times(source.stream).refusal(at_us)
        edge = stream.edges[0]
        if reason is None and source.id and not table.column(wire.FINGERPRINT)[n].is_valid:
            reason = null_id(source.id)
        if reason is None:
            edge = next(e for e in stream.edges if e.extractor and e.extractor(value, None) is None)
            reason = f"the key, {edge.extractor!r}, is null"
        self._refuse(table, n, edge, reason, value, origin)

    def _origins_of(self, stream: str, rows: pa.Table, refused: list[int]) -> dict[int, Origin]:
        """Return what refused rows were in their source, by position, where that is known."""
        origins = self._runtime.origins
        if not origins.of(stream):
            return {}
        few, first = rows.take(pa.array(refused, pa.int64())), self._origin(stream)
        halves = few.column("origin").to_pylist() if self._runtime.live else [first] * len(refused)
        ids = list(zip(halves, few.column("sequence").to_pylist(), strict=True))
        names = [] if self._runtime.live else few.column("process").cast(pa.string()).to_pylist()
        origins_of = origins.of_ids(self._manifest, stream, ids, names)
        return {refused[n]: origin for n, origin in origins_of.items()}

    def _refuse(
        self, rows: pa.Table, n: int, edge: Edge, reason: str, value: Any, origin: Origin | None
    ) -> None:
        at_us = rows.column("ts")[n].as_py()
        sequence = rows.column("sequence")[n].as_py()
        upper = rows.column("origin")[n].as_py() if self._runtime.live else None
        dead_letter = refuse(
            self._topology,
            edge.stream,
            str(edge.computation),
            Refusal(reason),
            value,
            at_us,
            self._manifest.epoch,
            timely=self._task.event_times(edge.stream).refusal(at_us) is None,
            ids=(self._origin(edge.stream) if upper is None else upper, sequence),
            origin=origin,
        )
        note(self._report.source(edge.stream).letters, dead_letter)
        productions = RowsBuilder()
        stream = self._topology.streams[edge.stream]
        latest_us = self._latest_us[edge.stream]
        self._runtime.router.send_injected(
            productions,
            str(self._topology.dead_letters),
            dead_letter,
            max(EARLIEST_RECORD, min(at_us or 0, latest_us)),
            NO_FINGERPRINT if stream.injection and stream.injection.id else None,
        )
        alike = (
            np.full(len(productions), half, dtype=np.int64)
            for half in self._letter_id(rows, n, edge.stream)
        )
        self._outbox.add_all(productions, *alike)


def _decoding_again(encoded: list[bytes], decode: Callable[[bytes], Any]) -> Again:
    return lambda n: decode(encoded[n])


def _on(number: int, table: pa.Table, edges: npt.NDArray[np.int32]) -> pa.Table | None:
    """Return the rows with an edge's number, which all have that; None if there are none."""
    chosen = edges == number
    if not chosen.any():
        return None
    rest = [name for name in table.column_names if name not in ("pid", "edge")]
    return wire.where(table.select(rest), chosen).combine_chunks()


def _copies(rows: pa.Table) -> int:
    """Return how often the rows are there, once for each key interval; 1 if that is not so.

    Args:
        rows: On an edge to every interval, in order.
    """
    cuts = np.flatnonzero(np.diff(rows.column("hash").to_numpy())) + 1
    copies, each = len(cuts) + 1, len(rows) // (len(cuts) + 1)
    if (cuts != np.arange(1, copies) * each).any() or each * copies != len(rows):
        return 1
    columns = rows.select(["key", "value"])
    first = columns.slice(0, each)
    same = all(columns.slice(n * each, each).equals(first) for n in range(1, copies))
    return copies if same else 1


def _repeated(column: pa.ChunkedArray, copies: int) -> list[Any]:
    """Return a column as a list, in which the copies of a value are one object."""
    once: list[Any] = column.slice(0, len(column) // copies).to_pylist()
    return once * copies


def _by_form(rows: pa.Table, native: str | None) -> Iterator[tuple[pa.Table, str | None]]:
    """Yield the rows of a native source that are columns, with the column; then those as bytes."""
    if native is None or native not in rows.column_names:
        yield rows, None
        return
    if "value" not in rows.column_names or rows.column("value").null_count == len(rows):
        yield rows, native
        return
    encoded = rows.column("value").is_valid().to_numpy()
    for chosen, column in ((~encoded, native), (encoded, None)):
        if chosen.any():
            yield wire.where(rows, chosen).combine_chunks(), column


def _ordered(rows: pa.Table, *, one_origin: bool) -> pa.Table:
    """Return the rows in the order in which they are worked on.

    Sorting columns is cheap; sorting the Python objects that they become is not, and objects that
    were made in another order lie scattered in memory.

    Args:
        rows: On one edge.
        one_origin: They are a native source's, and have no column for it.
    """
    hashes = rows.column("hash").to_numpy().view(np.uint64)
    origins = np.zeros(len(hashes), np.int64) if one_origin else rows.column("origin").to_numpy()
    order = arrival_order(hashes, origins, rows.column("sequence").to_numpy())
    if bool((order[1:] > order[:-1]).all()):
        return rows
    return rows.take(pa.array(order)).combine_chunks()
