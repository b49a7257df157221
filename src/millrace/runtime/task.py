"""A task of an epoch or of a turn, and the stages that it may run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.injectors.offsets import Piece
from millrace.model.time import MIN_TIMESTAMP
from millrace.runtime.refusal import EventTimes
from millrace.runtime.worker_process import WorkerProcess
from millrace.watermark.propagation import LowWatermarks


@dataclass(frozen=True)
class Task:
    """One task of one epoch.

    Attributes:
        runtime: Of the process that it runs in.
        manifest: Of the epoch.
        number: Which of the stage's tasks it is, from 0.
        pieces: (injected stream, number of a piece) -> the piece, of those that it has read.
    """

    runtime: WorkerProcess
    manifest: Manifest
    number: int
    pieces: dict[tuple[str, int], Piece] = field(default_factory=dict, compare=False)

    @property
    def topology(self) -> Topology:
        """The pipeline."""
        return self.runtime.topology

    @property
    def tasks(self) -> int:
        """How many tasks each level has: of an epoch, as many as when it was begun."""
        return self.manifest.tasks or self.runtime.tasks

    @cached_property
    def latest_us(self) -> Mapping[str, int]:
        """Injected stream -> timestamps after this are refused."""
        return {
            spec.name: self.manifest.wall_time_us + spec.injection.ahead_us
            for spec in self.topology.injected()
            if spec.injection is not None
        }

    def event_times(self, stream: str) -> EventTimes:
        """Return which event times of an injected stream are accepted."""
        injection = self.topology.streams[stream].injection
        return EventTimes(
            self.latest_us[stream],
            None if injection is None else injection.timestamp,
            any(source.bare for source in self.runtime.sources if source.stream == stream),
        )


class Stage(Protocol):
    """What the tasks between two exchanges do. It is sent to them, so it can be pickled."""

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what leaves one task.

        Args:
            task: Which, and in which epoch.
            batches: Everything that was sent to it, in any order. It is read once, and for a level
                of a stream to its end before anything is yielded: the exchange is the barrier.
        """
        ...


def turns_manifest(
    topology: Topology,
    begun: Manifest,
    *,
    epoch: int,
    wall_us: int,
    output_watermark_us: int,
    published: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Return a manifest that says what holds in one turn of one task.

    Who lifts asks it which records are late for the receiver: at the latest those behind what
    this task itself has shown, whatever else the receiver has heard.

    Args:
        topology: The pipeline.
        begun: Of the epoch in which the incarnation began.
        epoch: That is open now.
        wall_us: What time it is.
        output_watermark_us: The highest low watermark that the task has shown.
        published: Injected stream -> low watermark, of those that the task reads.
    """
    before = begun.before
    return Manifest(
        epoch=epoch,
        generation=begun.generation,
        wall_time_us=wall_us,
        injectors={
            spec.name: published.get(spec.name, output_watermark_us) for spec in topology.injected()
        },
        draining=False,
        before=LowWatermarks(
            dict.fromkeys(before.inputs, MIN_TIMESTAMP),
            dict.fromkeys(before.outputs, output_watermark_us),
        ),
        intervals=begun.intervals,
        entry=begun.entry,
        edges=begun.edges,
    )
