"""The level stage: the computations of one level, for the intervals that one task owns.

A task reads everything that was shuffled to it, so when it starts to work, every task of the level
before has finished, and the low watermarks they sent are those of the epoch: the shuffle is the
barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import ComputationSpec
from millrace.model.errors import InvariantViolation
from millrace.spark import wire
from millrace.spark.inbox import Inbox
from millrace.spark.lifting import Lifter
from millrace.spark.outlet import Outlet
from millrace.spark.rows import RowBuilder
from millrace.spark.runtime import Blueprint, Runtime, runtime_of
from millrace.watermark.shown import Pending, Shown
from millrace.windmill.arrivals import Arrivals
from millrace.windmill.manifest import Manifest, decode_manifest
from millrace.windmill.record_ids import production_ids
from millrace.windmill.worker import Result

_EMPTY = wire.SCHEMA.empty_table()


class LevelTask:
    """The function of a level stage, one call a task.

    Args:
        blueprint: Of the run.
        manifest: Of the epoch, as JSON.
        level: Which level this is, from 1.
        latest_us: Injected stream -> timestamps after this are refused.
    """

    def __init__(
        self, blueprint: Blueprint, manifest: bytes, level: int, latest_us: dict[str, int]
    ) -> None:
        self.blueprint = blueprint
        self.manifest = manifest
        self.level = level
        self.latest_us = latest_us

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows for the next level, or for the sinks and the driver after the last."""
        from pyspark import TaskContext

        context = TaskContext.get()
        received = list(batches)
        started = time.perf_counter()
        runtime = runtime_of(self.blueprint)
        manifest = decode_manifest(self.manifest)
        task = _Task(self, runtime, manifest, context.partitionId() if context is not None else 0)
        leaving = task.run(pa.Table.from_batches(received) if received else _EMPTY, started)
        if self.level < runtime.topology.depth:
            yield from leaving
        else:
            yield from Outlet(runtime).batches(leaving)


class _Task:
    """One run of a level stage's function."""

    def __init__(self, stage: LevelTask, runtime: Runtime, manifest: Manifest, task: int) -> None:
        self._stage = stage
        self._runtime = runtime
        self._topology = runtime.topology
        self._manifest = manifest
        self._task = task
        self._tasks = stage.blueprint.tasks
        self._builder = RowBuilder(self._topology, manifest, self._tasks)
        self._lifter = Lifter(self._topology, manifest)
        self._report = wire.TaskReport(stage.level, task, [], {}, {}, {}, 0.0)
        self._inbox = Inbox(
            runtime, manifest, stage.level, stage.latest_us, self._builder, self._report
        )

    def run(self, table: pa.Table, started: float) -> Iterator[pa.RecordBatch]:
        """Run the level's computations over what arrived."""
        edges = table.column("edge").to_numpy()
        specs = [s for s in self._topology.computations if s.level == self._stage.level]
        names = {spec.name for spec in specs}
        here = [edge.number for edge in self._topology.edges if edge.computation in names]
        shown, pending = self._shown(table, edges), dict[str, Pending]()
        if self._stage.level == 1:
            self._inbox.refuse_unread(table, edges)
            self._inbox.read_punctuation(table, edges)
        for spec in specs:
            arrivals = self._inbox.arrivals(table, edges, spec)
            results = self._run(spec, arrivals, shown.inputs(spec))
            pending[spec.name] = Pending.of(
                (result.report for result in results), spread=bool(self._topology.percentiles)
            )
        for batch in self._builder.batches():
            yield from self._lifter.lifted(batch)
        # Rows of a native source are all for this level, and lack the columns of those that pass.
        on = (edges >= 0) & ~np.isin(wire.plain(edges), here) | (edges == wire.REPORT)
        if on.any():
            passing = table.select(wire.COLUMNS).filter(pa.array(on))
            yield from passing.combine_chunks().to_batches()
        if self._stage.level < self._topology.depth:
            yield wire.control_rows(shown.message(pending), self._tasks)
        self._report.written = self._runtime.snapshots.take()
        self._report.seconds = time.perf_counter() - started
        yield wire.report_row(self._report)

    def _shown(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> Shown:
        """Return the low watermarks that the levels above show, by the messages of all tasks."""
        shown = self._manifest.shown()
        if self._stage.level == 1:
            return shown
        sent = table.column("value").filter(pa.array(edges == wire.CONTROL)).to_pylist()
        if len(sent) != self._tasks:
            raise InvariantViolation(
                f"level {self._stage.level}, task {self._task}: {len(sent)} of {self._tasks} "
                "tasks of the level before sent their low watermarks"
            )
        shown.hear(map(wire.decode_message, sent), self._topology)
        return shown

    def _run(
        self, spec: ComputationSpec, arrivals: Arrivals, clocks: dict[int, int]
    ) -> list[Result]:
        intervals = self._manifest.interval_map(spec.name)
        results = self._runtime.worker.run(
            spec,
            self._manifest,
            intervals,
            intervals.owned(self._task, self._tasks),
            arrivals,
            clocks[100],
            clocks,
        )
        self._runtime.snapshots.offer(
            spec.name, [result.interval for result in results if result.counters.keys]
        )
        for result in results:
            origin, sequences = production_ids(
                spec.number, result.number, result.interval, len(result.productions)
            )
            self._builder.add(result.productions, origin, sequences)
            self._report.intervals.append(
                wire.IntervalReport(
                    result.computation,
                    result.interval,
                    result.number,
                    result.report,
                    result.counters,
                    result.replayed,
                    result.chain,
                    result.repair,
                )
            )
        return results
