"""Programs: what a schedule runs. A pipeline, what its source delivers, what must come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

from millrace.compile.topology import Topology
from millrace.model.keys import decode_key
from millrace.model.time import MAX_TIMESTAMP, SECOND
from millrace.testing.simulation.sunk import Row
from millrace.windmill.manifest import Completion

#: The injected stream.
STREAM = "events"
#: How far its low watermark is behind its newest record.
DELAY_US = 15 * SECOND


class Arrival(NamedTuple):
    """A record of the source.

    Attributes:
        value: A dict with at least an ``id``; what is delivered again has that of before.
        at_us: Event time.
    """

    value: dict[str, Any]
    at_us: int


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
        topology: Of the pipeline.
        batches: The records of each epoch.
        sunk: Row -> its epoch.
        last: The last completion.
    """

    topology: Topology
    batches: Sequence[Sequence[Arrival]]
    sunk: Mapping[Row, int]
    last: Completion

    def outputs(self, stream: str) -> list[Sunk]:
        """Return what the sink of a stream got; of each key in the order of emission."""
        edges = {e.number for e in self.topology.edges if e.sink is not None and e.stream == stream}
        decode = self.topology.streams[stream].coder.decode
        rows = sorted(
            ((epoch, row) for row, epoch in self.sunk.items() if row.edge in edges),
            key=lambda found: (found[0], found[1].origin, found[1].sequence),
        )
        return [
            Sunk(decode_key(row.key), decode(row.value), row.timestamp, epoch)
            for epoch, row in rows
        ]

    def low_watermarks(self) -> list[int]:
        """Return what the injector published with each epoch, the last of which ends the input."""
        published, newest = list[int](), 0
        for batch in self.batches:
            published.append(newest - DELAY_US if newest else -(1 << 62))
            newest = max([newest, *(arrival.at_us for arrival in batch)])
        return [*published[:-1], MAX_TIMESTAMP]

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
