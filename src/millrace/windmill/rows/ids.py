"""Rows of the ids of delivered records: each by itself (I), and in lots by commit (J), expiry (X).

A lot is what one commit added and what expires together. Its ids stand packed in the value of its J
row, as entries of 24 bytes: the key's hash, and the source's id.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.windmill.rows.parts import HASH_BYTES, time8, time_of

IDS: Final = b"I"
IDS_BY_COMMIT: Final = b"J"
IDS_BY_EXPIRY: Final = b"X"

#: Bytes of a source id, and of an entry: a key's hash and an id.
ID_BYTES: Final = 16
ENTRY_BYTES: Final = HASH_BYTES + ID_BYTES


class IdRow(NamedTuple):
    """``I hash source-id``: a record that was delivered.

    Attributes:
        hash8: Of its key.
        id: Its source's.
    """

    hash8: bytes
    id: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> IdRow:  # noqa: ARG003  as of all families
        """Return what a row says."""
        return cls(row[1 : 1 + HASH_BYTES], row[1 + HASH_BYTES :])

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return IDS + self.hash8 + self.id, b""


class LotRow(NamedTuple):
    """``J commit-number expiry``: ids that one commit added, and that expire together.

    Attributes:
        number: Of the commit.
        expires_us: The low watermark at which they expire.
        entries: The ids, packed.
    """

    number: int
    expires_us: int
    entries: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> LotRow:
        """Return what a row says."""
        return cls(time_of(row[1:9]), time_of(row[9:17]), value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return lot_by_commit(self.number, self.expires_us), self.entries

    def expiry_row(self) -> ExpiryRow:
        """Return the row of the same lot by expiry."""
        return ExpiryRow(self.expires_us, self.number)


class ExpiryRow(NamedTuple):
    """``X expiry commit-number``: the same lot, the one that expires first in front.

    Attributes:
        expires_us: The low watermark at which it expires.
        number: Of the commit that added it.
    """

    expires_us: int
    number: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ExpiryRow:  # noqa: ARG003  as of all families
        """Return what a row says."""
        return cls(time_of(row[1:9]), time_of(row[9:17]))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return lot_by_expiry(self.expires_us, self.number), b""


def lots_since(number: int) -> bytes:
    """Return the first row of the lots that a commit and those after it have added."""
    return IDS_BY_COMMIT + time8(number)


def lot_by_commit(number: int, expires_us: int) -> bytes:
    """Return the row of a lot by commit."""
    return IDS_BY_COMMIT + time8(number) + time8(expires_us)


def lot_by_expiry(expires_us: int, number: int) -> bytes:
    """Return the row of a lot by expiry."""
    return IDS_BY_EXPIRY + time8(expires_us) + time8(number)


def id_entries(
    hashes: bytes, counts: npt.NDArray[np.int64], halves: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint8]:
    """Return the entries of many ids, one to a line.

    Args:
        hashes: Of the keys, 8 bytes each.
        counts: How many ids each key has.
        halves: The ids of all keys, key after key; two to a line.
    """
    entries = np.empty((len(halves), ENTRY_BYTES), dtype=np.uint8)
    by_key = np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)
    entries[:, :HASH_BYTES] = np.repeat(by_key, counts, axis=0)
    big = halves.astype(">u8")
    entries[:, HASH_BYTES:] = big.view(np.uint8).reshape(-1, ID_BYTES)
    return entries


def entries_of(lots: bytes) -> npt.NDArray[np.uint8]:
    """Return packed entries, one to a line."""
    return np.frombuffer(lots, np.uint8).reshape(-1, ENTRY_BYTES)


def id_rows(entries: bytes) -> list[bytes]:
    """Return the rows of the ids in packed entries, in their order."""
    letter = IDS
    return [letter + entries[n : n + ENTRY_BYTES] for n in range(0, len(entries), ENTRY_BYTES)]
