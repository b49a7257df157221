"""The real-time plane in one process, with an injector, sinks and a schedule that a test gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.compile.explanation import python_reason
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.columns import column_names
from millrace.injectors.follower import Polling
from millrace.injectors.offsets import advanced, packed_piece, pieces
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.runtime.encode_stage import EncodeStage
from millrace.runtime.epoch.driver import EpochDriver, EpochResult
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.packets import packed, unpacked
from millrace.runtime.piece_reader import ReadStage
from millrace.runtime.realtime.coordinator import Coordinator, Marked
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.incarnation_start import from_live_tasks
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.reports import Messages, TaskReport
from millrace.runtime.sink_contract import (
    bind_sinks,
    claim_sinks,
    live_writers,
    sinks_by_edge,
    task_writers,
)
from millrace.runtime.sink_writer import SinkEncoder
from millrace.runtime.values import ROWS, value_columns
from millrace.runtime.worker_process import SourceColumns, Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState
from tests.kit.local_plane import LocalPlane


class Feeds(mr.sources.Injector):
    """Rows by process; only those up to a limit are there yet."""

    def __init__(self, schema: str, feeds: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        self.schema = schema
        self.feeds = {name: list(rows) for name, rows in feeds.items()}
        self.limit = 0

    def processes(self) -> list[str]:
        return list(self.feeds)

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(min(len(self.feeds[process]), self.limit))

    def read(self, process: str, start: Any, end: Any) -> Any:
        return self.feeds[process][start or 0 : end]

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Polling:
        # A second passes whenever it looks at the clock, so it never waits before it asks again.
        return Polling(self, places, most=most, clock=itertools.count().__next__)

    @property
    def longest(self) -> int:
        return max(map(len, self.feeds.values()), default=0)


class Kept:
    """A sink that tasks write by mark, in memory; what is published is seen."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[dict[str, Any]]] = {}

    def for_tasks(self) -> Kept:
        return self

    def begin(self, epoch: int, task: int) -> _Lot:
        return _Lot()

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        self.epochs[epoch] = [
            row
            for receipt in receipts
            for row in pa.ipc.open_stream(receipt).read_all().to_pylist()
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]


class _Lot:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self.batches.append(rows)

    def close(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batches[0].schema) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def abort(self) -> None:
        pass


class Live:
    """A run of a pipeline on the real-time plane, in this process.

    Args:
        pipeline: With injectors that are :class:`Feeds`, and sinks that are :class:`KeptSavepoint`.
        tasks: Tasks a level.
        seconds: Returns what a stopwatch shows, by which user code is timed; None: it is not.
        mark_every_us: How often a mark is made by the clock.
    """

    def __init__(
        self,
        pipeline: mr.Pipeline,
        *,
        tasks: int = 2,
        intervals: int = 4,
        state: MemoryHardState | None = None,
        elapsed_us: Callable[[], int] | None = None,
        seconds: Callable[[], float] | None = None,
        mark_every_us: int = mr.HOUR,
    ) -> None:
        self.mark_every_us = mark_every_us
        self.pipeline = pipeline
        self.seconds = seconds
        self.elapsed_us = elapsed_us
        self.tasks = tasks
        self.state = state or MemoryHardState()
        self.intervals = intervals
        self.clock_us = 10 * mr.HOUR
        self.caches = [MemoryCaches() for _ in range(tasks)]
        self.marks: list[Marked] = []
        self.open()

    def open(self) -> None:
        """A driver takes the checkpoint over."""
        topology: Topology = self.pipeline.build()
        self.run_log = RunLog(topology, self.state, intervals=self.intervals)
        self.loads = RunLoads(self.run_log)
        self.topology = topology = self.run_log.topology
        bind_sinks(topology, self.state.uuid)
        claim_sinks(topology, self.run_log)
        self.injectors = {
            spec.name: spec.injection.source for spec in topology.injected() if spec.injection
        }
        self.coordinator = Coordinator(
            self.run_log,
            tasks=self.tasks,
            sources=self,
            sinks=sinks_by_edge(self.topology),
            mark_every_us=self.mark_every_us,
            completed=self.marks.append,
            elapsed_us=self.elapsed_us,
        )
        self.plane = LocalPlane(
            self.coordinator,
            topology.depth,
            self.tasks,
            reader=lambda n: InjectorTask(self.runtime(n), n, elapsed_us=self.elapsed_us),
            level=lambda level, n: IncarnationHost(self.runtime(n), level, n, tell_us=0),
        )

    def processes(self) -> dict[str, list[str]]:
        return {name: list(injector.processes()) for name, injector in self.injectors.items()}

    def runtime(self, task: int, *, live: bool = True) -> WorkerProcess:
        topology, sources = self.topology, []
        in_turns, by_mark = live_writers(topology) if live else ({}, task_writers(topology))
        reasons = {one.name: python_reason(topology, one) for one in topology.injected()}
        for number, spec in enumerate(topology.injected()):
            injection = spec.injection
            columns = value_columns(
                spec.name,
                spec.format,
                column_names(injection.source.schema),
                injection.timestamp,
                () if spec.format in ROWS else (injection.id,),
            )
            # In an epoch, one that needs Python takes the others along.
            native = (reasons[spec.name] if live else any(reasons.values()) or None) is None
            sources.append(
                SourceColumns(number, spec.name, columns, native, not live, injection.id)
            )
        return WorkerProcess(
            topology,
            tasks=self.tasks,
            execution=Execution(topology, self.state, self.caches[task], self.seconds),
            sources=sources,
            writers=by_mark,
            live_writers=in_turns,
            live=live,
        )

    def feed(self, limit: int) -> None:
        for injector in self.fed():
            injector.limit = limit

    def fed(self) -> list[Feeds]:
        return [one for one in self.injectors.values() if isinstance(one, Feeds)]

    def boot(self) -> None:
        self.plane.boot(self.clock_us)

    def play(
        self, rng: random.Random, *, turns: int, crash: float = 0.0, mark: float = 0.02
    ) -> None:
        """Have turns of tasks drawn at random, with marks, crashes, and input that grows."""
        places = [(n, k) for n in range(self.topology.depth + 1) for k in range(self.tasks)]
        for _ in range(turns):
            self.clock_us += rng.randrange(1, 20_000)
            luck = rng.random()
            if luck < crash:
                if rng.random() < 0.5:
                    self.caches[rng.randrange(self.tasks)] = MemoryCaches()
                if rng.random() < 0.3:
                    self.plane.crash()
                    self.open()
                self.boot()
            elif luck < crash + mark:
                self.coordinator.mark_soon()
                self.plane.tick(self.clock_us)
            elif luck < crash + mark + 0.1:
                for injector in self.fed():
                    injector.limit += rng.randrange(1, 6)
            else:
                self.plane.turn(rng.choice(places), self.clock_us, rng.randrange(0, 4))
                self.plane.tick(self.clock_us)

    def finish(self) -> None:
        """Have everything read and done, and the input ended."""
        self.feed(max((i.longest for i in self.fed()), default=0))
        self.plane.settle(self.clock_us)
        self.plane.end(self.clock_us, draining=True)


