"""The level stage of a batch: a partition sorted by key streams through, a key's records at once.

There is nothing to checkpoint: a key's whole input is at hand, so its state lives from its first
record to its last timer and is then forgotten. Spark's own retries redo a task from its input.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec
from millrace.kernel import timer_families
from millrace.kernel.broadcast import signal_streams, signals_in
from millrace.kernel.bundle import Attempt, Bundle, Position, Signal
from millrace.kernel.families import tables_in
from millrace.kernel.machine import Effects
from millrace.kernel.record_ids import production_ids
from millrace.kernel.results import Counters, IntervalResult
from millrace.kernel.source_dedup import without_repeats
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime import wire
from millrace.runtime.calls import CallRounds, TaskCalls
from millrace.runtime.inbox import Inbox
from millrace.runtime.partials_stage import Lifter
from millrace.runtime.reports import TaskReport, report_row
from millrace.runtime.rows import Outbox
from millrace.runtime.stragglers import Enough
from millrace.runtime.worker_process import Task
from millrace.store import MemoryCache, MemoryCaches
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.report import NOTHING_PENDING

_EVERYTHING = IntervalMap.uniform(1)


@dataclass(frozen=True)
class BatchLevelStage:
    """The stage of a level of a batch. The plan sorts what a task gets by computation and hash.

    Attributes:
        level: Which, from 1.
        enough: Of a batch that may leave the rest of its input; else None.
    """

    level: int
    enough: Enough | None = None

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows for the levels below, the sinks and the driver, as they are made."""
        yield from _Run(task, self.level, self.enough).over(batches)


