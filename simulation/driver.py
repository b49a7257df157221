"""The driver's process: the epoch loop, and what begins epochs.

In most schedules that is Spark's loop of batches. Spark first writes a batch's offsets into a log
of its own, put-if-absent, and a mark when the batch is done. A driver that starts reads both and
goes on from there. Everything between is Millrace's: begin the epoch, run its job, write the sinks,
complete it.

In the others the driver begins epochs itself. The offsets are in the manifest, there is no other
log, and an epoch in which nothing is due has no job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Offsets
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.record_ids import fingerprint
from millrace.model.time import MAX_TIMESTAMP
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import Collector
from millrace.testing.feed import Feed, Read
from millrace.watermark.report import ONLY, ProcessState
from simulation.program import STREAM
from simulation.sink_rows import Row, sink_rows
from simulation.spark import Job
from simulation.workload import Workload

if TYPE_CHECKING:
    from simulation.simulation import Simulation


class ConcurrentQuery(Exception):
    """Spark found the offsets of a batch that it was about to plan: another query writes them."""


class SinkFailed(Exception):
    """The simulation let a sink fail."""


@dataclass
class QueryLog:
    """Spark's own log of a streaming query.

    Attributes:
        offsets: Batch -> records of the source, from and up to.
        brought: Batch -> stream -> up to where it is read, of those that injectors of Millrace's
            bring: calls, and keys that begin by themselves.
        done: Batches that Spark knows to be done.
        complete: Batches whose epochs drivers have completed.
    """

    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    brought: dict[int, dict[str, Any]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)

    def plan(self, batch: int, offsets: tuple[int, int], brought: dict[str, Any]) -> None:
        """Take how far a batch reads."""
        self.offsets[batch], self.brought[batch] = offsets, brought

    def with_plan(self, batch: int, offsets: tuple[int, int], brought: dict[str, Any]) -> QueryLog:
        """Return a log in which a batch reads so far; this one stays as it is."""
        return replace(
            self,
            offsets={**self.offsets, batch: offsets},
            brought={**self.brought, batch: brought},
        )

    def read_nothing(self, completed: int) -> None:
        """Take of epochs of which no plan is known that they read nothing: they had no job."""
        for epoch in range(completed + 1):
            if epoch not in self.offsets:
                end = self.offsets[epoch - 1][1] if epoch else 0
                self.plan(epoch, (end, end), self.brought.get(epoch - 1, {}))


#: In one of so many schedules the driver begins epochs itself.
_DRIVEN_IN: Final = 10


def is_driven(seed: int) -> bool:
    """Return whether the driver begins epochs itself in a schedule; drawn without chance.

    So all other schedules are what they were.
    """
    return seed % _DRIVEN_IN == _DRIVEN_IN - 1


def follows_load(seed: int) -> bool:
    """Return whether each epoch has other tasks than the one before; drawn without chance.

    Half of those schedules are among the driven ones.
    """
    return seed % (_DRIVEN_IN // 2) == _DRIVEN_IN // 2 - 1


def feeds(topology: Topology, work: Workload, log: QueryLog, batch: int) -> Iterator[Feed]:
    """Yield what the source delivers in a batch, and what injectors bring beside it."""
    start, end = log.offsets[batch]
    ids = work.program.ids
    records = [
        Read(value, at_us, ONLY, fingerprint(value["id"]) if ids else None)
        for value, at_us in work.records[start:end]
    ]
    yield Feed(STREAM, records, {})
    for stream, injector in injectors(topology).items():
        (process,) = injector.processes()
        told = {process: ProcessState(process_watermark_us=MAX_TIMESTAMP)}
        brought = [
            Read(value, at, process) for value, at in brought_by(injector, stream, log, batch)
        ]
        yield Feed(stream, brought, told)


def injectors(topology: Topology) -> dict[str, Injector]:
    """Return the injectors of Millrace's own, by their streams: they have one process each."""
    sources = {spec.name: spec.injection.source for spec in topology.injected() if spec.injection}
    return {stream: one for stream, one in sources.items() if isinstance(one, Injector)}


def brought_by(
    injector: Injector, stream: str, log: QueryLog, batch: int
) -> Iterable[tuple[Any, ...]]:
    """Return the rows that an injector brings in a batch."""
    (process,) = injector.processes()
    before, after = (log.brought.get(n, {}).get(stream) for n in (batch - 1, batch))
    return () if before == after else injector.read(process, before, after)


def _asked(topology: Topology, log: QueryLog, batch: int) -> dict[str, Any]:
    """Ask injectors how far the next batch reads."""
    found = {}
    for stream, injector in injectors(topology).items():
        (process,) = injector.processes()
        before = log.brought.get(batch - 1, {}).get(stream)
        found[stream] = injector.advance(process, before).offset
    return found


def drains(
    log: QueryLog,
    batch: int,
    records: int,
    offsets: Mapping[str, Offsets] = MappingProxyType({}),
) -> bool:
    """Return whether a batch is to end the input: the second after the source was read.

    Args:
        log: With the batch, unless its offsets are given.
        batch: Its number.
        records: Of the source.
        offsets: As a manifest would have them.
    """
    if batch < 2:
        return False
    last = tuple(offsets[STREAM][ONLY][0]) if offsets else log.offsets.get(batch)
    return last == log.offsets[batch - 1] == (records, records)


