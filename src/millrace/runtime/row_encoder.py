"""The row encoder: what an injector reads, as rows on edges.

Both planes read columns: event times, values, fingerprints of ids. Where keys are in columns, rows
are keyed in Arrow, whole columns at a time, and byte for byte as Spark does it for a source of its
own (:mod:`millrace.spark.source`). Otherwise records go through stateless steps and key functions
one by one: so they do in the encode stage, the Harness and the simulator. What cannot be sent
becomes a dead letter, or an error where the pipeline declares no stream for them.

In real time a record's id is its place in its process, so that it is the same whenever it is read
again::

    stream number + 2**14 : 15 | 1 : 1 | place, upper bits : 47
    process : 31 | place, lower bits : 16 | which of the rows that the record became : 17
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.explanation import one_field
from millrace.compile.topology import Edge, StreamSpec
from millrace.injectors.columns import conformed
from millrace.injectors.dead_letters import letter_in
from millrace.injectors.injector import Injector, Origin
from millrace.injectors.refusals import Refusal, column_of, refusals_of
from millrace.kernel.record_ids import (
    FINGERPRINT_BYTES,
    FIRST_INJECTED,
    LIVE_ORIGIN,
    MADE_BITS,
    NO_FINGERPRINT,
    ROW_BITS,
    injected_origin,
    null_id,
    place,
)
from millrace.kernel.router import RowsBuilder
from millrace.kernel.user_errors import note
from millrace.model.errors import RAISED, CoderError, PipelineError, brief_error
from millrace.model.keys import hash_key
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MIN_TIMESTAMP,
    TimeUnit,
    in_microseconds,
)
from millrace.runtime import wire
from millrace.runtime.column_encoder import Sent
from millrace.runtime.packet_codec import encoded_numbers, hashes_of_numbers
from millrace.runtime.partials_stage import Lifter, NativeLifter, lifted_schema
from millrace.runtime.refusal import BatchOrigins, EventTimes, FindOrigins, refuse, refuse_again
from millrace.runtime.reports import TaskReport, count
from millrace.runtime.rows import Outbox, Rows, are_few
from millrace.runtime.values import display_value
from millrace.runtime.worker_process import SourceColumns, Task, WorkerProcess
from millrace.watermark.percentiles import Ahead

Ints = npt.NDArray[np.int64]


class Keying:
    """Makes rows on edges of a task's source rows.

    Args:
        task: Its manifest's interval maps say which task owns a key.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    def on_edges(self, source: SourceColumns, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a source for each of its stream's consumers.

        A row that cannot be a record, as it has no time that may be one, no key or no id, is there
        once, for the first consumer's level to refuse.

        Args:
            source: Whose rows they are.
            rows: With ``ts``, the struct of the source's columns, and what else it has.
        """
        task, stream = self._task, self._task.topology.streams[source.stream]
        struct = rows.column(f"s{source.number}")
        keyed = [_keys(_key_column(edge, struct)) for edge in stream.edges]
        at = rows.column("ts")
        at_us = (at if not at.null_count else pc.fill_null(at, MIN_TIMESTAMP)).to_numpy()
        accepted = (at_us >= EARLIEST_RECORD) & (at_us <= LATEST_RECORD)
        needed = [keys for keys, _ in keyed]
        if wire.FINGERPRINT in rows.schema.names:
            needed.append(rows.column(wire.FINGERPRINT))
        for column in needed:
            if column.null_count:
                accepted &= column.is_valid().to_numpy(zero_copy_only=False)
        whole = bool(accepted.all())
        for (keys, hashes), edge in zip(keyed, stream.edges, strict=True):
            intervals = task.manifest.interval_map(str(edge.computation))
            edge_rows = pa.RecordBatch.from_arrays(
                [
                    pa.array(intervals.task_of(hashes, task.tasks)),
                    pa.array(np.full(len(hashes), edge.number, dtype=np.int32)),
                    pa.array(hashes.view(np.int64)),
                    keys,
                    *rows.columns,
                ],
                names=["pid", "edge", "hash", "key", *rows.schema.names],
            )
            if not whole and edge is not stream.edges[0]:
                edge_rows = wire.where(edge_rows, accepted)
            elif not whole:
                number = np.where(accepted, np.int32(edge.number), np.int32(wire.REFUSED))
                edge_rows = edge_rows.set_column(1, "edge", pa.array(number))
            if edge_rows.num_rows:
                yield edge_rows


def encoded(column: pa.Array) -> pa.Array:
    """Return text, bytes or integers as ``encode_key`` encodes each of them; null for a null.

    >>> encoded(pa.array(["JFK", None])).to_pylist(), encoded(pa.array([-1]))[0].as_py().hex()
    ([b'sJFK', None], '697fffffffffffffff')
    """
    kind = column.type
    if pa.types.is_integer(kind):
        return encoded_numbers(column)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    tag = pa.scalar(b"s" if text else b"b", pa.binary())
    return pc.binary_join_element_wise(tag, column.cast(pa.binary()), pa.scalar(b""))


def fingerprints(ids: pa.Array) -> pa.Array:
    """Return the fingerprints of ids, as ``source_ids.fingerprint`` makes them; null for a null.

    >>> fingerprints(pa.array(["event-1", None])).to_pylist()[0].hex()
    'a945a389aa4b0da955ab596c6ede1d6a'
    """
    return pa.array(
        [
            None if id is None else hashlib.sha256(id).digest()[:FINGERPRINT_BYTES]
            for id in encoded(ids).to_pylist()
        ],
        pa.binary(),
    )


def _keys(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
    """Return the encoded keys and their hashes; of a null any hash."""
    if pa.types.is_integer(column.type):
        return encoded_numbers(column), hashes_of_numbers(column)
    # Keys recur, and to find those that do costs less than to hash them again.
    distinct = column.dictionary_encode()
    keys = encoded(distinct.dictionary)
    hashes = np.fromiter(map(hash_key, keys.to_pylist()), np.uint64, len(keys))
    codes = distinct.indices
    if codes.null_count:
        numbers = pc.fill_null(codes, 0).to_numpy()
        row_hashes = hashes[numbers] if len(hashes) else np.zeros(len(column), np.uint64)
        return keys.take(codes), row_hashes
    return keys.take(codes), hashes[codes.to_numpy()]


def _key_column(edge: Edge, struct: pa.StructArray) -> pa.Array:
    name = one_field(edge)
    assert name is not None, "native sources have keys in columns"
    return pc.struct_field(struct, name)


class Injected(NamedTuple):
    """Rows of an injector.

    Attributes:
        at_us: Event times, null where there is none, or where it is that of the epoch.
        rows: With the columns of the injector's schema.
        names: Of the columns that make a value.
        fingerprints: Of the source's ids; None if it has none.
        refusals: Why its injector refuses a row, null where it does not; None if it refuses none.
    """

    at_us: pa.Array
    rows: pa.RecordBatch
    names: Sequence[str]
    fingerprints: pa.Array | None
    refusals: pa.StructArray | None = None

    def where(self, flags: npt.NDArray[np.bool_]) -> Injected:
        """Return the rows whose flags are true."""
        mask = pa.array(flags)
        return Injected(
            self.at_us.filter(mask),
            self.rows.filter(mask),
            self.names,
            None if self.fingerprints is None else self.fingerprints.filter(mask),
            None if self.refusals is None else self.refusals.filter(mask),
        )

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """Whether a row is refused, of each."""
        if self.refusals is None:
            return np.zeros(self.rows.num_rows, dtype=bool)
        flags: npt.NDArray[np.bool_] = self.refusals.is_valid().to_numpy(zero_copy_only=False)
        return flags

    @property
    def columns(self) -> dict[str, pa.Array]:
        """The columns that make a value, by name."""
        return {name: self.rows.column(name) for name in self.names}

    @property
    def values(self) -> pa.StructArray:
        """The same as one struct."""
        return pa.StructArray.from_arrays(
            list(self.columns.values()), fields=[self.rows.schema.field(n) for n in self.names]
        )

    @property
    def nbytes(self) -> int:
        """About how many bytes the values have."""
        return sum(_bytes_of(self.rows.column(name)) for name in self.names)


def injected(
    source: SourceColumns, stream: StreamSpec, rows: pa.RecordBatch, where: str
) -> Injected:
    """Return what an injector has read as the columns of its source.

    Args:
        source: The source.
        stream: The injected stream.
        rows: As the injector gives them.
        where: They come from, for messages.

    Raises:
        PipelineError: A column of the injector's schema is missing, or of another type.
    """
    injection = stream.injection
    assert injection is not None, "only injected streams are read"
    injector = injection.source
    assert isinstance(injector, Injector), "a task reads nothing else"
    rows = conformed(rows, injector.schema, where)
    return Injected(
        pa.nulls(rows.num_rows, pa.int64())
        if injection.ingress
        else microseconds(rows.column(str(injection.timestamp)), injection.unit),
        rows,
        source.columns,
        None if source.id is None else fingerprints(rows.column(source.id)),
        column_of(rows),
    )


def microseconds(column: pa.Array, unit: TimeUnit | None) -> pa.Array:
    """Return event times as microseconds, null where there is none.

    What would overflow is as far out of range as can be said.

    >>> microseconds(pa.array([1, None, 1 << 62]), "s").to_pylist()
    [1000000, None, 9223372037000000]
    """
    if pa.types.is_timestamp(column.type):
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", column.type.tz))
        return column.view(pa.int64())
    whole = column if column.type == pa.int64() else column.cast(pa.int64())
    per = 0 if unit == "ns" else in_microseconds(1, unit)
    if per == 1:
        return whole
    nulls = whole.is_null().to_numpy(zero_copy_only=False) if whole.null_count else None
    at = (whole if nulls is None else whole.fill_null(0)).to_numpy()
    if unit == "ns":
        return pa.array(at // 1000, mask=nulls)
    most = LATEST_RECORD // per + 1
    return pa.array(np.clip(at, -most, most) * per, mask=nulls)


def _bytes_of(column: pa.Array) -> int:
    # Arrow looks at each buffer, which takes long for few rows.
    if pa.types.is_primitive(column.type):
        return len(column) * int(column.type.bit_width) // 8
    return int(column.nbytes)


#: Returns both halves of the ids of rows, given how many each record has become.
RowIds = Callable[[npt.NDArray[np.int64]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


class RowEncoder:
    """Sends what one partition of one injected stream delivers in an epoch.

    Args:
        task: The task that reads.
        stream: The injected stream.
        partition: Number of the source partition: part of the records' ids.
        outbox: Takes the rows.
        report: Takes what is seen.
        times: Which event times are accepted.
        batches: Whether many records for a sink may leave in one row.
    """

    def __init__(
        self,
        task: Task,
        stream: str,
        partition: int,
        outbox: Outbox,
        report: TaskReport,
        times: EventTimes,
        *,
        batches: bool = False,
    ) -> None:
        self._task = task
        self._stream = stream
        self._partition = partition
        self._outbox = outbox
        self._report = report
        self._times = times
        spec = task.topology.streams[stream]
        self._id = getattr(spec.injection, "id", None)
        self._origin = injected_origin(spec.number, task.manifest.epoch)
        self._sent = 0
        self._columns = task.runtime.column_encoder(stream, batches=batches)

    def send(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None = None,
        refused: Mapping[int, Refusal] | None = None,
        ids: RowIds | None = None,
        origins: FindOrigins | None = None,
    ) -> list[int]:
        """Send records in order; return the positions of those that were accepted.

        Args:
            values: Of the stream's format.
            timestamps: Event times in microseconds; None where there is none.
            fingerprints: Of their source ids, None where one is missing; None if the stream has no
                ids.
            refused: Positions that were refused already, and why.
            ids: Gives the rows their ids, where the source numbers its records; by default they
                are counted.
            origins: Finds what those that are refused were in their source.

        Raises:
            RecordRejected: One was refused, and there is no dead-letter stream.
        """
        if self._columns is not None and len(values) > 1 and not refused and fingerprints is None:
            encode = self._columns.of_values
            if self._sound(timestamps) and self._sent_whole(encode(values, _ints(timestamps)), ids):
                self._observe(timestamps)
                return list(range(len(values)))
            return self._in_halves(
                len(values),
                ids,
                origins,
                lambda part, ids, origins: self.send(
                    values[part], timestamps[part], None, None, ids, origins
                ),
            )
        stream, productions = self._stream, RowsBuilder()
        router = self._task.runtime.router
        if (
            not refused
            and stream != self._task.topology.again
            and self._sound(timestamps)
            and router.send_all(productions, stream, values, timestamps, fingerprints)
        ):
            accepted, counts = list(range(len(values))), [1] * len(values)
        else:
            found = self._one_by_one(
                productions, values, timestamps, fingerprints, refused or {}, ids, origins
            )
            accepted, counts = found
        if ids is not None:
            self._outbox.add_all(productions, *ids(np.array(counts, dtype=np.int64)))
        else:
            self._count(productions)
        if accepted:
            self._observe([timestamps[n] for n in accepted])
        return accepted

    def _observe(self, timestamps: Sequence[int | None]) -> None:
        """Note the event times of records that were accepted."""
        taken, ahead = _ints(timestamps), None
        if self._task.topology.percentiles:
            ahead = Ahead.of(taken, self._task.manifest.injectors[self._stream])
        self._report.source(self._stream).count(len(taken), int(taken.max()), ahead)

    def _sent_whole(self, sent: Sent | None, ids: RowIds | None) -> bool:
        """Take rows that were made by columns; return whether there are any."""
        if sent is None:
            return False
        count = int(sent.counts.sum())
        if ids is not None:
            origins, sequences = ids(sent.counts)
        else:
            origins = np.full(count, self._origin, dtype=np.int64)
            first = place(self._partition, self._sent)
            sequences = np.arange(first, first + count, dtype=np.int64)
            self._sent += count
        for rows, *halves in sent.rows(np.asarray(origins), np.asarray(sequences)):
            self._outbox.add_all(rows, *halves)
        return True

    def _in_halves(
        self,
        count: int,
        ids: RowIds | None,
        origins: FindOrigins | None,
        send: Callable[[slice, RowIds | None, FindOrigins | None], list[int]],
    ) -> list[int]:
        """Send records of which one is not as it should be, half of them at a time."""
        accepted, half = list[int](), count // 2
        for part in (slice(0, half), slice(half, count)):
            found = send(part, _ids_within(ids, part, count), _origins_within(origins, part))
            accepted += [n + part.start for n in found]
        return accepted

    def send_columns(
        self,
        values: pa.StructArray,
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None = None,
        ids: RowIds | None = None,
        refusals: pa.StructArray | None = None,
        origins: FindOrigins | None = None,
    ) -> list[int]:
        """Send records whose values are in columns; otherwise as :meth:`send`.

        Args:
            values: A struct of the columns.
            timestamps: Event times in microseconds; None where there is none.
            fingerprints: Of their source ids.
            ids: Gives the rows their ids.
            refusals: Why their injector refuses some of them.
            origins: Finds what those that are refused were in their source.
        """
        reader = self._task.runtime.readers[self._stream]
        if (
            self._columns is not None
            and len(values) > 1
            and fingerprints is None
            and (refusals is None or refusals.null_count == len(refusals))
        ):
            columns = reader.field_columns(values) if self._sound(timestamps) else None
            if columns is not None and self._sent_whole(
                self._columns.of_columns(
                    columns, lambda: reader.read(values).values, _ints(timestamps)
                ),
                ids,
            ):
                self._observe(timestamps)
                return list(range(len(values)))
            return self._in_halves(
                len(values),
                ids,
                origins,
                lambda part, ids, origins: self.send_columns(
                    values[part], timestamps[part], None, ids, None, origins
                ),
            )
        read, refused = reader.read(values), refusals_of(refusals)
        for n, reason in read.refused.items():
            read.values[n] = display_value(values, n)  # what a dead letter or an error shows
            # Where the time is a field as well, its format could only say that this is null.
            refused.setdefault(n, Refusal(self._times.refusal(timestamps[n]) or reason))
        return self.send(read.values, timestamps, fingerprints, refused, ids, origins)

    def _sound(self, timestamps: Sequence[int | None]) -> bool:
        """Return whether all event times are accepted."""
        if None in timestamps or not timestamps:
            return False
        try:
            at_us = np.array(timestamps, dtype=np.int64)
        except OverflowError:
            return False
        return self._times.accepts_all(at_us)

    def _one_by_one(
        self,
        productions: RowsBuilder,
        values: Sequence[Any],
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None,
        refused: Mapping[int, Refusal],
        ids: RowIds | None,
        origins: FindOrigins | None,
    ) -> tuple[list[int], list[int]]:
        """Append the rows of records; return those that were accepted, and each one's rows."""
        stream, topology = self._stream, self._task.topology
        router, accepted, counts = self._task.runtime.router, list[int](), list[int]()
        send, again, places = router.send_injected, stream == topology.again, None
        sources = None if origins is None else BatchOrigins(origins, len(values))
        for n, value in enumerate(values):
            before, at_us = len(productions), timestamps[n]
            fingerprint = None if fingerprints is None else fingerprints[n]
            known = refused.get(n)
            if known is not None and known.dropped:
                self._report.source(stream).dropped += 1
                counts.append(0)
                continue
            reason = self._times.refusal(at_us) if known is None else known.reason
            cause: BaseException | None = None
            if reason is None and fingerprints is not None and fingerprint is None:
                reason = null_id(str(self._id))
            if reason is None:
                assert at_us is not None, "a record without a time is refused"
                try:
                    if again:
                        router.send_letter(productions, letter_in(value), at_us)
                    else:
                        send(productions, stream, value, at_us, fingerprint)
                    accepted.append(n)
                except RAISED as error:
                    reason, cause = brief_error(error), error
            if reason is not None:
                epoch = self._task.manifest.epoch
                if ids is None:
                    here = self._origin, place(self._partition, self._sent + before)
                else:
                    if places is None:
                        places = ids(np.ones(len(values), dtype=np.int64))
                    here = int(places[0][n]), int(places[1][n])
                if again:
                    dead_letter = refuse_again(letter_in(value), reason, epoch, cause)
                else:
                    known_whole = known is not None and known.value is not None
                    dead_letter = refuse(
                        topology,
                        stream,
                        "",
                        known or Refusal(reason),
                        value,
                        at_us,
                        epoch,
                        timely=self._times.refusal(at_us) is None,
                        ids=here,
                        origin=sources.at(n) if sources is not None and not known_whole else None,
                        cause=cause,
                    )
                note(self._report.source(stream).letters, dead_letter)
                send(
                    productions,
                    str(topology.dead_letters),
                    dead_letter,
                    max(EARLIEST_RECORD, min(at_us or 0, self._times.latest_us)),
                    None if fingerprints is None else NO_FINGERPRINT,
                )
            counts.append(len(productions) - before)
        return accepted, counts

    def _count(self, productions: RowsBuilder) -> None:
        # A record may have become several rows, or none.
        first = place(self._partition, self._sent)
        self._sent += len(productions)
        row_numbers = range(first, first + len(productions))
        self._outbox.add(productions, self._origin, row_numbers)


