"""The piece reader: what the driver decided that an epoch reads of injectors, in its first stage.

A task of that stage has its pieces in the stage, or gets them one a row: the injected stream, and
what is to be read between which offsets. It reads, and what leaves it is as if the engine had read
it: rows of a source for the encode stage, or rows on edges where keys are in columns. So no record
of an injector is ever a row of Spark's.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Piece, unpacked_piece
from millrace.injectors.refusals import COLUMN
from millrace.kernel.record_ids import injected_origin, place
from millrace.runtime import wire
from millrace.runtime.reports import TaskReport, observe_processes, report_row
from millrace.runtime.row_encoder import Injected, Keying, RowEncoder, injected
from millrace.runtime.rows import Outbox
from millrace.runtime.stragglers import Enough
from millrace.runtime.worker_process import SourceColumns, Stage, Task

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ReadStage:
    """The first stage of a pipeline with injectors; a task reads the pieces that it gets.

    Attributes:
        then: What becomes of the rows in the same task: they are encoded or lifted; None if they
            leave as they are. Rows that the engine has read pass on to it.
        keyed: Whether it gets rows on edges; else it gets rows of sources.
        enough: Of a batch that may leave the rest of its input; else None.
        lots: The pieces of each task, packed, where nothing but pieces is read: its rows stand for
            nothing then. None where each piece is a row, beside those of other sources.
    """

    then: Stage | None
    keyed: bool
    enough: Enough | None = None
    lots: Sequence[Sequence[bytes]] | None = None

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows, then this task's report if it has read anything."""
        started = time.perf_counter()
        reading = _Reading(task, self.enough, keyed=self.keyed)
        if self.lots is None:
            rows = reading.rows(batches)
        else:
            for _ in batches:
                pass  # what Spark has to hand over, so that there is a task
            rows = reading.pieces_of(self.lots[task.number])
        for batch in rows if self.then is None else self.then.run(task, rows):
            yield batch
            yield from reading.letters()
        yield from reading.letters()
        if not reading.pieces:
            return
        if self.then is None:
            reading.report.seconds = time.perf_counter() - started
        yield report_row(reading.report, task.number % task.tasks)


class _Reading:
    """Reads the pieces of one task."""

    def __init__(self, task: Task, enough: Enough | None, *, keyed: bool) -> None:
        self._task = task
        self._decisions = None if enough is None else enough.decisions()
        self._keying = Keying(task) if keyed else None
        self._sources = {source.stream: source for source in task.runtime.sources}
        self._outbox = Outbox(task)
        self.report = TaskReport()
        self.pieces = 0

    def letters(self) -> Iterator[pa.RecordBatch]:
        """Yield the dead letters of records refused since the last call, and those sent again."""
        yield from self._outbox.batches()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all pieces; rows of other sources as they came."""
        for batch in batches:
            column = batch.column("piece")
            of_pieces = column.is_valid().to_numpy(zero_copy_only=False)
            others = wire.where(batch.drop_columns(["piece"]), ~of_pieces)
            if others.num_rows:
                yield others
            yield from self.pieces_of(column.drop_null().to_pylist())

    def pieces_of(self, lot: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some pieces."""
        for packed in lot:
            stream, piece = unpacked_piece(packed)
            self.pieces += 1
            yield from self._read(self._sources[stream], piece)

    def _read(self, source: SourceColumns, piece: Piece) -> Iterator[pa.RecordBatch]:
        stream = self._task.topology.streams[source.stream]
        injector = getattr(stream.injection, "source", None)
        assert isinstance(injector, Injector), "only injectors are read by a task"
        if piece.between is not None:
            self._task.pieces[source.stream, piece.number] = piece
            where, first = f"{type(injector).__name__}.read_arrow({piece.process!r})", 0
            batches = injector.read_arrow(piece.process, *piece.between)
            if self._decisions is not None:
                batches = self._decisions.rows(source.stream, piece.number, batches)
            for batch in batches:
                if not batch.num_rows:
                    continue
                columns = injected(source, stream, batch, where)
                rows = _source_rows(source, columns, piece, first)
                if self._keying is not None:
                    apart = columns.refused
                    if source.stream == self._task.topology.again:
                        apart = np.ones(batch.num_rows, dtype=bool)
                    if apart.any():
                        self._send_apart(source.stream, columns, apart, piece, first)
                        rows = rows.filter(pa.array(~apart))
                    first += batch.num_rows
                    if rows.num_rows:
                        yield from self._keying.on_edges(source, rows)
                else:
                    first += batch.num_rows
                    if columns.refusals is not None:
                        rows = rows.append_column(COLUMN, columns.refusals)
                    number = pa.array(np.full(rows.num_rows, source.number, dtype=np.int32))
                    yield rows.append_column("stream", number)
        if piece.last:
            pass_on(self.report, source.stream, [piece], self._task.latest_us[source.stream])

    def _send_apart(
        self, stream: str, columns: Injected, apart: npt.NDArray[np.bool_], piece: Piece, first: int
    ) -> None:
        """Send rows that no key in columns leads: letters of what is refused, or sent again.

        Each has its row's number.
        """
        task, few = self._task, columns.where(apart)
        row_ids = place(piece.number, first + np.flatnonzero(apart))
        origin = injected_origin(task.topology.streams[stream].number, task.manifest.epoch)

        def ids(counts: Ints) -> tuple[Ints, Ints]:
            rows = np.repeat(row_ids, counts)
            return np.full_like(rows, origin), rows

        sending = RowEncoder(
            task, stream, piece.number, self._outbox, self.report, task.event_times(stream)
        )
        fingerprints = None if few.fingerprints is None else few.fingerprints.to_pylist()
        sending.send_columns(few.values, few.at_us.to_pylist(), fingerprints, ids, few.refusals)


def pass_on(report: TaskReport, stream: str, pieces: Sequence[Piece], latest_us: int) -> None:
    """Add to a report the low watermarks and offsets of processes.

    Args:
        report: Of who takes the pieces.
        stream: The injected stream.
        pieces: Of it, each the last of its process.
        latest_us: Of the stream.
    """
    told = pa.table(
        {
            "ts": pa.nulls(len(pieces), pa.int64()),
            "process": pa.array([piece.process for piece in pieces]),
            "promised": pa.array([piece.process_watermark_us for piece in pieces], pa.int64()),
        }
    )
    observe_processes(report, stream, told, latest_us)
    reached = report.reached.setdefault(stream, {})
    for piece in pieces:
        reached[piece.process] = piece.reached, piece.process_watermark_us


def _source_rows(
    source: SourceColumns, columns: Injected, piece: Piece, first: int
) -> pa.RecordBatch:
    """Return what an injector has read as the engine's rows of a source."""
    count = len(columns.at_us)
    at = place(piece.number, first)
    arrays = {
        "ts": columns.at_us,
        "sequence": pa.array(np.arange(at, at + count, dtype=np.int64)),
        f"s{source.number}": columns.values,
    }
    if columns.fingerprints is not None:
        arrays[wire.FINGERPRINT] = columns.fingerprints
    # One name, and no promise: columns that take two bytes a row, and none. A task may get the rows
    # of ten thousand processes, which is as many as there may be.
    names = np.zeros(count, dtype=np.int16)
    arrays["process"] = pa.DictionaryArray.from_arrays(names, [piece.process])
    arrays["promised"] = pa.nulls(count)
    return pa.RecordBatch.from_pydict(arrays)
