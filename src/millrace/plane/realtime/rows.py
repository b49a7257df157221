"""Rows of the wire from what an injector task has taken: keyed, encoded, numbered by their place.

It is what the reading and encode stages of the epoch plane do, but for the ids: a record's is its
place in its process, so that it is the same whenever it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.injectors.injector import Injector
from millrace.injectors.schema import conformed
from millrace.model.time import EARLIEST_RECORD, MIN_TIMESTAMP
from millrace.plane import wire
from millrace.plane.injection import Injection
from millrace.plane.keying import Keying, fingerprints
from millrace.plane.lifting import Lifter, NativeLifter, lifted_schema
from millrace.plane.outbox import Outbox
from millrace.plane.reading import microseconds
from millrace.plane.runtime import Runtime, SourceColumns
from millrace.plane.task import Task
from millrace.windmill.observed import Observed
from millrace.windmill.record_ids import FIRST_INJECTED, LAST_ROW, ROW_BITS, place

#: In the lower part of the origin of what is injected on this plane; no epoch has that number.
LIVE_ORIGIN: Final = 1 << 47


class LiveRows:
    """Makes rows on edges.

    Args:
        runtime: Of the process.

    Attributes:
        newest_us: Latest accepted event time in what was made last.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._topology = runtime.topology
        self.newest_us = MIN_TIMESTAMP

    def on_edges(
        self,
        task: Task,
        source: SourceColumns,
        rows: pa.RecordBatch,
        numbers: npt.NDArray[np.int64],
        process: int,
        observed: Observed,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what rows of a source become; see :meth:`lifted` for what to do with it.

        Args:
            task: With a manifest that says what holds now.
            source: Whose rows they are.
            rows: With the columns of the injector's schema, at least one row.
            numbers: Their places in their process.
            process: Its number.
            observed: Takes what is seen.

        Raises:
            RecordRejected: A record is refused, and there is no dead-letter stream.
        """
        injection = self._topology.streams[source.stream].injection
        assert injection is not None, "only injected streams are read"
        injector = injection.source
        assert isinstance(injector, Injector), "nothing else is read on this plane"
        columns = conformed(rows, injector.schema, type(injector).__name__)
        at = microseconds(columns.column(str(injection.timestamp)), injection.unit)
        origins, sequences = ids_of(self._topology.streams[source.stream].number, process, numbers)
        fields = [columns.schema.field(name) for name in source.columns]
        values = [columns.column(name) for name in source.columns]
        struct = pa.StructArray.from_arrays(values, fields=fields)
        ids = None if source.id is None else fingerprints(columns.column(source.id))
        if not source.native:
            yield from self._encoded(task, source, struct, at, ids, (origins, sequences), observed)
            return
        made = {"ts": at, "origin": pa.array(origins), "sequence": pa.array(sequences)}
        if ids is not None:
            made[wire.FINGERPRINT] = ids
        made[f"s{source.number}"] = struct
        self._note(source.stream, at, task, observed)
        yield from Keying(task).on_edges(source, pa.RecordBatch.from_pydict(made))

    def lifted(self, task: Task, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows that were never sent before, combined where receivers take partials."""
        if "value" in batch.schema.names:
            yield from Lifter(task).lifted(batch)
        elif any(edge.lift is not None for edge in self._topology.edges):
            yield from NativeLifter(task).lifted(batch, lifted_schema(batch.schema))
        else:
            yield batch

    def _encoded(
        self,
        task: Task,
        source: SourceColumns,
        struct: pa.StructArray,
        at: pa.Array,
        ids: pa.Array | None,
        places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
        observed: Observed,
    ) -> Iterator[pa.RecordBatch]:
        stream, outbox = source.stream, Outbox(task)
        report = wire.TaskReport(0, task.number, [], {}, {}, {}, 0.0)
        times = task.event_times(stream)
        injection = Injection(task, stream, 0, outbox, report, times)
        values, timestamps, refused = task.runtime.readers[stream].read(struct), at.to_pylist(), {}
        for n, reason in values.refused.items():
            values.values[n] = struct[n].as_py()  # what a dead letter or an error shows
            refused[n] = times.refusal(timestamps[n]) or reason
        injection.send(
            values.values,
            timestamps,
            None if ids is None else ids.to_pylist(),
            refused,
            places,
        )
        self.newest_us = report.newest.get(stream, MIN_TIMESTAMP)
        observed.add(Observed(report.newest, report.injected, report.refused, {}, report.ahead))
        yield from outbox.batches()

    def _note(self, stream: str, at: pa.Array, task: Task, observed: Observed) -> None:
        """Note the records whose time may be one. What their format refuses is found later."""
        latest_us = task.latest_us[stream]
        within = pc.and_(pc.greater_equal(at, EARLIEST_RECORD), pc.less_equal(at, latest_us))
        newest_us = pc.max(pc.if_else(within, at, pa.scalar(None, pa.int64()))).as_py()
        self.newest_us = MIN_TIMESTAMP if newest_us is None else newest_us
        count = pc.sum(within).as_py() or 0
        if count:
            observed.add(Observed({stream: self.newest_us}, {stream: count}))


def ids_of(
    stream: int, process: int, numbers: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return both halves of the ids of injected records.

    >>> origins, sequences = ids_of(1, 2, np.array([5]))
    >>> hex(origins[0]), sequences.tolist() == [(2 << 33) | 5]
    ('0x4001800000000000', True)
    """
    origins = ((FIRST_INJECTED + stream) << 48) | LIVE_ORIGIN | (numbers >> ROW_BITS)
    return origins, place(process, numbers & LAST_ROW)


def number_at(count: int) -> tuple[int, int]:
    """Return an injected record's number among its process's, by its place.

    >>> injected_count(number_at(7 << 40)) == 7 << 40
    True
    """
    return LIVE_ORIGIN | (count >> ROW_BITS), count & LAST_ROW


def injected_count(number: tuple[int, int]) -> int:
    """Return an injected record's place in its process."""
    return ((number[0] & ~LIVE_ORIGIN) << ROW_BITS) | number[1]