def _ints(timestamps: Sequence[int | None]) -> Ints:
    return np.array(timestamps, dtype=np.int64)


def _ids_within(ids: RowIds | None, part: slice, count: int) -> RowIds | None:
    """Return what gives ids to the rows of some of the records."""
    if ids is None:
        return None

    def within(counts: Ints) -> tuple[Ints, Ints]:
        whole = np.zeros(count, dtype=np.int64)
        whole[part] = counts
        return ids(whole)

    return within


def _origins_within(origins: FindOrigins | None, part: slice) -> FindOrigins | None:
    """Return what finds the origins of some of the records."""
    if origins is None:
        return None

    def within(positions: Sequence[int]) -> Mapping[int, Origin]:
        origins_of = origins([n + part.start for n in positions])
        return {n - part.start: origin for n, origin in origins_of.items()}

    return within


_MADE_MAX: Final = 1 << MADE_BITS
#: How many bits of a place are in the second half.
_PLACE_BITS: Final = ROW_BITS - MADE_BITS
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1


class LiveRows:
    """Makes rows on edges.

    Attributes:
        newest_us: Latest accepted event time in what was made last.
    """

    def __init__(self, runtime: WorkerProcess) -> None:
        self._topology = runtime.topology
        self._readers = runtime.readers
        self._router = runtime.router
        self._lifts = runtime.lift and any(e.lift is not None for e in runtime.topology.edges)
        self.newest_us = MIN_TIMESTAMP

    def on_edges(
        self,
        task: Task,
        source: SourceColumns,
        rows: pa.RecordBatch,
        numbers: Ints,
        process: int,
        report: TaskReport,
        *,
        at_us: Ints | None = None,
    ) -> Iterator[Rows]:
        """Yield what rows of a source become; see :meth:`lifted`.

        Args:
            task: With a manifest that says what holds now.
            source: Whose rows they are.
            rows: With the columns of the injector's schema, at least one row.
            numbers: Their places in their process.
            process: Its number.
            report: Takes what is observed.
            at_us: Their times where they have event time by ingress.

        Raises:
            RecordRejected: A record is refused, and there is no dead-letter stream.
        """
        stream = self._topology.streams[source.stream]
        columns = injected(source, stream, rows, f"the follower of {source.stream!r}")
        if at_us is not None:
            columns = columns._replace(at_us=pa.array(at_us))
        count(report.injected_bytes, source.stream, columns.nbytes)
        if not source.native or source.stream == self._topology.again:
            yield from self._encoded(task, stream, columns, process, numbers, report)
            return
        if columns.refusals is not None:
            refused = columns.refused
            apart = columns.where(refused)
            yield from self._encoded(task, stream, apart, process, numbers[refused], report)
            columns, numbers = columns.where(~refused), numbers[~refused]
            if not len(numbers):
                return
        if are_few(len(numbers)):
            few = self._few(task, stream, columns, process, numbers, report)
            if few is not None:
                yield from few
                return
        origins, sequences = ids_of(stream.number, process, numbers)
        edge_rows = {
            "ts": columns.at_us,
            "origin": pa.array(origins),
            "sequence": pa.array(sequences),
        }
        if columns.fingerprints is not None:
            edge_rows[wire.FINGERPRINT] = columns.fingerprints
        edge_rows[f"s{source.number}"] = columns.values
        self._note(task, source.stream, columns.at_us, report)
        yield from map(Rows, Keying(task).on_edges(source, pa.RecordBatch.from_pydict(edge_rows)))

    def lifted(self, task: Task, rows: Rows) -> Iterator[Rows]:
        """Yield rows that were never sent before, combined where receivers take partials."""
        if not self._lifts or rows.few is not None:
            yield rows
            return
        batch = rows.batch()
        if "value" in batch.schema.names:
            yield from map(Rows, Lifter(task).lifted(batch))
        else:
            yield from map(Rows, NativeLifter(task).lifted(batch, lifted_schema(batch.schema)))

    def _few(
        self,
        task: Task,
        stream: StreamSpec,
        columns: Injected,
        process: int,
        numbers: Ints,
        report: TaskReport,
    ) -> list[Rows] | None:
        """Return a few records whose keys are in columns, of which no batch is made.

        Returns:
            None if one of them is refused: whoever has columns says so, whether it came with few or
            with many.
        """
        name, times, ids_column = stream.name, columns.at_us.to_pylist(), columns.fingerprints
        refusal = task.event_times(name).refusal
        if any(refusal(at_us) is not None for at_us in times):
            return None
        read, made = self._readers[name].read_columns(columns.columns, len(times)), RowsBuilder()
        fingerprints = None if ids_column is None else ids_column.to_pylist()
        if read.refused or (fingerprints is not None and None in fingerprints):
            return None
        ids: Any
        if self._router.send_all(made, name, read.values, times, fingerprints):
            record_numbers = numbers.tolist()
            ids = tuple(
                zip(*(ids_of(stream.number, process, n) for n in record_numbers), strict=True)
            )
        else:
            rows = list[int]()
            for value, one_us, fingerprint in zip(
                read.values, times, fingerprints or itertools.repeat(None), strict=False
            ):
                before = len(made)
                try:
                    self._router.send_injected(made, name, value, one_us, fingerprint)
                except CoderError:
                    return None  # its key is null
                rows.append(len(made) - before)
            # One row for each consumer, and each has the number that it has among many: a consumer
            # would take another one for news where a record comes again among more or fewer.
            ids = ids_of(stream.number, process, np.repeat(numbers, rows))
        outbox = Outbox(task)
        outbox.add_all(made, *ids)
        self._observe(task, name, times, max(times), report)
        return outbox.rows()

    def _encoded(
        self,
        task: Task,
        spec: StreamSpec,
        columns: Injected,
        process: int,
        numbers: Ints,
        report: TaskReport,
    ) -> Iterator[Rows]:
        outbox, part = Outbox(task), TaskReport()
        ids_column, stream = columns.fingerprints, spec.name

        def origins(positions: Sequence[int]) -> Mapping[int, Origin]:
            halves = ids_of(spec.number, process, numbers[list(positions)])
            ids = list(zip(*(half.tolist() for half in halves), strict=True))
            known = task.runtime.origins.of_ids(task.manifest, stream, ids, ())
            return {positions[n]: origin for n, origin in known.items()}

        RowEncoder(task, stream, 0, outbox, part, task.event_times(stream)).send_columns(
            columns.values,
            columns.at_us.to_pylist(),
            None if ids_column is None else ids_column.to_pylist(),
            row_ids(spec.number, process, numbers),
            columns.refusals,
            origins,
        )
        self.newest_us = part.source(stream).newest_us
        report.add(part)
        yield from outbox.rows()

    def _note(self, task: Task, stream: str, at: pa.Array, report: TaskReport) -> None:
        """Note the records whose time may be one. What their format refuses is found later."""
        at_us = at.to_numpy() if not at.null_count else at.drop_null().to_numpy()
        wrong = task.event_times(stream).refused(at_us) | (at_us < EARLIEST_RECORD)
        if wrong.any():
            at_us = at_us[~wrong]
        if not len(at_us):
            self.newest_us = MIN_TIMESTAMP
            return
        self._observe(task, stream, at_us, int(at_us.max()), report)

    def _observe(
        self,
        task: Task,
        stream: str,
        at_us: Sequence[int] | Ints,
        newest_us: int,
        report: TaskReport,
    ) -> None:
        """Note records whose times are accepted, at least one."""
        self.newest_us = newest_us
        ahead = None
        if self._topology.percentiles:
            ahead = Ahead.of(np.asarray(at_us), task.manifest.injectors[stream])
        report.source(stream).count(len(at_us), newest_us, ahead)


