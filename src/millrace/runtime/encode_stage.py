"""The encode stage: source rows through stateless steps and key functions, to rows on edges.

It runs where the source is scanned, and only for sources that need Python before the first
exchange.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.injectors.injector import Origin
from millrace.injectors.offsets import Piece
from millrace.injectors.refusals import column_of
from millrace.kernel.record_ids import LAST_ROW, ROW_BITS
from millrace.runtime import reports, wire
from millrace.runtime.partials_stage import Lifter
from millrace.runtime.reports import TaskReport, count, observe_processes, report_row
from millrace.runtime.row_encoder import RowEncoder
from millrace.runtime.rows import Outbox
from millrace.runtime.worker_process import SourceColumns, Task


@dataclass(frozen=True)
class EncodeStage:
    """The stage of sources whose records Python makes.

    Attributes:
        by_time: Groupings take a key's records in order of time, as in a batch.
    """

    by_time: bool = False

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows on edges, then this task's report."""
        started = time.perf_counter()
        run = _Run(task, Lifter(task, by_time=self.by_time), once=self.by_time)
        for batch in batches:
            yield from run.encoded(batch)
        run.report.seconds = time.perf_counter() - started
        yield report_row(run.report, task.number % task.tasks)


class _Run:
    """One run of the stage."""

    def __init__(self, task: Task, lifter: Lifter, *, once: bool) -> None:
        self._task = task
        self._lifter = lifter
        self._outbox = Outbox(task, once=once)
        self._injections: dict[tuple[str, int], RowEncoder] = {}
        self.report = TaskReport()

    def encoded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what a batch of source rows becomes."""
        numbers = batch.column("stream").to_numpy()
        for source in self._task.runtime.sources:
            chosen = np.flatnonzero(numbers == source.number)
            if not len(chosen) or source.native:
                continue
            rows = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
            if "punctuation" in rows.schema.names and source.names_processes:
                rows = self._punctuation(rows, source)
                if not rows.num_rows:
                    continue
            injection = self._task.topology.streams[source.stream].injection
            if injection is not None and injection.ingress:
                # The manifest is durable before anything is read, so a retry has the same time.
                at_us = np.full(rows.num_rows, self._task.manifest.wall_time_us, dtype=np.int64)
                rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", pa.array(at_us))
            self._encode(source, rows)
            for edge_rows in self._outbox.batches():
                yield from self._lifter.lifted(edge_rows)

    def _encode(self, source: SourceColumns, rows: pa.RecordBatch) -> None:
        stream, task = source.stream, self._task
        partition = rows.column("sequence")[0].as_py() >> ROW_BITS
        injection = self._injections.get((stream, partition))
        if injection is None:
            injection = self._injections[stream, partition] = RowEncoder(
                task,
                stream,
                partition,
                self._outbox,
                self.report,
                task.event_times(stream),
                batches=True,
            )
        values = rows.column(f"s{source.number}")
        count(self.report.injected_bytes, stream, values.nbytes)
        find = None
        if (piece := task.pieces.get((stream, partition))) is not None:
            find = partial(_origins, task, stream, piece, rows.column("sequence"))
        accepted = injection.send_columns(
            values,
            rows.column("ts").to_pylist(),
            None if source.id is None else rows.column(wire.FINGERPRINT).to_pylist(),
            refusals=column_of(rows),
            origins=find,
        )
        if accepted and source.names_processes:
            columns = _process_columns(rows.take(pa.array(accepted)))
            observe_processes(self.report, stream, columns, task.latest_us[stream])

    def _punctuation(self, rows: pa.RecordBatch, source: SourceColumns) -> pa.RecordBatch:
        """Take the low watermarks that come in rows of their own; return the others."""
        flags = rows.column("punctuation")
        columns = _process_columns(rows.filter(flags))
        observe_processes(self.report, source.stream, columns, self._task.latest_us[source.stream])
        return rows.filter(pc.invert(flags))


def _origins(
    task: Task, stream: str, piece: Piece, sequences: pa.Array, positions: Sequence[int]
) -> Mapping[int, Origin]:
    """Return the origins, by position, of rows of a piece."""
    rows = [sequences[n].as_py() & LAST_ROW for n in positions]
    origins = task.runtime.origins.of_piece(stream, piece, rows)
    return {positions[n]: origin for n, origin in origins.items()}


def _process_columns(rows: pa.RecordBatch) -> pa.Table:
    """Return the columns that tell of processes."""
    return pa.Table.from_batches([rows.select(["ts", *reports.COLUMNS])])
