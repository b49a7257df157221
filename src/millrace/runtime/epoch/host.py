"""The host of a level task in an epoch: rows in, rows out, for one turn.

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
from millrace.epochlog.entries import Manifest
from millrace.epochlog.fence import EpochFence
from millrace.kernel.bundle import Attempt
from millrace.kernel.results import IntervalResult
from millrace.model.errors import InvariantViolation
from millrace.runtime import wire
from millrace.runtime.admission import EpochAdmission
from millrace.runtime.commit_writer import PutWriter
from millrace.runtime.inbox import Inbox
from millrace.runtime.level_task import LevelTask
from millrace.runtime.partials_stage import Lifter
from millrace.runtime.reports import TaskReport, report_row
from millrace.runtime.rows import Outbox, Rows
from millrace.runtime.worker_process import Task
from millrace.watermark.propagation import Pending, WatermarkPropagation

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
        level_task = self._level_task(specs, propagation)
        level_task.begin_calls(self._task.runtime.call_pools)
        results: dict[str, list[IntervalResult]] = {spec.name: [] for spec in specs}
        produced = level_task.turn(Rows(table), {}, self._inbox, self._report.received_bytes)
        for result, productions in produced:
            self._outbox.add_result(result, productions)
            self._report.results.append(result)
            results[result.computation].append(result)
        for name, calls in level_task.calls.items():
            self._report.called(name, calls.pool.take_stats())
        for spec in specs:
            owned = level_task.owned[spec.name]
            pending[spec.name] = self._pending(spec, owned, results[spec.name])
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

    def _level_task(
        self, specs: list[ComputationSpec], propagation: WatermarkPropagation
    ) -> LevelTask:
        task = self._task
        manifest, number = task.manifest, task.number
        fence = EpochFence(task.runtime.execution.state.epochs, manifest)
        return LevelTask(
            number,
            task.tasks,
            self._positions,
            PutWriter(task.runtime.execution, fence, number),
            [EpochAdmission(spec, manifest.interval_map(spec.name)) for spec in specs],
            lambda spec: attempt_of_epoch(manifest, spec, propagation.inputs(spec)),
        )

    def _pending(
        self, spec: ComputationSpec, owned: range, results: list[IntervalResult]
    ) -> Pending:
        """Return the pending work of a computation's intervals that the task owns."""
        self._task.runtime.snapshots.offer(
            spec.name, [result.interval for result in results if result.counters.keys]
        )
        spread, ran = bool(self._topology.percentiles), [result.interval for result in results]
        bulletin = self._positions.bulletin(spec.name)
        idle = bulletin.pending(spread, within=owned, without=ran)
        return Pending.of((result.report for result in results), spread=spread).merged(idle)


def attempt_of_epoch(
    manifest: Manifest, spec: ComputationSpec, clocks: Mapping[int, int]
) -> Attempt:
    """Return at what a computation's bundles are run in an epoch.

    Args:
        manifest: Of the epoch.
        spec: The computation.
        clocks: Percentile -> the computation's input low watermark after the records, 100 among
            them.
    """
    return Attempt(
        manifest.epoch,
        manifest.generation,
        manifest.wall_time_us,
        manifest.arrival_watermark_us(spec),
        clocks,
        manifest.before.outputs[spec.name],
        manifest.arrival_percentiles(spec),
        manifest.before.inputs[spec.name],
        len(manifest.interval_map(spec.name)),
    )