def row_ids(stream: int, process: int, numbers: Ints) -> RowIds:
    """Return what gives ids to the rows that records become; for the arguments see :func:`ids_of`.

    >>> from millrace.kernel.record_ids import injected_count
    >>> ids = row_ids(0, 0, np.array([5, 6]))
    >>> [injected_count((LIVE_ORIGIN, low)) for low in ids(np.array([2, 1]))[1].tolist()]
    [5, 5, 6]
    """

    def ids(counts: Ints) -> tuple[Ints, Ints]:
        if bool((counts == 1).all()):
            return ids_of(stream, process, numbers)
        if counts.max() > _MADE_MAX:
            raise PipelineError(
                f"record {numbers[counts.argmax()]} of an injected process became {counts.max():,} "
                f"rows before its first exchange, and at most {_MADE_MAX:,} can be told apart. "
                "Have a computation make them."
            )
        # Those of one record are counted from 0.
        row_numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return ids_of(stream, process, np.repeat(numbers, counts), row_numbers)

    return ids


def ids_of(stream: int, process: int, numbers: Ints, made: Any = 0) -> tuple[Ints, Ints]:
    """Return both halves of the ids of injected records.

    Args:
        stream: Number of the injected stream.
        process: Number of the process.
        numbers: Places of the records in it.
        made: Which of the rows that its record became each is.

    >>> origins, sequences = ids_of(1, 2, np.array([5]), 1)
    >>> hex(origins[0]), sequences.tolist() == [(2 << 33) | (5 << 17) | 1]
    ('0x4001800000000000', True)
    """
    origins = ((FIRST_INJECTED + stream) << 48) | LIVE_ORIGIN | (numbers >> _PLACE_BITS)
    return origins, place(process, ((numbers & _PLACE_MASK) << MADE_BITS) | made)


def number_at(count: int) -> tuple[int, int]:
    """Return the last number that a record's rows have among its process's, by its place.

    >>> from millrace.kernel.record_ids import injected_count
    >>> injected_count(number_at(7 << 40)) == 7 << 40
    True
    """
    last = (count & _PLACE_MASK) << MADE_BITS | (_MADE_MAX - 1)
    return LIVE_ORIGIN | (count >> _PLACE_BITS), last
