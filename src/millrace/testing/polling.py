"""Polling: one epoch of an injector, read in process; the Harness's side of what Spark does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.compile.topology import StreamSpec
from millrace.injectors.columns import column_names, conformed
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Offsets, advanced, pieces
from millrace.injectors.refusals import Refusal, column_of, refusals_of
from millrace.model.declarations import Injection as Injecting
from millrace.model.errors import PipelineError
from millrace.model.time import MIN_TIMESTAMP
from millrace.plane.row_encoder import fingerprints, microseconds
from millrace.plane.values import ROWS, ValueReader, shown, value_columns
from millrace.testing.feed import Read
from millrace.watermark.report import Process


@dataclass(frozen=True)
class Delivery:
    """What an injector delivers in one epoch.

    Attributes:
        records: In order.
        processes: Process -> what it promises, for those that were heard.
        offsets: Where the next epoch begins.
    """

    records: list[Read]
    processes: dict[str, Process]
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
            f"poll({spec.name!r}): its source is {injector!r}. Expected an mr.Injector; feed other "
            "streams with h.inject()."
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
            processes[piece.process] = Process(process_watermark_us=process_watermark_us)
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
            value = {name: shown(array, n) for name, array in arrays.items()}
        yield Read(value, at_us, process, ids[n], refused.get(n))
