"""The shuffle of the Harness: the rows of an epoch, from which each consumer takes its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.compile.topology import Edge, Topology
from millrace.dataflow.partial import PartialCoder
from millrace.model.pane import Paned
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

    def arrivals(
        self, topology: Topology, computation: str, lift_from_us: int | None = None
    ) -> Arrivals:
        """Return the rows on edges to a computation.

        Args:
            topology: Of the pipeline.
            computation: Its name.
            lift_from_us: Let each sender combine values with timestamps from here on; None: let
                nobody.
        """
        parts = []
        for edge in topology.edges:
            if edge.computation != computation:
                continue
            rows = self._on(edge)
            if edge.lift is not None and lift_from_us is not None:
                rows, partials = self._lifted(topology, edge, rows, lift_from_us)
                parts += partials
            parts.append(_arrivals(topology, edge, rows))
        return Arrivals.together(parts)

    def _on(self, edge: Edge) -> list[_Row]:
        return [
            _Row(
                made.hashes[n], made.keys[n], made.values[n], made.timestamps[n], origin, places[n]
            )
            for made, origin, places in self._lots
            for n, number in enumerate(made.edges)
            if number == edge.number
        ]

    def _lifted(
        self, topology: Topology, edge: Edge, rows: list[_Row], from_us: int
    ) -> tuple[list[_Row], list[Arrivals]]:
        """Return the rows that go on as they are, and what each sender's others became."""
        left, partials = [], []
        coder = topology.streams[edge.stream].coder
        for _, sent in itertools.groupby(rows, key=attrgetter("origin")):
            mine = list(sent)
            left += [row for row in mine if row.at_us < from_us]
            mine = [row for row in mine if row.at_us >= from_us]
            lifted = edge.lift.apply_encoded(
                coder,
                pa.array([row.key for row in mine], pa.binary()),
                np.array([row.hash for row in mine], np.uint64),
                np.array([row.at_us for row in mine], np.int64),
                pa.array([row.value for row in mine], pa.binary()),
            )
            if lifted is None:
                left += mine
                continue
            left += [row for row, taken in zip(mine, lifted.taken, strict=True) if not taken]
            encoded = [edge.lift.coder.encode(partial) for partial in lifted.partials]
            firsts = [
                mine[n]._replace(value=value)
                for n, value in zip(lifted.first.tolist(), encoded, strict=True)
            ]
            partials.append(_arrivals(topology, edge, firsts, edge.lift.coder))
        return left, partials

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


class _Row(NamedTuple):
    """A row on an edge."""

    hash: int
    key: bytes
    value: bytes
    at_us: int
    origin: int
    sequence: int


def _arrivals(
    topology: Topology, edge: Edge, rows: list[_Row], coder: PartialCoder | None = None
) -> Arrivals:
    """Return rows as records: of the stream's format, or partials."""
    hashes, keys, values, times, origins, sequences = zip(*rows, strict=True) if rows else [()] * 6
    stream, ids = topology.streams[edge.stream], None
    halves = np.array(origins, dtype=np.int64)
    if edge.identified:
        unsealed, ids = unseal(edge.stream, list(values), halves, stream.slacks)
        values = tuple(unsealed)
    decoded = [(stream.coder if coder is None else coder).decode(value) for value in values]
    return Arrivals(
        np.array(hashes, dtype=np.uint64),
        keys,
        decoded,
        np.array(times, dtype=np.int64),
        edge.stream,
        halves,
        np.array(sequences, dtype=np.int64),
        ids,
        None if coder is None else np.array([partial.elements for partial in decoded], np.int64),
    )
