"""The feed: records that a test gives to an injected stream, as the rows of one epoch's source.

Polling: one epoch of an injector, read in process; the Harness's side of what Spark does.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from millrace.compile.topology import StreamSpec, Topology
from millrace.injectors.columns import column_names, conformed
from millrace.injectors.injector import Injector, Origin
from millrace.injectors.offsets import Offsets, Piece, advanced, pieces
from millrace.injectors.refusals import Refusal, column_of, refusals_of
from millrace.kernel.record_ids import fingerprint
from millrace.model.declarations import Injection as Injecting
from millrace.model.errors import CoderError, PipelineError, brief
from millrace.model.stream import by
from millrace.model.time import LATEST_RECORD, MIN_TIMESTAMP, timestamp_us
from millrace.runtime.partials_stage import Lifter
from millrace.runtime.refusal import EventTimes
from millrace.runtime.reports import TaskReport, report_row
from millrace.runtime.row_encoder import RowEncoder, fingerprints, microseconds
from millrace.runtime.rows import Outbox
from millrace.runtime.values import ROWS, ValueReader, display_value, value_columns
from millrace.runtime.worker_process import Task
from millrace.watermark.report import ProcessState


@dataclass(frozen=True)
class Read:
    """A record as it was given.

    Attributes:
        value: The value.
        instant: Its event time, in the form that the caller gave it.
        process: The process of the injector that it came by.
        fingerprint: Of its source id; None if it has none.
        refused: Why its format refuses it; None if it does not.
        piece: What an injector read it in; None if it was given.
        row: Its number in that.
    """

    value: Any
    instant: Any
    process: str
    fingerprint: bytes | None = None
    refused: Refusal | None = None
    piece: Piece | None = None
    row: int = 0


@dataclass(frozen=True)
class Feed:
    """What an injected stream delivers in one epoch.

    Attributes:
        stream: The stream.
        records: In order.
        told: Process -> what it says of itself.
        reached: Process of the stream's injector -> the offset to which it was read, and what it
            has promised.
    """

    stream: str
    records: Sequence[Read]
    told: Mapping[str, ProcessState]
    reached: Mapping[str, tuple[Any, int | None]] = field(default_factory=dict)

    def rows(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield rows on edges and a report, as an encode stage does."""
        report = TaskReport()
        outbox = Outbox(task)
        times, refused = list[int | None](), dict[int, Refusal]()
        injection = task.topology.streams[self.stream].injection
        ingress = injection is not None and injection.ingress
        for n, record in enumerate(self.records):
            if record.refused is not None:
                refused[n] = record.refused
            if ingress:
                times.append(task.manifest.wall_time_us)
                continue
            if record.instant is None:
                times.append(None)
                continue
            try:
                times.append(timestamp_us(record.instant))
            except (PipelineError, TypeError, ValueError, OverflowError) as error:
                times.append(None)
                refused[n] = Refusal(str(error))
        ids = None
        if injection is not None and injection.id is not None:
            ids = [record.fingerprint for record in self.records]
        # A test's clock stands where the test set it, so it says nothing about timestamps.
        feeding = RowEncoder(task, self.stream, 0, outbox, report, EventTimes(LATEST_RECORD))
        values = [record.value for record in self.records]
        stats = report.source(self.stream)
        stats.processes = dict(self.told)
        if self.reached:
            report.reached[self.stream] = dict(self.reached)
        for n in feeding.send(values, times, ids, refused, origins=partial(self._origins, task)):
            name, at_us = self.records[n].process, times[n]
            assert at_us is not None, "a record without a time is refused"
            stats.hear(name, ProcessState(at_us))
        for batch in outbox.batches():
            yield from Lifter(task).lifted(batch)
        yield report_row(report, task.number)

    def _origins(self, task: Task, positions: Sequence[int]) -> dict[int, Origin]:
        """Return what records of an injector were in its source, by position."""
        by_piece: dict[int, tuple[Piece, list[int]]] = {}
        for n in positions:
            if (piece := self.records[n].piece) is not None:
                by_piece.setdefault(piece.number, (piece, []))[1].append(n)
        of_piece = task.runtime.origins.of_piece
        return {
            sequences[n]: origin
            for piece, sequences in by_piece.values()
            for n, origin in of_piece(
                self.stream, piece, [self.records[at].row for at in sequences]
            ).items()
        }


def reads(injection: Injecting, records: Iterable[tuple[Any, ...]]) -> list[Read]:
    """Return records as they were given: (value, timestamp, process), and an id if it was.

    Raises:
        PipelineError: One has a timestamp, or an id, where there are none, or lacks its id.
    """
    found = []
    for value, instant, process, *given in records:
        if injection.ingress and instant is not None:
            raise PipelineError(
                f"stream {injection.stream!r} has event time by ingress, so a record of it has "
                f"none of its own; {instant!r} was given. Give (value, None), and set the clock: "
                "h.advance_clock(...)."
            )
        naive = next(naive_datetimes(value), None)
        refused = None if naive is None else Refusal(_NAIVE.format(naive or "the value"))
        made, id = None, given_id(injection, value, given)
        if id is not None:
            try:
                made = fingerprint(id)
            except CoderError as error:
                refused = Refusal(f"the id: {error}")
        found.append(Read(value, instant, process, made, refused))
    return found


