"""Arriving: the rows in a turn's packets, for this level and for others."""

from __future__ import annotations

from typing import NamedTuple

from millrace.compile.topology import Topology
from millrace.plane.realtime.packet import NO_MARK, Packet, rows_of
from millrace.plane.rows import EdgeSet, Rows
from millrace.windmill.channels import Number, Sender


class Arrived(NamedTuple):
    """What came in a turn.

    Attributes:
        here: Rows for this level.
        passing: Rows for levels below.
        held: Rows for sinks that came after a mark which has not passed here yet.
        through: Edge -> sender -> how far it has come in the partials on that edge.
    """

    here: Rows
    passing: list[Rows]
    held: list[Rows]
    through: dict[int, dict[Sender, Number]]


class Sorting:
    """Sorts what arrives for one task by where it goes.

    Args:
        topology: The pipeline.
        here: The computations of the task's level.
    """

    def __init__(self, topology: Topology, here: set[str]) -> None:
        self._here = EdgeSet(topology.edge_mask(here))
        self._to_sinks = EdgeSet(topology.edge_mask({None}))

    def sorted(self, packets: list[Packet], marked: set[int]) -> Arrived:
        """Return the rows of packets.

        What comes to a sink that is written by mark after a mark of its sender must not overtake
        that mark on its way to the last level.

        Args:
            packets: In the order of their arrival.
            marked: Senders whose mark has come that has not passed here yet; those of these
                packets are added.
        """
        here, passing, held = list[Rows](), list[Rows](), list[Rows]()
        for packet in packets:
            ahead = packet.sender in marked
            if packet.mark != NO_MARK:
                marked.add(packet.sender)  # it comes after the packet's own rows
            for rows in rows_of(packet):
                mine, others = rows.parted(self._here)
                if len(mine):
                    here.append(mine)
                if len(others) and ahead:
                    to_sinks, others = others.parted(self._to_sinks)
                    if len(to_sinks):
                        held.append(to_sinks)
                if len(others):
                    passing.append(others)
        return Arrived(Rows.joined(here), passing, held, _through(packets))

    def passing(self, through: dict[int, dict[Sender, Number]]) -> dict[int, dict[Sender, Number]]:
        """Return the part of what partials stand for that is of those for levels below."""
        return {edge: of for edge, of in through.items() if edge not in self._here.numbers}


def _through(packets: list[Packet]) -> dict[int, dict[Sender, Number]]:
    found: dict[int, dict[Sender, Number]] = {}
    for packet in packets:
        for edge, senders in packet.through.items():
            known = found.setdefault(edge, {})
            for who, part, origin, sequence in senders:
                number = max(known.get((who, part), (-1, -1)), (origin, sequence))
                known[who, part] = number
    return found
