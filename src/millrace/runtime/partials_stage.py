"""Combiner lifting: rows on edges to groupings become partials before they are exchanged.

Where the engine itself makes the rows of a source, lifting takes a stage of its own in front of the
exchange. That stage is left out as long as it would not pay; see :class:`Payoff`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.topology import Edge
from millrace.dataflow.partials import Lift, Lifted
from millrace.kernel.record_ids import are_weak, injected_origin
from millrace.model.errors import RAISED
from millrace.runtime import wire
from millrace.runtime.reports import SourceObserver, TaskReport, report_row
from millrace.runtime.rows import Rows
from millrace.runtime.values import ValueReader
from millrace.runtime.worker_process import SourceColumns, Task


class Lifter:
    """Makes partials of the rows that a task sends.

    Args:
        task: Its manifest's low watermarks say which records are late; those go on as they are.
        by_time: Groupings take a key's records in order of time, as in a batch.
    """

    def __init__(self, task: Task, *, by_time: bool = False) -> None:
        self._topology = task.topology
        self._manifest = task.manifest
        self._by_time = by_time
        self._edges: dict[int, Edge] = {}
        if task.runtime.lift:
            self._edges = {e.number: e for e in task.topology.edges if e.lift is not None}

    def combined(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows, with partials in place of the rows that they combine; few rows unchanged."""
        if rows.few is not None:
            yield rows
        else:
            yield from map(Rows, self.lifted(rows.batch()))

    def lifted(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the wire's schema, with partials in place of the rows they combine."""
        edges = batch.column("edge").to_numpy()
        for number in self._edges.keys() & set(np.unique(edges).tolist()):
            edge = self._edges[number]
            spec = self._topology.computation(str(edge.computation))
            at_us = _times(batch)
            from_us = self._manifest.arrival_watermark_us(spec)
            # Weak productions may come again, and what is in a partial can be told by no id.
            weak = are_weak(batch.column("origin").to_numpy())
            chosen = (edges == number) & (at_us >= from_us) & ~weak
            if not chosen.any():
                continue
            rows = wire.where(batch, chosen)
            lifted = edge.lift.apply_encoded(
                self._topology.streams[edge.stream].coder,
                rows.column("key"),
                rows.column("hash").to_numpy().view(np.uint64),
                rows.column("ts").to_numpy(),
                rows.column("value"),
                by_time=self._by_time,
            )
            if lifted is None:
                continue
            yield partial_rows(rows, edge, lifted, rows.column("origin"))
            left = np.ones(len(edges), dtype=bool)
            left[np.flatnonzero(chosen)[lifted.taken]] = False
            batch, edges = wire.where(batch, left), edges[left]
        if batch.num_rows:
            yield batch


def partial_rows(rows: Any, edge: Edge, lifted: Lifted, origins: pa.Array) -> pa.RecordBatch:
    """Return partials as rows: each with key, id and timestamp of the first record in it."""
    first = pa.array(lifted.first)
    encode = edge.lift.coder.encode
    return pa.RecordBatch.from_arrays(
        [
            rows.column("pid").take(first),
            pa.array(np.full(len(lifted), wire.lifted(edge.number), dtype=np.int32)),
            rows.column("hash").take(first),
            rows.column("key").take(first),
            pa.array([encode(partial) for partial in lifted.partials], pa.binary()),
            rows.column("ts").take(first),
            origins.take(first),
            rows.column("sequence").take(first),
        ],
        schema=wire.SCHEMA,
    )


@dataclass(frozen=True)
class LiftStage:
    """The stage that lifts the rows of native sources.

    Attributes:
        by_time: Groupings take a key's records in order of time, as in a batch.
    """

    by_time: bool = False

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield partials, the rows that go on as they are, and this task's report."""
        started = time.perf_counter()
        native = NativeLifter(task, by_time=self.by_time)
        schema = None
        for batch in batches:
            schema = lifted_schema(batch.schema)
            yield from native.lifted(batch, schema)
        if schema is None:
            return  # nothing came, nothing to report
        native.report.seconds = time.perf_counter() - started
        yield _widened(report_row(native.report, task.number % task.tasks), schema)


class NativeLifter:
    """Lifts the rows of native sources, in one task.

    Args:
        task: As of a :class:`Lifter`.
        by_time: Likewise.
    """

    def __init__(self, task: Task, *, by_time: bool = False) -> None:
        self._task = task
        self._by_time = by_time
        self._topology = task.topology
        self._manifest = task.manifest
        self.report = TaskReport()
        self._observer = SourceObserver(task, self.report)
        self._sources = {source.stream: source for source in task.runtime.sources}

    def lifted(self, batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield partials and the rows that go on as they are, with a :func:`lifted_schema`."""
        edges = batch.column("edge").to_numpy()
        for edge in self._topology.edges:
            source = self._sources.get(edge.stream)
            if edge.lift is None or source is None:
                continue
            chosen = edges == edge.number
            count = int(np.count_nonzero(chosen))
            self.report.liftable += count
            self.report.partials += count
            partials = self._lift(batch, chosen, edge, source)
            if partials is None:
                continue
            rows, lifted = partials
            origin = injected_origin(source.number, self._manifest.epoch)
            origins = pa.array(np.full(rows.num_rows, origin, dtype=np.int64))
            yield _widened(partial_rows(rows, edge, lifted, origins), schema)
            taken = wire.where(rows, lifted.taken)
            table = pa.Table.from_batches([taken])
            self._observer.observe(edge, table, taken.column("ts").to_numpy())
            self.report.partials += len(lifted) - taken.num_rows
            left = np.ones(len(edges), dtype=bool)
            left[np.flatnonzero(chosen)[lifted.taken]] = False
            batch, edges = wire.where(batch, left), edges[left]
        if batch.num_rows:
            yield _widened(batch, schema)

    def _lift(
        self,
        batch: pa.RecordBatch,
        chosen: npt.NDArray[np.bool_],
        edge: Edge,
        source: SourceColumns,
    ) -> tuple[pa.RecordBatch, Lifted] | None:
        """Return the rows on an edge that are as they should be, and their partials."""
        spec = self._topology.computation(str(edge.computation))
        at_us = _times(batch)
        from_us = self._manifest.arrival_watermark_us(spec)
        chosen &= (at_us >= from_us) & ~self._task.event_times(edge.stream).refused(at_us)
        if not chosen.any():
            return None
        rows = wire.where(batch, chosen)
        struct = rows.column(f"s{source.number}")
        reader = self._task.runtime.readers[edge.stream]
        lift: Lift = edge.lift
        accepted = reader.accepted(struct)
        values = picked = None
        if lift.needs_values:
            values = lift.column(partial(reader.column, struct), len(struct))
            if values is None:
                picked = _picked(reader, struct, accepted, lift)
                if picked is None:
                    return None
        only = pa.array(accepted)
        keys, hashes = rows.column("key"), rows.column("hash").to_numpy().view(np.uint64)
        times, by_time = rows.column("ts").to_numpy(), self._by_time
        if not accepted.all():
            keys, hashes, times = keys.filter(only), hashes[accepted], times[accepted]
            values = None if values is None else values.filter(only)
        if picked is not None:
            lifted = lift.apply_picked(keys, hashes, times, picked, by_time=by_time)
        else:
            lifted = lift.apply(keys, hashes, times, values, by_time=by_time)
        if lifted is None:
            return None
        return rows, lifted.at(np.flatnonzero(accepted), len(accepted))


def _picked(
    reader: ValueReader, struct: pa.StructArray, accepted: npt.NDArray[np.bool_], lift: Lift
) -> Sequence[Any] | None:
    """Return what a function picks of the accepted values; None if it fails, or there is none."""
    if not lift.takes_elements:
        return None
    values = reader.read(struct).values
    try:
        return lift.picked([values[n] for n in np.flatnonzero(accepted).tolist()])
    except RAISED:  # the grouping meets it too, and can say at which record
        return None


def _times(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    return pc.fill_null(batch.column("ts"), 0).to_numpy()  # type: ignore[no-any-return]


def lifted_schema(native: pa.Schema) -> pa.Schema:
    """Return the schema of rows of native sources with partials among them."""
    more = [wire.SCHEMA.field(name) for name in ("value", "origin") if name not in native.names]
    return pa.schema([*native, *more])


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with all columns of a schema, null where it has none."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Payoff:
    """Decides, epoch by epoch, whether the lifting stage pays.

    It costs a hand-over of every row to Python and back, so it is worth it only where it leaves far
    fewer. An epoch in which it does not is followed by epochs without, twice as many each time.

    >>> payoff = Payoff()
    >>> payoff.wanted()
    True
    >>> payoff.seen(records=5000, liftable=5000, partials=4000)
    >>> [payoff.wanted() for _ in range(3)]
    [False, True, True]
    """

    #: Records a partial must stand for.
    LEAST = 2
    #: After an epoch of fewer records than these the next one can do without.
    FEW = 1_000
    #: Longest pause, in epochs.
    LONGEST = 64

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0
        self._busy = True

    def wanted(self) -> bool:
        """Return whether the next epoch is to have the stage."""
        if self._left:
            self._left -= 1
            return False
        return self._busy

    def seen(self, *, records: int, liftable: int, partials: int) -> None:
        """Take what an epoch was like.

        Args:
            records: How many were read.
            liftable: How many of them came to the stage; 0 if there was none.
            partials: What it left of those.
        """
        self._busy = records >= self.FEW
        if not self._busy or not liftable:
            return
        if partials * self.LEAST <= liftable:
            self._pause = 0
        else:
            self._pause = self._left = min(max(1, self._pause * 2), self.LONGEST)
