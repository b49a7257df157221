"""Marks: what a level task has heard of the mark that ends the open epoch.

Source: docs/design/2026-11-22-the-real-time-plane.md, "Marks".
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.plane.realtime.packet import NO_MARK, Packet


class Marks:
    """The marks of the tasks before one, each of which sends every mark.

    Args:
        senders: How many there are.
        epoch: The open one; the mark that ends it has its number.

    Attributes:
        draining: Whether the mark that has come last ends the input.
        last: Whether nothing but this mark's work follows in the session.
    """

    def __init__(self, senders: int, epoch: int) -> None:
        self._come = dict.fromkeys(range(senders), epoch - 1)
        self.draining = self.last = False

    def come(self, mark: int) -> set[int]:
        """Return the senders whose mark has come."""
        return {sender for sender, come in self._come.items() if come >= mark}

    def complete(self, mark: int) -> bool:
        """Return whether a mark has come from all senders."""
        return all(come >= mark for come in self._come.values())

    def hear(self, packets: Iterable[Packet]) -> None:
        """Take what packets say."""
        for packet in packets:
            if packet.mark != NO_MARK:
                self._come[packet.sender] = packet.mark
                self.draining |= packet.draining
                self.last |= packet.last