def undisturbed(make: Callable[[], tuple[mr.Pipeline, Kept]], *, tasks: int = 2) -> list[Any]:
    """Return what a run without any trouble gives."""
    pipeline, kept = make()
    live = Live(pipeline, tasks=tasks)
    live.boot()
    live.finish()
    assert live.coordinator.ended
    return kept.rows


class InEpochs:
    """A run of the same pipeline on the epoch plane, in this process; it reads where it stands."""

    def __init__(self, live: Live) -> None:
        self.topology = live.pipeline.build()
        self.run_log = RunLog(self.topology, live.state, intervals=live.intervals)
        live.topology = self.topology = self.run_log.topology
        self.runtime = live.runtime(0, live=False)
        from_live_tasks(self.run_log, sinks_by_edge(live.topology))
        self.driver = EpochDriver(self.topology, self.run_log, WatermarkPublisher.of(self.topology))
        self.offsets = {
            stream: {name: [place.offset, place.process_watermark_us] for name, place in of.items()}
            for stream, of in self.run_log.source_offsets.items()
        }

    def run(self, clock_us: int, *, draining: bool = False) -> EpochResult | None:
        """Run one epoch over everything that is there now; return what came of it."""
        lots = []
        for spec in self.topology.injected():
            injector = spec.injection.source
            start = self.offsets.get(spec.name, {})
            end = self.offsets[spec.name] = advanced(spec.name, injector, start, ())
            lots += [packed_piece(spec.name, piece) for piece in pieces(injector, start, end)]
        rows = pa.RecordBatch.from_pydict({"piece": pa.array(lots, pa.binary())})
        sinks: dict[int, list[bytes]] = {}

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            native = all(source.native for source in self.runtime.sources)
            stage = ReadStage(None if native else EncodeStage(), keyed=native)
            sent = unpacked(packed(stage.run(Task(self.runtime, manifest, 0), [rows])))
            exchange = LocalExchange(self.runtime, manifest)
            left = through_levels(exchange, list(sent), self.topology.depth)
            outlet = SinkEncoder(self.runtime, manifest.epoch, 0)
            told = [
                (edge, report)
                for batch in outlet.batches(left)
                for edge, report in zip(
                    batch.column("edge").to_pylist(),
                    batch.column("report").to_pylist(),
                    strict=True,
                )
            ]
            messages = Messages.of(told)
            sinks.update(messages.receipts)
            return TaskReport.together(messages.reports), 0.0

        number = self.run_log.completed + 1
        turn = self.driver.run(number, stages, wall_time_us=clock_us, draining=draining)
        for edge, receipts in sinks.items():
            self.topology.sinks[self.topology.edge(edge).sink].publish(number, receipts)
        return turn
