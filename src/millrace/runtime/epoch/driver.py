"""The driver's part of an epoch: publish, begin, run, complete.

Between beginning and completing it does not matter who runs the stages: a function that is given
the manifest does, and returns what the tasks reported. Where nothing was read and nothing is due,
nobody runs them: tasks would find no bundle, and the driver has all that they would know. Such an
epoch is one entry of the log, its completion: who takes over before it was written plans anew.

Source: MillWheel 5.2 (injectors publish), 6.2 and 7.2 (the authority keeps what it knows).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.compile.topology import Topology, injector_name
from millrace.epochlog.entries import Completion, Manifest, processes_of
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import Offsets, offsets_after
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.time import MIN_TIMESTAMP
from millrace.runtime.reports import TaskReport


@dataclass(frozen=True)
class EpochResult:
    """An epoch that was run: what it began with, what came of it, and what is known after it.

    Attributes:
        manifest: What it began with.
        report: What its tasks reported.
        completion: What is known after it.
        parts: How long the driver spent on each part, in seconds: ``planning`` up to the manifest,
            ``tasks`` and ``sinks``, which are published when all tasks have ended, ``completing``.
    """

    manifest: Manifest
    report: TaskReport
    completion: Completion
    parts: dict[str, float]


def _all_read(_: Manifest) -> None:
    """Return that records may be read."""


@dataclass
class EpochDriver:
    """Runs the epochs of a run, one after the other.

    Attributes:
        topology: The pipeline.
        run_log: Of the run; it holds the checkpoint.
        publisher: What injectors publish by their policies.
        scripted: Percentile -> injected stream -> what it published by hand, 100 the low watermark
            itself; only where somebody scripts time.
        estimates: Whether percentiles are estimated from the records, and not scripted.
        tasks: How many tasks a level an epoch has that is begun now; 0 where there is never another
            number of them.
    """

    topology: Topology
    run_log: RunLog
    publisher: WatermarkPublisher
    scripted: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    estimates: bool = True
    tasks: int = 0

    def published(self, wall_time_us: int) -> dict[str, int]:
        """Return injected stream -> what it publishes now: never below what it did."""
        outputs = self.run_log.authority.low_watermarks.outputs
        by_hand = self.scripted.get(100, {})
        before = {
            spec.name: max(outputs[injector_name(spec.name)], by_hand.get(spec.name, MIN_TIMESTAMP))
            for spec in self.topology.injected()
        }
        processes = processes_of(self.run_log.sources)
        by_policy = self.publisher.published(
            processes,
            wall_time_us=wall_time_us,
            before=before,
            last_epoch_us=self.run_log.wall_time_us,
        )
        return before | by_policy

    def percentiles(self, published: Mapping[str, int]) -> Mapping[int, Mapping[str, int]]:
        """Return percentile -> injected stream -> what it publishes for that share."""
        return self.run_log.estimated(published) if self.estimates else self.scripted

    def settled(self, manifest: Manifest, published: Mapping[str, int]) -> bool:
        """Return whether an epoch with what is published now would move no low watermark."""
        return (
            published == manifest.injectors
            and self.run_log.estimated(published) == manifest.percentiles
        )

    def due(self, manifest: Manifest) -> bool:
        """Return whether an epoch has something to do in which no record is read.

        It goes through the levels as tasks do, by what intervals have reported last. It depends on
        the manifest, and on what was completed before it: who takes the epoch over says the same.
        """
        propagation, positions = manifest.propagation(), self.run_log.positions
        spread = bool(self.topology.percentiles)
        for spec in self.topology.computations:
            bulletin = positions.bulletin(spec.name)
            indexes, clocks = range(len(positions.maps[spec.name])), propagation.inputs(spec)
            if (
                bulletin.due(indexes, clocks, manifest.wall_time_us)
                or positions.behind(spec, indexes)
                or (spec.makes_calls and bulletin.pending_timers.wall_clock)  # pending calls
            ):
                return True
            propagation.finish(spec, bulletin.pending(spread))
        return False

    def run(
        self,
        number: int,
        stages: Callable[[Manifest], tuple[TaskReport, float]],
        *,
        wall_time_us: int,
        draining: bool = False,
        splitting: Mapping[str, str] | None = None,
        offsets: Mapping[str, Offsets] | None = None,
        asked_us: int | None = None,
        unread: Callable[[Manifest], TaskReport | None] = _all_read,
    ) -> EpochResult | None:
        """Run one epoch; return None if it is completed already.

        Args:
            number: The one after the last completed.
            stages: Runs the epoch's stages, and its sinks, at a manifest; returns what tasks
                reported, and how long it took to publish what they had written, in seconds.
            wall_time_us: What time it is.
            draining: Whether the input ends with it.
            splitting: Settings by which its input is cut into partitions.
            offsets: Where it ends, of the streams that the driver reads.
            asked_us: What time it was before sources were asked how far it reads, if that is known.
            unread: Returns what tasks would report of sources, where an epoch reads no record; None
                where it reads some. By default it always may.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint.
            DeadLettersExceeded: There are too many. The epoch has completed.
        """
        run_log, began = self.run_log, time.perf_counter()
        published = self.published(wall_time_us)
        manifest = run_log.planned(
            number,
            wall_time_us=wall_time_us,
            injectors=published,
            draining=draining,
            percentiles=self.percentiles(published),
            splitting=splitting,
            offsets=offsets or {},
            tasks=self.tasks,
        )
        if manifest is None:
            return None
        alone, publishing = unread(manifest), 0.0
        if alone is not None and self.due(manifest):
            alone = None
        if alone is None:
            run_log.write(manifest)
        planned = time.perf_counter()
        if alone is None:
            report, publishing = stages(manifest)
        else:
            report = alone
        ran = time.perf_counter()
        self._hear(report, manifest, asked_us)
        completion = run_log.complete(
            manifest,
            report.results,
            report.sources,
            source_offsets=offsets_after(run_log.source_offsets, report.reached),
            by_tasks=alone is None,
        )
        run_log.dead_letters.check()
        parts = {
            "planning": planned - began,
            "tasks": ran - planned - publishing,
            "sinks": publishing,
            "completing": time.perf_counter() - ran,
        }
        return EpochResult(manifest, report, completion, parts)

    def _hear(self, report: TaskReport, manifest: Manifest, asked_us: int | None) -> None:
        """Take what the epoch observed of processes as what is remembered of them."""
        heard = self.publisher.process_states(
            {stream: stats.by_process() for stream, stats in report.sources.items()},
            processes_of(self.run_log.sources),
            manifest.wall_time_us,
            asked_us,
        )
        for stats in report.sources.values():
            stats.processes = {}
        for stream, processes in heard.items():
            if processes:
                report.source(stream).processes = processes
