"""The process of a Harness: all that a crash takes away, made of what lasts."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.plane.binding import task_writers
from millrace.plane.epoch import EpochDriver
from millrace.plane.exchange import LocalExchange, through_levels
from millrace.plane.reports import TaskReport, reports_in
from millrace.plane.runtime import Runtime
from millrace.plane.sink_writer import write_to_sinks
from millrace.plane.task import Task
from millrace.store import (
    Collector,
    MemoryCaches,
    MemoryHardState,
    SnapshotPolicy,
    write_if_due,
)
from millrace.testing.crash import CrashingState
from millrace.testing.feed import Feed
from millrace.windmill.epochs import Epochs
from millrace.windmill.execution import Execution
from millrace.windmill.manifest import Manifest

#: A snapshot every three commits or so, that a test of a few epochs crosses snapshots and
#: collections as a run of weeks does.
_POLICY = SnapshotPolicy(fixed_bytes=160 << 10)


class HarnessProcess:
    """Driver and one task, over a checkpoint.

    Args:
        topology: The pipeline.
        durable: The checkpoint.
        intervals: Key intervals a computation.
        publish: Whether injectors publish by their policies.
        lift: Whether senders combine values.
        scripted: Percentile -> injected stream -> what it published by hand, 100 the low watermark.

    Attributes:
        topology: The pipeline, under the numbers of the checkpoint.
        state: The checkpoint, which a crash can cut off.
        epochs: Of the run.
        caches: Of the task.
        driver: What the driver does in an epoch.
    """

    def __init__(
        self,
        topology: Topology,
        durable: MemoryHardState,
        *,
        intervals: int,
        publish: bool,
        lift: bool,
        scripted: Mapping[int, Mapping[str, int]],
    ) -> None:
        self.state = CrashingState(durable)
        self.caches = MemoryCaches()
        self.epochs = Epochs(topology, self.state, intervals=intervals)
        self.topology = self.epochs.topology
        publisher = WatermarkPublisher.of(self.topology) if publish else WatermarkPublisher({})
        self.driver = EpochDriver(
            self.topology, self.epochs, publisher, scripted, estimates=publish
        )
        self._runtime = Runtime(
            self.topology,
            tasks=1,
            execution=Execution(self.topology, self.state, self.caches),
            lift=lift,
            writers=task_writers(self.topology),
        )
        self._collector = Collector(self.state)

    def attempt(
        self, feed: Feed | None, wall_time_us: int
    ) -> tuple[Manifest, list[pa.RecordBatch]]:
        """Run the epoch that is open, or the next one; return its manifest, and what leaves."""
        epochs, leaving = self.epochs, list[pa.RecordBatch]()

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            source = Task(self._runtime, manifest, 0)
            sent: list[pa.RecordBatch] = [] if feed is None else list(feed.rows(source))
            exchange = LocalExchange(self._runtime, manifest)
            left = through_levels(exchange, sent, self.topology.depth)
            write_to_sinks(self._runtime, manifest.epoch, left)
            leaving.extend(left)
            return TaskReport.together(reports_in(left)), 0.0

        turn = self.driver.run(
            epochs.open.epoch if epochs.open is not None else epochs.completed + 1,
            stages,
            wall_time_us=wall_time_us,
        )
        assert turn is not None, "the epoch after the last completed one is not completed"
        return turn.manifest, leaving

    def settled(self, manifest: Manifest, wall_time_us: int) -> bool:
        """Return whether another epoch now would move no low watermark."""
        driver = self.driver
        return (
            driver.settled(manifest, driver.published(wall_time_us))
            and driver.publisher.changes_us() > wall_time_us
        )

    def housekeep(self) -> None:
        """Write the snapshots that are due and collect, as threads beside the tasks do on Spark."""
        for name, intervals in self.epochs.positions.maps.items():
            for entry in intervals.intervals:
                cache = self.caches.open(name, entry.id)
                write_if_due(cache, self.state.snapshots, name, entry.id, _POLICY)
        self._collector.collect(self.epochs.collectable())
