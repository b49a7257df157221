"""Arriving: the rows in a turn's packets, for this level and for others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.plane import wire
from millrace.plane.handful import FEW, Handful
from millrace.plane.realtime.packet import NO_MARK, Packet, batches_of
from millrace.windmill.channels import Number, Sender


class Arrived(NamedTuple):
    """What came in a turn.

    Attributes:
        few: Rows for this level, if they are a handful.
        table: Rows for this level, if they are not; then ``few`` is empty.
        passing: Rows for levels below, unless all of them are few.
        few_passing: Those, if they are; then ``passing`` is empty.
        held: Rows for sinks that came after a mark which has not passed here yet.
        through: Edge -> sender -> how far it has come in the partials on that edge.
    """

    few: Handful
    table: pa.Table
    passing: list[pa.RecordBatch]
    few_passing: Handful
    held: list[pa.RecordBatch]
    through: dict[int, dict[Sender, Number]]


class Sorting:
    """Sorts what arrives for one task by where it goes.

    Args:
        topology: The pipeline.
        here: The computations of the task's level.
        task: Number of the task.
        takes_few: Whether all of them can take a handful as it is.
    """

    def __init__(self, topology: Topology, here: set[str], task: int, *, takes_few: bool) -> None:
        self._here = topology.edge_mask(here)
        self._to_sinks = np.zeros(len(self._here), dtype=np.bool_)
        for edge in topology.edges:
            self._to_sinks[edge.number] = edge.computation is None
        self._edges_here = {edge.number for edge in topology.edges if edge.computation in here}
        self._edges_to_sinks = {e.number for e in topology.edges if e.computation is None}
        self._task = task
        self._takes_few = takes_few

    def sorted(self, packets: list[Packet], marked: set[int]) -> Arrived:
        """Return the rows of packets.

        What comes to a sink that is written by mark after a mark of its sender must not overtake
        that mark on its way to the last level.

        Args:
            packets: In the order of their arrival.
            marked: Senders whose mark has come that has not passed here yet; those of these
                packets are added.
        """
        few, few_passing = list[Handful](), list[Handful]()
        here, passing, held = (list[pa.RecordBatch]() for _ in range(3))

        def in_order() -> None:
            """Have few rows that came before others stand before them: a sender's are in order."""
            passing.extend(rows.batch(self._task) for rows in few_passing)
            few_passing.clear()

        for packet in packets:
            ahead = packet.sender in marked
            if packet.mark != NO_MARK:
                marked.add(packet.sender)  # it comes after the packet's own rows
            for batch in batches_of(packet) if packet.rows else ():
                in_order()
                self._sort_batch(batch, ahead, here, passing, held)
            if packet.few is not None:
                self._sort_few(packet.few, ahead, few, few_passing, held)
        if passing:
            in_order()
        through = _through(packets)
        if here or sum(map(len, few)) > FEW or not self._takes_few:
            here += [one.batch(self._task) for one in few]
            few = []
        return Arrived(
            Handful.together(few) if few else _NONE_FEW,
            wire.together(here) if here else _EMPTY,
            passing,
            Handful.together(few_passing) if few_passing else _NONE_FEW,
            held,
            through,
        )

    def passing(self, through: dict[int, dict[Sender, Number]]) -> dict[int, dict[Sender, Number]]:
        """Return the part of what partials stand for that is of those for levels below."""
        return {edge: of for edge, of in through.items() if edge not in self._edges_here}

    def _sort_few(
        self,
        rows: Handful,
        ahead: bool,
        here: list[Handful],
        passing: list[Handful],
        held: list[pa.RecordBatch],
    ) -> None:
        mine = self._edges_here.issuperset(rows.edges)
        if mine:
            here.append(rows)
            return
        flags = [edge in self._edges_here for edge in rows.edges]
        if any(flags):
            here.append(rows.where(flags))
            rows = rows.where([not flag for flag in flags])
        if ahead and not self._edges_to_sinks.isdisjoint(rows.edges):
            to_sinks = [edge in self._edges_to_sinks for edge in rows.edges]
            held.append(rows.where(to_sinks).batch(self._task))
            rows = rows.where([not flag for flag in to_sinks])
        if len(rows):
            passing.append(rows)

    def _sort_batch(
        self,
        batch: pa.RecordBatch,
        ahead: bool,
        here: list[pa.RecordBatch],
        passing: list[pa.RecordBatch],
        held: list[pa.RecordBatch],
    ) -> None:
        edges = wire.plain(batch.column("edge").to_numpy())
        known = np.maximum(edges, 0)
        mine = (edges < 0) | self._here[known]
        if mine.all():
            here.append(batch)
            return
        if mine.any():
            here.append(wire.where(batch, mine))
        others = wire.where(batch, ~mine).select(wire.COLUMNS)
        sinks = self._to_sinks[known[~mine]]
        if not ahead or not sinks.any():
            passing.append(others)
            return
        held.append(wire.where(others, sinks))
        if not sinks.all():
            passing.append(wire.where(others, ~sinks))


def _through(packets: list[Packet]) -> dict[int, dict[Sender, Number]]:
    found: dict[int, dict[Sender, Number]] = {}
    for packet in packets:
        for edge, senders in packet.through.items():
            known = found.setdefault(edge, {})
            for who, part, origin, sequence in senders:
                number = max(known.get((who, part), (-1, -1)), (origin, sequence))
                known[who, part] = number
    return found


_EMPTY = wire.SCHEMA.empty_table()
_NONE_FEW = Handful()