def drive(world: Simulation, name: str, random_end: Callable[[int], int]) -> None:
    """Run batches to the end of the input: the code of a driver's process.

    Args:
        world: The simulation.
        name: Of the driver.
        random_end: Chooses how far the next batch reads, given where it starts.
    """
    state = world.open_state()
    run_log = world.open_run_log(state)
    world.claimed(run_log.generation)
    collector = Collector(state, kept=2, left=2)
    tasks = world.tasks(run_log.generation)
    driver = EpochDriver(
        run_log.topology, run_log, WatermarkPublisher.of(run_log.topology), tasks=tasks
    )
    log = world.query_log
    if is_driven(world.seed):
        _drive_alone(world, name, driver, collector, random_end)
        return
    world.scheduler.step("read Spark's log")
    batch = max(log.offsets, default=-1)
    planned = batch in log.offsets and batch not in log.done
    batch += not planned
    while not run_log.drained:
        if not planned:
            start = log.offsets[batch - 1][1] if batch else 0
            end, brought = random_end(start), _asked(run_log.topology, log, batch)
            world.scheduler.step(f"write offsets {batch}")
            if batch in log.offsets:
                raise ConcurrentQuery(f"the offsets of batch {batch} are there already")
            log.plan(batch, (start, end), brought)
        planned = False
        _run_batch(world, name, run_log.topology, driver, batch)
        if not run_log.drained:
            # Spark does not know of it yet that the batch is done: it may come once more.
            world.between_epochs(run_log, driver.tasks)
        world.tidy_up(f"{name} collector", lambda: collector.collect(run_log.collectable()))
        world.scheduler.step(f"write commit {batch}")
        log.done.add(batch)
        batch += 1
        if not run_log.drained and world.hands_over(run_log.topology):
            return


def _drive_alone(
    world: Simulation,
    name: str,
    driver: EpochDriver,
    collector: Collector,
    random_end: Callable[[int], int],
) -> None:
    """Run epochs to the end of the input, without Spark's loop."""
    run_log, log = driver.run_log, world.query_log
    while not run_log.drained:
        log.read_nothing(run_log.completed)
        epoch, offsets = run_log.completed + 1, dict[str, Offsets]()
        if run_log.open is None:
            start = log.offsets[epoch - 1][1] if epoch else 0
            until = [start, random_end(start)], _asked(run_log.topology, log, epoch)
            offsets = {STREAM: {ONLY: [*until]}}
        _run_batch(world, name, run_log.topology, driver, epoch, offsets)
        if not run_log.drained:
            world.between_epochs(run_log, driver.tasks)
        world.tidy_up(f"{name} collector", lambda: collector.collect(run_log.collectable()))
        log.done.add(epoch)
        if not run_log.drained and world.hands_over(run_log.topology):
            return


def _run_batch(
    world: Simulation,
    name: str,
    topology: Topology,
    driver: EpochDriver,
    batch: int,
    offsets: Mapping[str, Offsets] = MappingProxyType({}),
) -> None:
    work, log = world.work, world.query_log
    if follows_load(world.seed):
        driver.tasks = world.tasks(driver.run_log.generation + batch)

    def unread(manifest: Manifest) -> TaskReport | None:
        if not manifest.offsets:
            return None
        world.unwritten[manifest.generation, manifest.epoch] = manifest
        until, brought = manifest.offsets[STREAM][ONLY]
        source = Task(WorkerProcess(topology, tasks=manifest.tasks), manifest, 0)
        fed = list(feeds(topology, work, log.with_plan(batch, tuple(until), brought), batch))
        if any(feed.records for feed in fed):
            return None
        sent = [rows for feed in fed for rows in feed.rows(source)]
        return TaskReport.together(reports_in(sent))

    def stages(manifest: Manifest) -> tuple[TaskReport, float]:
        world.unwritten.pop((manifest.generation, manifest.epoch), None)
        if manifest.offsets:  # in the log by now, so this is what the epoch reads
            until, brought = manifest.offsets[STREAM][ONLY]
            log.plan(batch, tuple(until), brought)
        source = Task(WorkerProcess(topology, tasks=manifest.tasks), manifest, 0)
        fed = feeds(topology, work, log, batch)
        sent = [rows for feed in fed for rows in feed.rows(source)]
        job = Job(world, f"{name}/{batch}", topology, manifest, manifest.tasks, sent)
        world.jobs.append(job)
        left = job.run()
        rows = sink_rows(topology, left)
        world.random.shuffle(rows)
        write_sinks(world, batch, rows)
        return TaskReport.together(reports_in(left)), 0.0

    driver.run(
        batch,
        stages,
        wall_time_us=world.clock(),
        draining=drains(log, batch, len(work.records), offsets),
        offsets=offsets,
        unread=unread,
    )
    log.read_nothing(driver.run_log.completed)
    log.complete.add(batch)


def write_sinks(world: Simulation, epoch: int, rows: list[Row]) -> None:
    """Write an epoch's rows."""
    for row in rows:
        world.write_sink(epoch, row)
