"""Rows of the wire from what an injector task has taken: keyed, encoded, numbered by their place.

It is what the reading and encode stages of the epoch plane do, but for the ids: a record's is its
place in its process, so that it is the same whenever it is read again::

    stream number + 2**14 : 15 | 1 : 1 | place, upper bits : 47
    process : 31 | place, lower bits : 16 | which of the rows that the record became : 17
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import StreamSpec
from millrace.injectors.origins import Origin
from millrace.model.errors import CoderError, PipelineError
from millrace.model.time import EARLIEST_RECORD, MIN_TIMESTAMP
from millrace.plane import wire
from millrace.plane.injected import Injected, injected
from millrace.plane.injection import Injection, RowIds
from millrace.plane.keying import Keying
from millrace.plane.lifting import Lifter, NativeLifter, lifted_schema
from millrace.plane.outbox import Outbox
from millrace.plane.reports import TaskReport, count
from millrace.plane.rows import Rows, are_few
from millrace.plane.runtime import Runtime, SourceColumns
from millrace.plane.task import Task
from millrace.watermark.ahead import Ahead
from millrace.windmill.record_ids import FIRST_INJECTED, LIVE_ORIGIN, MADE_BITS, ROW_BITS, place
from millrace.windmill.router import RowsBuilder

_MADE_MAX: Final = 1 << MADE_BITS
#: How many bits of a place are in the second half.
_PLACE_BITS: Final = ROW_BITS - MADE_BITS
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1

Ints = npt.NDArray[np.int64]


class LiveRows:
    """Makes rows on edges.

    Args:
        runtime: Of the process.

    Attributes:
        newest_us: Latest accepted event time in what was made last.
    """

    def __init__(self, runtime: Runtime) -> None:
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
        made = {
            "ts": columns.at_us,
            "origin": pa.array(origins),
            "sequence": pa.array(sequences),
        }
        if columns.fingerprints is not None:
            made[wire.FINGERPRINT] = columns.fingerprints
        made[f"s{source.number}"] = columns.values
        self._note(task, source.stream, columns.at_us, report)
        yield from map(Rows, Keying(task).on_edges(source, pa.RecordBatch.from_pydict(made)))

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
        name, times, found = stream.name, columns.at_us.to_pylist(), columns.fingerprints
        refusal = task.event_times(name).refusal
        if any(refusal(at_us) is not None for at_us in times):
            return None
        read, made = self._readers[name].read_columns(columns.columns, len(times)), RowsBuilder()
        fingerprints = None if found is None else found.to_pylist()
        if read.refused or (fingerprints is not None and None in fingerprints):
            return None
        ids: Any
        if self._router.send_all(made, name, read.values, times, fingerprints):
            places = numbers.tolist()
            ids = tuple(zip(*(ids_of(stream.number, process, n) for n in places), strict=True))
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
            ids = row_ids(stream.number, process, numbers)(np.array(rows, np.int64))
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
        found, stream = columns.fingerprints, spec.name

        def origins(positions: Sequence[int]) -> Mapping[int, Origin]:
            halves = ids_of(spec.number, process, numbers[list(positions)])
            ids = list(zip(*(half.tolist() for half in halves), strict=True))
            known = task.runtime.origins.of_ids(task.manifest, stream, ids, ())
            return {positions[n]: origin for n, origin in known.items()}

        Injection(task, stream, 0, outbox, part, task.event_times(stream)).send_columns(
            columns.values,
            columns.at_us.to_pylist(),
            None if found is None else found.to_pylist(),
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

    >>> from millrace.windmill.record_ids import injected_count
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
        made = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return ids_of(stream, process, np.repeat(numbers, counts), made)

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

    >>> from millrace.windmill.record_ids import injected_count
    >>> injected_count(number_at(7 << 40)) == 7 << 40
    True
    """
    last = (count & _PLACE_MASK) << MADE_BITS | (_MADE_MAX - 1)
    return LIVE_ORIGIN | (count >> _PLACE_BITS), last
