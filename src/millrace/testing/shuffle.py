"""The shuffle of the Harness: the rows of an epoch, from which each consumer takes its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from millrace.model.coder import Coder
from millrace.model.pane import Paned
from millrace.model.topology import Edge, Topology
from millrace.testing.output import Output
from millrace.windmill.arrivals import Arrivals
from millrace.windmill.record_ids import record_id
from millrace.windmill.routing import Productions, sink_key


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
        edges = {edge.number: edge for edge in topology.edges if edge.computation == computation}
        hashes: list[int] = []
        keys: list[bytes] = []
        values: list[Any] = []
        times: list[int] = []
        streams: list[str] = []
        origins: list[int] = []
        sequences: list[int] = []
        for productions, origin, sequence in self._lots:
            for n, number in enumerate(productions.edges):
                edge = edges.get(number)
                if edge is None:
                    continue
                coder: Coder = topology.streams[edge.stream].coder
                hashes.append(productions.hashes[n])
                keys.append(productions.keys[n])
                values.append(coder.decode(productions.values[n]))
                times.append(productions.timestamps[n])
                streams.append(edge.stream)
                origins.append(origin)
                sequences.append(sequence[n])
        return Arrivals(
            np.array(hashes, dtype=np.uint64),
            keys,
            values,
            np.array(times, dtype=np.int64),
            streams,
            np.array(origins, dtype=np.int64),
            np.array(sequences, dtype=np.int64),
        )

    def sunk(self, topology: Topology, taps: Mapping[int, Edge]) -> Iterable[tuple[Edge, Output]]:
        """Yield the rows on edges to the taps."""
        for productions, origin, sequence in self._lots:
            for n, number in enumerate(productions.edges):
                edge = taps.get(number)
                if edge is not None:
                    coder = topology.streams[edge.stream].coder
                    value, pane = coder.decode(productions.values[n]), None
                    if type(value) is Paned:
                        value, pane = value.value, value.pane
                    yield (
                        edge,
                        Output(
                            sink_key(productions.keys[n]),
                            value,
                            productions.timestamps[n],
                            pane,
                            id=record_id(origin, int(sequence[n])),
                        ),
                    )
