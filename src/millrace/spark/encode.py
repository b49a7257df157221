"""The encode stage: source rows through stateless steps and key functions, to rows on edges.

It runs in the Spark stage that scans the source, and only for sources that need Python before the
first shuffle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.time import EARLIEST_RECORD, MIN_TIMESTAMP
from millrace.spark import processes, wire
from millrace.spark.lifting import Lifter
from millrace.spark.refusal import refuse, time_refusal
from millrace.spark.rows import RowBuilder, messages_table
from millrace.spark.runtime import Blueprint, Runtime, SourceColumns, runtime_of
from millrace.watermark.ahead import Ahead
from millrace.windmill.manifest import Manifest, decode_manifest
from millrace.windmill.record_ids import injected_origin, place
from millrace.windmill.routing import Productions
from millrace.windmill.source_ids import NO_FINGERPRINT, null_id


class EncodeTask:
    """The function of the encode stage, one call a source partition.

    Args:
        blueprint: Of the run.
        manifest: Of the epoch, as JSON.
        latest_us: Injected stream -> timestamps after this are refused.
        by_time: Groupings take a key's records in order of time, as in a batch.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        manifest: bytes,
        latest_us: dict[str, int],
        *,
        by_time: bool = False,
    ) -> None:
        self.by_time = by_time
        self.blueprint = blueprint
        self.manifest = manifest
        self.latest_us = latest_us
        self._sent = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows on edges, then this task's report."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        self._sent = 0
        started = time.perf_counter()
        runtime = runtime_of(self.blueprint)
        manifest = decode_manifest(self.manifest)
        lifter = Lifter(runtime.topology, manifest, by_time=self.by_time)
        report = wire.TaskReport(0, task, [], {}, {}, {}, 0.0)
        for batch in batches:
            numbers = batch.column("stream").to_numpy()
            for source in self.blueprint.sources:
                chosen = np.flatnonzero(numbers == source.number)
                if not len(chosen) or source.native:
                    continue
                rows = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
                builder = RowBuilder(runtime.topology, manifest, self.blueprint.tasks)
                if source.names_processes:
                    rows = self._punctuation(rows, source, report)
                    if not rows.num_rows:
                        continue
                self._encode(runtime, source, rows, builder, manifest, report)
                for made in builder.batches():
                    yield from lifter.lifted(made)
        report.seconds = time.perf_counter() - started
        yield from messages_table(wire.report_row(report), task % self.blueprint.tasks)

    def _encode(
        self,
        runtime: Runtime,
        source: SourceColumns,
        rows: pa.RecordBatch,
        builder: RowBuilder,
        manifest: Manifest,
        report: wire.TaskReport,
    ) -> None:
        stream, epoch = source.stream, manifest.epoch
        values = runtime.readers[stream].read(rows.column(f"s{source.number}"))
        timestamps = rows.column("ts").to_pylist()
        origin = injected_origin(source.number, epoch)
        latest_us = self.latest_us[stream]
        productions = Productions()
        newest_us, accepted = MIN_TIMESTAMP, list[int]()
        send = runtime.router.send_injected
        names: list[bytes | None] = [None] * len(timestamps)
        unnamed = None
        if source.id is not None:
            names, unnamed = rows.column(wire.FINGERPRINT).to_pylist(), NO_FINGERPRINT
        for n, value in enumerate(values.values):
            at_us = timestamps[n]
            length = len(productions)
            reason = values.refused.get(n) or time_refusal(at_us, latest_us)
            cause: Exception | None = None
            if reason is None and source.id is not None and names[n] is None:
                reason = null_id(source.id)
            if reason is None:
                try:
                    send(productions, stream, value, at_us, names[n])
                    accepted.append(n)
                    newest_us = max(newest_us, at_us)
                except Exception as error:
                    productions.truncate(length)
                    reason, cause = f"{type(error).__name__}: {error}", error
            if reason is not None:
                letter = refuse(
                    runtime.topology, stream, "", reason, value, at_us, epoch, cause=cause
                )
                report.refused[stream] = report.refused.get(stream, 0) + 1
                send(
                    productions,
                    str(runtime.topology.dead_letters),
                    letter,
                    max(EARLIEST_RECORD, min(at_us or 0, latest_us)),
                    unnamed,
                )
        builder.add(productions, origin, self._sequences(rows, len(productions)))
        report.injected[stream] = report.injected.get(stream, 0) + len(accepted)
        if accepted:
            report.newest[stream] = max(report.newest.get(stream, MIN_TIMESTAMP), newest_us)
            if runtime.topology.percentiles:
                taken = np.array([timestamps[n] for n in accepted], dtype=np.int64)
                ahead = report.ahead.get(stream, Ahead())
                report.ahead[stream] = ahead.merged(Ahead.of(taken, manifest.injectors[stream]))
            if source.names_processes:
                processes.note(report, stream, _told(rows.take(pa.array(accepted))), latest_us)

    def _punctuation(
        self, rows: pa.RecordBatch, source: SourceColumns, report: wire.TaskReport
    ) -> pa.RecordBatch:
        """Take the low watermarks that come in rows of their own; return the others."""
        flags = rows.column("punctuation")
        told = _told(rows.filter(flags))
        processes.note(report, source.stream, told, self.latest_us[source.stream])
        return rows.filter(pc.invert(flags))

    def _sequences(self, rows: pa.RecordBatch, count: int) -> npt.NDArray[np.int64]:
        """Return the next places in the source partition: a row may have become several records."""
        partition = rows.column("sequence")[0].as_py() >> 33
        first = place(partition, self._sent)
        self._sent += count
        return np.arange(first, first + count, dtype=np.int64)


def _told(rows: pa.RecordBatch) -> pa.Table:
    """Return the columns that tell of processes."""
    return pa.Table.from_batches([rows.select(["ts", *processes.COLUMNS])])
