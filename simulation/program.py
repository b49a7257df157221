"""Programs: what a schedule runs. A pipeline, what its source delivers, what must come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

from millrace.compile.topology import Topology
from millrace.dataflow.stream import Stream
from millrace.dataflow.triggers.signal import streams_of
from millrace.epochlog.entries import Completion
from millrace.injectors.watermark_policy import BoundedDelay
from millrace.model.declarations import INGRESS
from millrace.model.keys import decode_key
from millrace.model.time import MAX_TIMESTAMP, SECOND, Duration
from millrace.pipeline import Pipeline
from simulation.callers import Heard
from simulation.sink_rows import Row

#: The injected stream.
STREAM = "events"
#: How far its low watermark is behind its newest record.
DELAY_US = 15 * SECOND
#: Before all time.
NEVER_US = -(1 << 62)


class Arrival(NamedTuple):
    """A record of the source.

    Attributes:
        value: A dict with at least an ``id``; what is delivered again has that of before.
        at_us: Event time.
    """

    value: dict[str, Any]
    at_us: int


class Ends:
    """Where a program's records come from and go to: on the epoch plane, from a script, to a list.

    Attributes:
        ordered: Whether a definition may go by the order in which records come, and by what is late
            there; it may, where batches say it.
        late: Whether records come behind the low watermark.
    """

    ordered = True
    late = True

    def inject(self, p: Pipeline, *, ids: bool, slack: Duration, ingress: bool = False) -> Stream:
        """Declare the injected stream.

        Args:
            p: The pipeline.
            ids: Whether the source names its records.
            slack: For how long such an id is kept.
            ingress: Whether a record's time is the clock's when it is read.
        """
        how: dict[str, Any] = {"low_watermark": BoundedDelay(DELAY_US)}
        if ingress:
            how = {"timestamp": INGRESS}
        if ids:
            how |= {"id": "id", "slack": slack}
        return p.inject(STREAM, **how)

    def take_calls(self, p: Pipeline, name: str) -> None:
        """Declare the streams of the calls of a name: the simulation makes them."""
        for stream in streams_of(name):
            p.inject(stream, Heard(stream), timestamp="at", unit="us", format=bytes)

    def sink(self, stream: str) -> Any:
        """Return a sink for a stream."""
        return _nowhere


def _nowhere(*_: Any) -> None:
    """Stand for a sink."""


class Sunk(NamedTuple):
    """A record that a sink got."""

    key: Any
    value: Any
    at_us: int
    epoch: int


@dataclass(frozen=True)
class Evidence:
    """What a schedule came to.

    Attributes:
        topologies: What each epoch ran; of most programs, always the same.
        batches: The records of each epoch.
        sunk: Row -> its epoch.
        last: The last completion.
        brought: Stream -> what its injector brought in each epoch, of those that are not
            :data:`STREAM`.
    """

    topologies: Sequence[Topology]
    batches: Sequence[Sequence[Arrival]]
    sunk: Mapping[Row, int]
    last: Completion
    brought: Mapping[str, Sequence[Sequence[Any]]]

    def outputs(self, stream: str) -> list[Sunk]:
        """Return what the sink of a stream got; of each key in the order of emission."""
        edges = {
            edge.number: topology.streams[stream].coder.decode
            for topology in self.topologies
            for edge in topology.edges
            if edge.sink is not None and edge.stream == stream
        }
        rows = sorted(
            ((epoch, row) for row, epoch in self.sunk.items() if row.edge in edges),
            key=lambda found: (found[0], found[1].origin, found[1].sequence),
        )
        return [
            Sunk(decode_key(row.key), edges[row.edge](row.value), row.timestamp, epoch)
            for epoch, row in rows
        ]

    def low_watermarks(self) -> list[int]:
        """Return what the injector published with each epoch, the last of which ends the input."""
        published, newest = list[int](), 0
        for batch in self.batches:
            published.append(newest - DELAY_US if newest else -(1 << 62))
            newest = max([newest, *(arrival.at_us for arrival in batch)])
        return [*published[:-1], MAX_TIMESTAMP]

    def stood(self, epoch: int, *, levels: int = 1) -> tuple[int, int]:
        """Return where the low watermark stood for what a grouping got in an epoch.

        Args:
            epoch: The epoch.
            levels: How far below the source the grouping is.

        Returns:
            When it was delivered, and when windows had last been collected.
        """
        fired = self.low_watermarks()
        collected = fired[epoch - 1] if epoch else NEVER_US
        return fired[epoch] if levels == 1 else collected, collected

    def late(self) -> int:
        """Return how many records of the source may be late."""
        return sum(
            arrival.at_us < self.stood(epoch)[0]
            for epoch, batch in enumerate(self.batches)
            for arrival in batch
        )

    def counted(self, computation: str, what: str) -> int:
        """Return a counter of a computation's own."""
        return self.last.counters[computation].counted.get(what, 0)


class Program(Protocol):
    """A pipeline, its input, and its definition.

    Attributes:
        name: What it is, in a line.
        topology: The pipeline, checked.
        ids: Whether the source names its records, and what it delivers again is filtered.
    """

    name: str
    topology: Topology
    ids: bool

    def value(self, random: Random) -> dict[str, Any]:
        """Return the next value of the source, but for its id."""
        ...

    def check(self, evidence: Evidence) -> None:
        """Raise :class:`~.definitions.Wrong` if something is not as the definitions say."""
        ...
