"""The level stage: the computations of one level, for the intervals that one task owns.

A task reads everything that was sent to it, so when it starts to work, every task of the level
before has finished, and the low watermarks they sent are those of the epoch: the exchange is the
barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.compile.topology import ComputationSpec
from millrace.model.errors import InvariantViolation
from millrace.plane import wire
from millrace.plane.commit_writer import PutWriter
from millrace.plane.inbox import Inbox
from millrace.plane.partials_stage import Lifter
from millrace.plane.reports import TaskReport, report_row
from millrace.plane.rows import Outbox
from millrace.plane.task import Task
from millrace.watermark.propagation import Pending, WatermarkPropagation
from millrace.windmill.bundle import Arrivals, Attempt, Bundle
from millrace.windmill.execution import Attempted
from millrace.windmill.fence import EpochFence
from millrace.windmill.manifest import Manifest
from millrace.windmill.positions import Positions
from millrace.windmill.results import IntervalResult

_EMPTY = wire.SCHEMA.empty_table()


@dataclass(frozen=True)
class LevelStage:
    """The stage of a level.

    Attributes:
        level: Which, from 1.
    """

    level: int

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows for the levels below, the sinks and the driver, in the order of their making.

        What only passes comes first: it was made by levels above.
        """
        received = list(batches)
        started = time.perf_counter()
        yield from _Run(task, self.level).over(received, started)


class _Run:
    """One run of a level's task."""

    def __init__(self, task: Task, level: int) -> None:
        self._task = task
        self._level = level
        self._topology = task.topology
        self._outbox = Outbox(task)
        self._report = TaskReport()
        self._inbox = Inbox(task, level, self._outbox, self._report)
        execution = task.runtime.execution
        fence = EpochFence(execution.state.epochs, task.manifest)
        self._writer = PutWriter(execution, fence, task.number)
        self._positions = task.runtime.positions(task.manifest)

    def over(self, received: list[pa.RecordBatch], started: float) -> Iterator[pa.RecordBatch]:
        """Run the level's computations over what arrived."""
        told, records = list[bytes](), list[pa.RecordBatch]()
        for batch in received:
            if not batch.num_rows:
                continue
            edges = batch.column("edge").to_numpy()
            # Messages mostly come in batches of their own, and then nothing needs to be looked for.
            if (edges == wire.CONTROL).all():
                told += batch.column("value").to_pylist()
            elif (edges == wire.REPORT).all():
                yield batch.select(wire.COLUMNS)
            else:
                records.append(batch)
        table = wire.together(records) if records else _EMPTY
        edges = table.column("edge").to_numpy()
        if (of_control := edges == wire.CONTROL).any():
            told += wire.where(table, of_control).column("value").to_pylist()
        specs = [s for s in self._topology.computations if s.level == self._level]
        names = {spec.name for spec in specs}
        here = self._topology.edge_mask(names)
        propagation, pending = self._propagation(told), dict[str, Pending]()
        # Rows of a native source are all for this level, and lack the columns of those that pass.
        on = edges == wire.REPORT
        if not here.all():
            on |= (edges >= 0) & ~here[np.maximum(wire.plain(edges), 0)]
        if on.any():
            passing = wire.where(table.select(wire.COLUMNS), on)
            yield from passing.combine_chunks().to_batches()
        if self._level == 1:
            self._inbox.refuse_unread(table, edges)
            self._inbox.read_punctuation(table, edges)
        attempted: list[Attempted] = []
        for spec in specs:
            arrivals = self._inbox.arrivals(table, edges, spec)
            attempted += self._run(spec, arrivals, propagation.inputs(spec))
        results: dict[str, list[IntervalResult]] = {spec.name: [] for spec in specs}
        for result, productions in self._writer.commit(attempted):
            self._outbox.add_result(result, productions)
            self._report.results.append(result)
            results[result.computation].append(result)
        for spec in specs:
            pending[spec.name] = self._pending(spec, results[spec.name])
        lifter = Lifter(self._task)
        for batch in self._outbox.batches():
            yield from lifter.lifted(batch)
        if self._level < self._topology.depth:
            yield wire.control_rows(propagation.message(pending), self._task.tasks)
        self._report.written = self._task.runtime.snapshots.take()
        self._report.seconds = time.perf_counter() - started
        yield report_row(self._report, self._task.number)

    def _propagation(self, told: list[bytes]) -> WatermarkPropagation:
        """Return the low watermarks that the levels above show, by the messages of all tasks."""
        propagation = self._task.manifest.propagation()
        if self._level == 1:
            return propagation
        if len(told) != self._task.tasks:
            raise InvariantViolation(
                f"level {self._level}, task {self._task.number}: {len(told)} of "
                f"{self._task.tasks} tasks of the level before sent their low watermarks"
            )
        propagation.hear(map(wire.decode_message, told), self._topology)
        return propagation

    def _run(
        self, spec: ComputationSpec, arrivals: Arrivals, clocks: dict[int, int]
    ) -> list[Attempted]:
        """Run a computation for the intervals of the task that have work.

        An interval without records and without a due timer is as it was: it has no commit. Nor does
        it cost anything.
        """
        manifest, owned = self._task.manifest, self._owned(spec)
        bundles = bundles_of_epoch(manifest, spec, self._positions, owned, arrivals, clocks)
        return self._writer.run(spec, bundles) if bundles else []

    def _owned(self, spec: ComputationSpec) -> range:
        intervals = self._task.manifest.interval_map(spec.name)
        return intervals.owned(self._task.number, self._task.tasks)

    def _pending(self, spec: ComputationSpec, results: list[IntervalResult]) -> Pending:
        """Return the pending work of a computation's intervals that the task owns."""
        self._task.runtime.snapshots.offer(
            spec.name, [result.interval for result in results if result.counters.keys]
        )
        spread, ran = bool(self._topology.percentiles), [result.interval for result in results]
        bulletin = self._positions.bulletin(spec.name)
        idle = bulletin.pending(spread, within=self._owned(spec), without=ran)
        return Pending.of((result.report for result in results), spread=spread).merged(idle)


def bundles_of_epoch(
    manifest: Manifest,
    spec: ComputationSpec,
    positions: Positions,
    owned: range,
    arrivals: Arrivals,
    clocks: Mapping[int, int],
) -> list[Bundle]:
    """Return the bundles of a computation in an epoch: of the intervals that have work.

    Args:
        manifest: Of the epoch.
        spec: The computation.
        positions: Where intervals stand when it begins.
        owned: The places in the interval map of the intervals that the task owns.
        arrivals: Every record for them.
        clocks: Percentile -> the computation's input low watermark after the records, 100 among
            them.
    """
    intervals = manifest.interval_map(spec.name)
    attempt = Attempt(
        manifest.epoch,
        manifest.generation,
        manifest.wall_time_us,
        manifest.arrival_watermark_us(spec),
        clocks,
        manifest.before.outputs[spec.name],
        manifest.arrival_percentiles(spec),
        manifest.before.inputs[spec.name],
        len(intervals),
    )
    return positions.bundles(spec, intervals, owned, arrivals.of_intervals(intervals), attempt)
