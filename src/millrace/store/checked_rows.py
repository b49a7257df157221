"""Rows of a cache with a checksum behind the value, so that an altered one is noticed when read."""

from __future__ import annotations

from zlib import crc32

from millrace.store.snapshots import Rows

#: A value is stored with the CRC-32 of row and value behind it. Over all of it the CRC is then this
#: constant, whatever the value: one call in C checks a row, and `map` checks a bundle's.
RESIDUE = 0x2144DF1C
CRC_BYTES = 4


def checked(rows: Rows) -> list[tuple[bytes, bytes]]:
    """Return rows with their CRC behind the value.

    >>> [(row, value)] = checked([(b"Sk", b"1")])
    >>> crc32(value, crc32(row)) == RESIDUE, value[:-CRC_BYTES]
    (True, b'1')
    """
    return [
        (row, value + crc32(value, crc32(row)).to_bytes(CRC_BYTES, "little")) for row, value in rows
    ]
