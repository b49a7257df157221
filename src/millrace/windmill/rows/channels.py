"""Rows of channels (Q): how far an interval has consumed what one sender sends to it."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CHANNELS: Final = b"Q"
_SENDER: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">QQ")


class ChannelRow(NamedTuple):
    """``Q sender``: the last record of a sender that was consumed.

    Attributes:
        who: Upper part of the sender: number of a computation, or of an injected stream.
        part: Lower part: an interval of it, or a process.
        origin: Lower 48 bits of the last record's origin.
        sequence: Lower 33 bits of its sequence.
    """

    who: int
    part: int
    origin: int
    sequence: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ChannelRow:
        """Return what a row says."""
        return cls(*_SENDER.unpack(row[1:]), *_NUMBER.unpack(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value.

        >>> ChannelRow.unpack(*ChannelRow(3, 7, 12, 0).pack())
        ChannelRow(who=3, part=7, origin=12, sequence=0)
        """
        return CHANNELS + _SENDER.pack(self.who, self.part), _NUMBER.pack(
            self.origin, self.sequence
        )