#: No source gives such a value: its column, or its line, is refused.
_NAIVE = (
    "{} is a datetime without a time zone, which names no instant. Give it one, such as "
    "tzinfo=datetime.timezone.utc."
)


def naive_datetimes(value: Any, where: str = "") -> Iterator[str]:
    """Yield where in a value datetimes without a time zone stand.

    >>> import datetime as dt
    >>> list(naive_datetimes({"at": dt.datetime(2026, 1, 1), "of": [dt.date(2026, 1, 1)]}))
    ['at']
    """
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            yield where
        return
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = enumerate(value)
    elif isinstance(value, msgspec.Struct):
        inside = msgspec.structs.asdict(value).items()
    elif dataclasses.is_dataclass(value):
        inside = vars(value).items()
    for name, part in inside:
        yield from naive_datetimes(part, f"{where}.{name}" if where else str(name))


def given_id(injection: Injecting, value: Any, given: Sequence[Any]) -> Any:
    """Return a record's id: what was given, or a field of the value; None if there is none."""
    if injection.id is None:
        if given:
            raise PipelineError(
                f"stream {injection.stream!r} has no ids, but a record was given one, "
                f'{given[0]!r}. Declare their column: p.inject("{injection.stream}", id="...").'
            )
        return None
    if given:
        return given[0]
    try:
        return by(injection.id)(value, None)
    except (AttributeError, KeyError, TypeError):
        raise PipelineError(
            f"stream {injection.stream!r} has its ids in column {injection.id!r}, and value "
            f"{brief(value)} no such field. Give the id beside it: (value, timestamp, id)."
        ) from None


def injection_of(topology: Topology, stream: str) -> Injecting:
    """Return how a stream is injected.

    Raises:
        PipelineError: It is not.
    """
    spec = topology.streams.get(stream)
    if spec is None or spec.injection is None:
        known = [spec.name for spec in topology.injected()]
        raise PipelineError(f"stream {stream!r} is not injected; the injected streams are {known}.")
    return spec.injection


@dataclass(frozen=True)
class Delivery:
    """What an injector delivers in one epoch.

    Attributes:
        records: In order.
        processes: Process -> the low watermark that it published, if it reported one.
        offsets: Where the next epoch begins.
    """

    records: list[Read]
    processes: dict[str, ProcessState]
    offsets: Offsets


def poll(spec: StreamSpec, start: Offsets, waiting: Collection[str]) -> Delivery:
    """Return what an injected stream's injector delivers next.

    Args:
        spec: The stream.
        start: Where its processes stand.
        waiting: Those that are held back.

    Raises:
        PipelineError: The stream's source is no injector.
    """
    injection = spec.injection
    injector = injection.source if injection is not None else None
    if injection is None or not isinstance(injector, Injector):
        raise PipelineError(
            f"poll({spec.name!r}): its source is {injector!r}. Expected an mr.sources.Injector; "
            "feed other streams with h.inject()."
        )
    end = advanced(spec.name, injector, start, waiting)
    names, timestamp = column_names(injector.schema), str(injection.timestamp)
    apart = None if spec.format in ROWS else injection.id
    columns = value_columns(spec.name, spec.format, names, timestamp, (apart,))
    reader = ValueReader(spec.name, spec.format, columns)
    reads, processes = list[Read](), {}
    for piece in pieces(injector, start, end):
        where = f"{type(injector).__name__}.read_arrow({piece.process!r})"
        batches = injector.read_arrow(piece.process, *piece.between) if piece.between else ()
        first = 0
        for batch in batches:
            rows = conformed(batch, injector.schema, where)
            for n, read in enumerate(_reads(reader, columns, injection, rows, piece.process)):
                reads.append(replace(read, piece=piece, row=first + n))
            first += rows.num_rows
        if piece.last:
            process_watermark_us = (
                MIN_TIMESTAMP if piece.process_watermark_us is None else piece.process_watermark_us
            )
            processes[piece.process] = ProcessState(process_watermark_us=process_watermark_us)
    return Delivery(reads, processes, end)


def _reads(
    reader: ValueReader,
    columns: Sequence[str],
    injection: Injecting,
    rows: pa.RecordBatch,
    process: str,
) -> Iterator[Read]:
    """Yield the records of rows, read as on Spark."""
    arrays = {name: rows.column(name) for name in columns}
    found = reader.read_columns(arrays, rows.num_rows)
    times: Sequence[int | None] = [None] * rows.num_rows
    if not injection.ingress:
        at = rows.column(str(injection.timestamp))
        times = microseconds(at, injection.unit).to_pylist()
    ids: Sequence[bytes | None] = [None] * rows.num_rows
    if injection.id is not None:
        ids = fingerprints(rows.column(injection.id)).to_pylist()
    refused = refusals_of(column_of(rows))
    for n, reason in found.refused.items():
        refused.setdefault(n, Refusal(reason))
    for n, (value, at_us) in enumerate(zip(found.values, times, strict=True)):
        if n in refused:
            value = {name: display_value(array, n) for name, array in arrays.items()}
        yield Read(value, at_us, process, ids[n], refused.get(n))