class _Run:
    """One run of a batch's level stage."""

    def __init__(self, task: Task, level: int, enough: Enough | None) -> None:
        runtime = task.runtime
        self._left = enough is not None and enough.decisions().anything_left()
        # Where something was left, only what waits for so large a share, or a smaller one, fires.
        share = enough.percentile if enough is not None and self._left else 100
        self._low_watermark_us = MIN_TIMESTAMP if self._left else MAX_TIMESTAMP
        self._percentiles = {
            percentile: MAX_TIMESTAMP if percentile <= share else MIN_TIMESTAMP
            for percentile in runtime.topology.percentiles
        }
        self._task = task
        self._runtime = runtime
        self._level = level
        self._report = TaskReport()
        self._counters = {
            spec.name: Counters() for spec in runtime.topology.computations if spec.level == level
        }
        self._lifter = Lifter(task, by_time=True)
        self._made = 0
        # Of side inputs, which last from one key to the next.
        self._tables: dict[str, MemoryCache] = {}
        # And signals to every key: those that come later in the partition are told of them, too.
        self._signals: dict[str, list[Signal]] = {}
        # The computation that each edge leads to, by its number; -1 where none of this level is.
        self._computation = np.full(len(runtime.topology.edges), -1, dtype=np.int64)
        for edge in runtime.topology.edges:
            if edge.computation in self._counters:
                spec = runtime.topology.computation(str(edge.computation))
                self._computation[edge.number] = spec.number

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the level's computations over a sorted partition."""
        started = time.perf_counter()
        carried: pa.Table | None = None
        for batch in batches:
            table = pa.Table.from_batches([batch])
            edges = table.column("edge").to_numpy()
            yield from self._pass(table, edges)
            if self._level == 1 and (edges == wire.REFUSED).any():
                outbox = Outbox(self._task, once=True)
                self._inbox(outbox).refuse_unread(table, edges)
                yield from outbox.batches()
            rows = wire.where(table, self._of(edges) >= 0)
            if not rows.num_rows:
                continue
            carried = rows if carried is None else pa.concat_tables([carried, rows])
            complete = self._complete(carried)
            yield from self._process(carried.slice(0, complete))
            carried = carried.slice(complete)
        if carried is not None:
            yield from self._process(carried)
        for spec in self._runtime.topology.computations:
            if spec.level == self._level and spec.makes_calls:
                pool = self._runtime.call_pools.of(spec)
                self._report.called(spec.name, pool.take_stats())
        for name, counters in self._counters.items():
            self._report.results.append(IntervalResult(name, 0, 0, NOTHING_PENDING, counters))
        self._report.seconds = time.perf_counter() - started
        yield report_row(self._report, self._task.number)

    def _pass(self, table: pa.Table, edges: npt.NDArray[np.int32]) -> Iterator[pa.RecordBatch]:
        on = (edges >= 0) & (self._of(edges) < 0) | (edges == wire.REPORT)
        if on.any():
            yield from wire.where(table.select(wire.COLUMNS), on).combine_chunks().to_batches()

    def _of(self, edges: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return the number of the computation that each row is for; -1 if none of this level."""
        if not len(self._computation):
            return np.full(len(edges), -1, dtype=np.int64)
        computations = self._computation[np.clip(wire.plain(edges), 0, None)]
        return np.where(edges >= 0, computations, -1)

    def _complete(self, table: pa.Table) -> int:
        """Return how many rows come before those of the last key, which may go on."""
        hashes = table.column("hash").to_numpy()
        computations = self._of(table.column("edge").to_numpy())
        changes = np.flatnonzero(
            (hashes[1:] != hashes[:-1]) | (computations[1:] != computations[:-1])
        )
        return int(changes[-1]) + 1 if len(changes) else 0

    def _process(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not table.num_rows:
            return
        table = table.combine_chunks()
        computations = self._of(table.column("edge").to_numpy())
        for number in np.unique(computations).tolist():
            chosen = wire.where(table, computations == number)
            spec = self._runtime.topology.computations[number]
            outbox = Outbox(self._task, once=True)
            self._run(spec, chosen, outbox)
            for batch in outbox.batches():
                yield from self._lifter.lifted(batch)

    def _run(self, spec: ComputationSpec, arrived: pa.Table, outbox: Outbox) -> None:
        edges = arrived.column("edge").to_numpy()
        received = self._inbox(outbox).received(arrived, edges, spec)
        machine = self._runtime.machines[spec.name]
        for interval, keyed in received.by_interval(_EVERYTHING, by_time=True):
            filtered = without_repeats(keyed)
            records = filtered.records
            wall_us = self._task.manifest.wall_time_us
            clocks = {100: self._low_watermark_us, **self._percentiles}
            attempt = Attempt(0, 0, wall_us, MIN_TIMESTAMP, clocks, wall_timers_us=MAX_TIMESTAMP)
            signals = self._signals.setdefault(spec.name, [])
            bundle = Bundle(interval, Position(), attempt, records, signals)
            tables = self._tables.setdefault(spec.name, MemoryCaches().open(spec.name, 0))
            if spec.makes_calls:
                outcome = self._answered(spec, bundle, tables)
            else:
                with tables.view() as view:
                    outcome = machine.run(bundle, view)
            signals += signals_in(records, signal_streams(spec))
            if changed := tables_in(outcome.mutations):
                tables.load(0, 0, [[*changed.items()]])
            if self._left:
                _count_waiting(outcome)
            outcome.counters.productions = len(outcome.productions)
            outcome.counters.duplicates_filtered = filtered.duplicates
            self._counters[spec.name].add(outcome.counters)
            origin, sequences = production_ids(
                spec.number, 1, self._task.number, len(outcome.productions)
            )
            first = sequences.start + self._made
            outbox.add(outcome.productions, origin, range(first, first + len(sequences)))
            self._made += len(outcome.productions)

    def _answered(self, spec: ComputationSpec, bundle: Bundle, tables: MemoryCache) -> Effects:
        """Run a bundle until none of its calls is pending; timers fire after that."""
        machine = self._runtime.machines[spec.name]
        calls = TaskCalls(spec, self._runtime.call_pools.of(spec))

        def go_on(further: Bundle, effects: Effects) -> Effects:
            with tables.view() as view:
                more = machine.run(further, effects.over(view))
            effects.then(more)
            return more

        last = bundle.attempt
        before = replace(
            last,
            input_watermarks=dict.fromkeys(last.input_watermarks, MIN_TIMESTAMP),
            wall_timers_us=None,
        )
        rounds = CallRounds(calls, go_on)
        try:
            bundle = rounds.begun(replace(bundle, attempt=before))
            with tables.view() as view:
                effects = machine.run(bundle, view)
            rounds.add(bundle, effects)
            rounds.finish()
            rounds.further(bundle.interval.id, attempt=last)
            rounds.finish()
        except BaseException:
            calls.cancel()
            raise
        return effects

    def _inbox(self, outbox: Outbox) -> Inbox:
        return Inbox(self._task, self._level, outbox, self._report)


def _count_waiting(outcome: Effects) -> None:
    """Count what never fires, for the low watermark itself does not come to the end of time."""
    waiting = sum(
        value is not None and row.startswith(timer_families.TIMERS)
        for row, value in outcome.mutations.items()
    )
    if waiting:
        counted = outcome.counters.counted
        counted["timers_left"] = counted.get("timers_left", 0) + waiting
