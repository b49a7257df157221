"""The shuffle of the Harness: the rows of an epoch, from which each consumer takes its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from millrace.model.pane import Paned
from millrace.model.topology import Edge, Topology
from millrace.testing.output import Output
from millrace.windmill.arrivals import Arrivals
from millrace.windmill.record_ids import record_id
from millrace.windmill.routing import Productions, sink_key
from millrace.windmill.source_ids import unseal


class Shuffle:
    """All rows of one epoch."""

    def __init__(self) -> None:
        self._lots: list[tuple[Productions, Any, Any]] = []

    def add(self, productions: Productions, origins: Any, sequences: Any) -> None:
        """Take rows with their ids; a single origin stands for all of them."""
        if len(productions):
            self._lots.append((productions, origins, sequences))

    def copy(self) -> Shuffle:
        """Return the same rows, to which others can be added."""
        made = Shuffle()
        made._lots = list(self._lots)
        return made

    def arrivals(self, topology: Topology, computation: str) -> Arrivals:
        """Return the rows on edges to a computation."""
        edges = [edge for edge in topology.edges if edge.computation == computation]
        return Arrivals.together([self._on(topology, edge) for edge in edges])

    def _on(self, topology: Topology, edge: Edge) -> Arrivals:
        found = [
            (made.hashes[n], made.keys[n], made.values[n], made.timestamps[n], origin, sequence[n])
            for made, origin, sequence in self._lots
            for n, number in enumerate(made.edges)
            if number == edge.number
        ]
        columns = list(zip(*found, strict=True)) or [()] * 6
        origins = np.array(columns[4], dtype=np.int64)
        stream, values, ids = topology.streams[edge.stream], list(columns[2]), None
        if edge.identified:
            values, ids = unseal(edge.stream, values, origins, stream.slacks)
        return Arrivals(
            np.array(columns[0], dtype=np.uint64),
            columns[1],
            [stream.coder.decode(value) for value in values],
            np.array(columns[3], dtype=np.int64),
            edge.stream,
            origins,
            np.array(columns[5], dtype=np.int64),
            ids,
        )

    def sunk(
        self, topology: Topology, taps: Mapping[int, Edge], wall_time_us: int
    ) -> Iterable[tuple[Edge, Output]]:
        """Yield the rows on edges to the taps, in the order in which they were sent."""
        for productions, origin, sequence in self._lots:
            for n, number in enumerate(productions.edges):
                edge = taps.get(number)
                if edge is None:
                    continue
                encoded, stream = productions.values[n], topology.streams[edge.stream]
                half, other = np.array([origin]), np.array([sequence[n]])
                if edge.identified:
                    (encoded,), ids = unseal(edge.stream, [encoded], half, stream.slacks)
                    half, other = ids.halves_over(half, other)
                value, pane = stream.coder.decode(encoded), None
                if type(value) is Paned:
                    value, pane = value.value, value.pane
                key, at_us = sink_key(productions.keys[n]), productions.timestamps[n]
                id = record_id(int(half[0]), int(other[0]))
                yield edge, Output(key, value, at_us, pane, wall_time_us, id)
