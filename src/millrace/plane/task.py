"""A task of an epoch, and the stages that it may run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.injectors.offsets import Piece
from millrace.plane.refusal import EventTimes
from millrace.plane.runtime import Runtime
from millrace.windmill.manifest import Manifest


@dataclass(frozen=True)
class Task:
    """One task of one epoch.

    Attributes:
        runtime: Of the process that it runs in.
        manifest: Of the epoch.
        number: Which of the stage's tasks it is, from 0.
        pieces: (injected stream, number of a piece) -> the piece, of those that it has read.
    """

    runtime: Runtime
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
