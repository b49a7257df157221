"""The driver's process: Spark's loop of batches around the epoch loop.

Spark first writes a batch's offsets into a log of its own, put-if-absent, and a mark when the batch
is done. A driver that starts reads both and goes on from there. Everything between is Millrace's:
begin the epoch, run its job, write the sinks, complete it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from millrace.compile.topology import Topology, injector_name
from millrace.injectors.publisher import Publisher
from millrace.store import Collector, LocalHardState
from millrace.testing.simulation import workload
from millrace.testing.simulation.level import Levels, Row
from millrace.testing.simulation.scheduler import Scheduler
from millrace.testing.simulation.spark import Cluster, Job
from millrace.windmill.epochs import Epochs, Observed
from millrace.windmill.manifest import Manifest

#: Where the checkpoint is; drivers make the path to it.
ROOT = Path("/data/checkpoint")
#: A run repeats its claim after so many entries of the epoch log, so that schedules cross it.
CLAIM_ENTRIES = 6


class ConcurrentQuery(Exception):
    """Spark found the offsets of a batch that it was about to plan: another query writes them."""


class SinkFailed(Exception):
    """The simulation let a sink fail."""


@dataclass
class QueryLog:
    """Spark's own log of a streaming query.

    Attributes:
        offsets: Batch -> records of the source, from and up to.
        done: Batches that Spark knows to be done.
    """

    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class World(Cluster, Protocol):
    """What a driver needs of the simulation."""

    scheduler: Scheduler
    topology: Topology
    work: workload.Workload
    query_log: QueryLog
    jobs: list[Job]

    def open_state(self) -> LocalHardState:
        """Open the checkpoint as a driver does."""
        ...

    def clock(self) -> int:
        """Return what this driver takes for the time."""
        ...

    def tidy_up(self, name: str, work: Callable[[], object]) -> None:
        """Do this beside everything else, or not, as the schedule says."""
        ...

    def write_sink(self, epoch: int, row: Row) -> None:
        """Upsert a row by its id."""
        ...


def published(publisher: Publisher, epochs: Epochs, wall_time_us: int) -> dict[str, int]:
    """Return what the injector publishes with the next epoch."""
    shown = epochs.authority.low_watermarks.outputs[injector_name(workload.STREAM)]
    return publisher.published(
        epochs.observed.processes, wall_time_us=wall_time_us, before={workload.STREAM: shown}
    )


def observed(
    publisher: Publisher, epochs: Epochs, manifest: Manifest, records: list[tuple[Any, int]]
) -> Observed:
    """Return what a batch tells of the injected stream."""
    seen = Observed()
    if records:
        newest_us = max(at_us for _, at_us in records)
        seen = Observed({workload.STREAM: newest_us}, {workload.STREAM: len(records)})
    seen.processes = publisher.heard(
        seen.by_process(), epochs.observed.processes, manifest.wall_time_us
    )
    return seen


def drains(log: QueryLog, batch: int, records: int) -> bool:
    """Return whether a batch is to end the input: the second after the source was read."""
    return batch >= 2 and all(log.offsets[n] == (records, records) for n in (batch - 1, batch))


def drive(world: World, name: str, random_end: Callable[[int], int]) -> None:
    """Run batches to the end of the input: the code of a driver's process.

    Args:
        world: The simulation.
        name: Of the driver.
        random_end: Chooses how far the next batch reads, given where it starts.
    """
    state = world.open_state()
    epochs = Epochs(
        world.topology, state, intervals=world.work.intervals, claim_entries=CLAIM_ENTRIES
    )
    collector = Collector(state)
    publisher = Publisher.of(world.topology)
    log = world.query_log
    world.scheduler.step("read Spark's log")
    batch = max(log.offsets, default=-1)
    planned = batch in log.offsets and batch not in log.done
    batch += not planned
    while not epochs.drained:
        if not planned:
            start = log.offsets[batch - 1][1] if batch else 0
            end = random_end(start)
            world.scheduler.step(f"write offsets {batch}")
            if batch in log.offsets:
                raise ConcurrentQuery(f"the offsets of batch {batch} are there already")
            log.offsets[batch] = (start, end)
        planned = False
        _run_batch(world, name, epochs, publisher, batch)
        world.tidy_up(f"{name} collector", lambda: collector.collect(epochs.collectable()))
        world.scheduler.step(f"write commit {batch}")
        log.done.add(batch)
        batch += 1


def _run_batch(world: World, name: str, epochs: Epochs, publisher: Publisher, batch: int) -> None:
    start, end = world.query_log.offsets[batch]
    read = world.work.records[start:end]
    now_us = world.clock()
    manifest = epochs.begin(
        batch,
        wall_time_us=now_us,
        injectors=published(publisher, epochs, now_us),
        draining=drains(world.query_log, batch, len(world.work.records)),
    )
    if manifest is None:
        return
    levels = Levels(world.topology, manifest, world.work.tasks)
    source = levels.source(workload.STREAM, read)
    job = Job(world, f"{name}/{batch}", levels, world.topology.depth, world.work.tasks, source)
    world.jobs.append(job)
    rows, results = job.run()
    write_sinks(world, batch, rows)
    epochs.complete(manifest, results, observed(publisher, epochs, manifest, read))


def write_sinks(world: World, epoch: int, rows: list[Row]) -> None:
    """Write an epoch's rows."""
    for row in rows:
        world.write_sink(epoch, row)
