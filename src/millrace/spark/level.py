"""The level stage: the computations of one level, for the intervals that one task owns.

A task reads everything that was shuffled to it, so when it starts to work, every task of the level
before has finished, and the low watermarks they sent are those of the epoch: the shuffle is the
barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import InvariantViolation
from millrace.model.time import EARLIEST_RECORD, MIN_TIMESTAMP
from millrace.model.topology import ComputationSpec, Edge, injector_name
from millrace.spark import wire
from millrace.spark.outlet import Outlet
from millrace.spark.refusal import refuse, time_refusal
from millrace.spark.rows import RowBuilder
from millrace.spark.runtime import Blueprint, Runtime, runtime_of
from millrace.windmill.arrivals import Arrivals
from millrace.windmill.manifest import Manifest, decode_manifest
from millrace.windmill.record_ids import production_ids
from millrace.windmill.routing import Productions
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
        self._report = wire.TaskReport(stage.level, task, [], {}, {}, {}, 0.0)

    def run(self, table: pa.Table, started: float) -> Iterator[pa.RecordBatch]:
        """Run the level's computations over what arrived."""
        edges = table.column("edge").to_numpy()
        specs = [s for s in self._topology.computations if s.level == self._stage.level]
        here = {
            edge.number: edge
            for edge in self._topology.edges
            if edge.computation in {spec.name for spec in specs}
        }
        low_watermarks = self._low_watermarks(table, edges)
        if self._stage.level == 1:
            self._refused(table, edges)
        for spec in specs:
            input_us = max(
                self._manifest.before.inputs[spec.name],
                min(low_watermarks[sender] for sender in spec.senders),
            )
            arrivals = self._arrivals(table, edges, spec)
            results = self._run(spec, arrivals, input_us)
            low_watermarks[spec.name] = max(
                self._manifest.before.outputs[spec.name],
                min([input_us, *(result.report.oldest_work_us() for result in results)]),
            )
        yield from self._builder.batches()
        on = (edges >= 0) & ~np.isin(edges, list(here)) | (edges == wire.REPORT)
        if on.any():
            passing = table.select(wire.COLUMNS).filter(pa.array(on))
            yield from passing.combine_chunks().to_batches()
        if self._stage.level < self._topology.depth:
            yield wire.control_rows(low_watermarks, self._tasks)
        self._report.seconds = time.perf_counter() - started
        yield wire.report_row(self._report)

    def _low_watermarks(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> dict[str, int]:
        """Return the low watermark of every sender above this level: the minimum over its tasks."""
        found = {
            injector_name(stream): max(
                us, self._manifest.before.outputs.get(injector_name(stream), MIN_TIMESTAMP)
            )
            for stream, us in self._manifest.injectors.items()
        }
        if self._stage.level == 1:
            return found
        sent = table.column("value").filter(pa.array(edges == wire.CONTROL)).to_pylist()
        if len(sent) != self._tasks:
            raise InvariantViolation(
                f"level {self._stage.level}, task {self._task}: {len(sent)} of {self._tasks} "
                "tasks of the level before sent their low watermarks"
            )
        for message in map(wire.decode_low_watermarks, sent):
            for name, us in message.items():
                found[name] = min(found.get(name, us), us)
        return found

    def _arrivals(
        self, table: pa.Table, edges: npt.NDArray[np.int32], spec: ComputationSpec
    ) -> Arrivals:
        parts = []
        for edge in self._topology.edges:
            if edge.computation != spec.name:
                continue
            chosen = edges == edge.number
            count = int(np.count_nonzero(chosen))
            if not count:
                continue
            rows = table if count == len(edges) else table.filter(pa.array(chosen))
            parts.append(self._read(rows.combine_chunks(), edge))
        return Arrivals.together(parts)

    def _read(self, rows: pa.Table, edge: Edge) -> Arrivals:
        stream = self._topology.streams[edge.stream]
        native = self._native(edge.stream) if self._stage.level == 1 else None
        if native is not None:
            struct = rows.column(native).chunk(0)
            read = self._runtime.readers[edge.stream].read(struct)
            values = read.values
            if read.refused:
                for n, reason in read.refused.items():
                    self._refuse(rows, n, edge, reason, struct[n].as_py())
                kept = [n for n in range(len(values)) if n not in read.refused]
                values = [values[n] for n in kept]
                rows = rows.take(pa.array(kept, pa.int64())).combine_chunks()
            timestamps = rows.column("ts").to_numpy()
            self._saw(edge, timestamps)
        else:
            decode = stream.coder.decode
            values = [decode(value) for value in rows.column("value").to_pylist()]
            timestamps = rows.column("ts").to_numpy()
        return Arrivals(
            rows.column("hash").to_numpy().view(np.uint64),
            rows.column("key").to_pylist(),
            values,
            timestamps,
            [edge.stream] * len(values),
            rows.column("origin").to_numpy(),
            rows.column("sequence").to_numpy(),
        )

    def _run(self, spec: ComputationSpec, arrivals: Arrivals, input_us: int) -> list[Result]:
        intervals = self._manifest.interval_map(spec.name)
        results = self._runtime.worker.run(
            spec,
            self._manifest,
            intervals,
            intervals.owned(self._task, self._tasks),
            arrivals,
            input_us,
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
                    result.repaired,
                )
            )
        return results

    # -- what a native source's rows tell ----------------------------------------------------------

    def _native(self, stream: str) -> str | None:
        for source in self._stage.blueprint.sources:
            if source.stream == stream and source.native:
                return f"s{source.number}"
        return None

    def _saw(self, edge: Edge, timestamps: npt.NDArray[np.int64]) -> None:
        if not len(timestamps):
            return
        report, newest_us = self._report, int(timestamps.max())
        report.newest[edge.stream] = max(report.newest.get(edge.stream, MIN_TIMESTAMP), newest_us)
        if edge is self._topology.streams[edge.stream].edges[0]:
            report.injected[edge.stream] = report.injected.get(edge.stream, 0) + len(timestamps)

    def _refused(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> None:
        """Set aside the rows that Spark itself could not give a key or a time."""
        for n in np.flatnonzero(edges <= wire.REFUSED).tolist():
            edge = self._topology.edges[wire.REFUSED - int(edges[n])]
            at_us = table.column("ts")[n].as_py()
            column = self._native(edge.stream)
            value = table.column(column)[n].as_py() if column is not None else None
            reason = time_refusal(at_us, self._stage.latest_us[edge.stream]) or (
                f"the key, {edge.extractor!r}, is null"
            )
            self._refuse(table, n, edge, reason, value)

    def _refuse(self, rows: pa.Table, n: int, edge: Edge, reason: str, value: Any) -> None:
        at_us = rows.column("ts")[n].as_py()
        letter = refuse(
            self._topology,
            edge.stream,
            str(edge.computation),
            reason,
            value,
            at_us,
            self._manifest.epoch,
        )
        report = self._report
        report.refused[edge.stream] = report.refused.get(edge.stream, 0) + 1
        made = Productions()
        latest_us = self._stage.latest_us[edge.stream]
        self._runtime.router.send(
            made,
            str(self._topology.dead_letters),
            letter,
            max(EARLIEST_RECORD, min(at_us or 0, latest_us)),
            None,
        )
        sequence = rows.column("sequence")[n].as_py()
        origin = rows.column("origin")[n].as_py()
        self._builder.add(made, origin, np.full(len(made), sequence, dtype=np.int64))
