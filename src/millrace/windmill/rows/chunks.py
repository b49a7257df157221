"""Rows of chunks (C): what groupings that work on whole bundles leave behind, by instant."""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.windmill.rows.parts import time8, time_of

CHUNKS: Final = b"C"


class ChunkRow(NamedTuple):
    """``C time commit-number n``: a chunk of all keys, wanted at that time.

    Attributes:
        at_us: When it is wanted.
        number: Of the commit that left it.
        n: Which of those that it left for that time.
        data: What it says, to the grouping.
    """

    at_us: int
    number: int
    n: int
    data: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ChunkRow:
        """Return what a row says."""
        number, n = int.from_bytes(row[9:17], "big"), int.from_bytes(row[17:], "big")
        return cls(chunk_instant(row), number, n, value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return chunk(self.at_us, self.number, self.n), self.data


def chunks(at_us: int) -> bytes:
    """Return what the rows of chunks for an instant begin with."""
    return CHUNKS + time8(at_us)


def chunk(at_us: int, number: int, n: int) -> bytes:
    """Return the row of the n-th chunk that a commit leaves for an instant."""
    return chunks(at_us) + number.to_bytes(8, "big") + n.to_bytes(2, "big")


def chunk_instant(row: bytes) -> int:
    """Return the instant at which a chunk is wanted, of its row."""
    return time_of(row[1:9])
