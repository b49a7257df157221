"""Row keys: how the cells, timers and holds of an interval lie in one sorted keyspace.

::

    V hash key                          all value and combining cells of a key
    M hash key cell entry               one map entry
    B hash key cell commit-number       the items added to a bag by one commit
    T clock time hash key tag           a pending timer, in the order in which timers fire
    U hash key domain tag               the same timer, found by its tag: time, hold, percentile
    H time hash key                     a key's hold, oldest first
    H time hash key domain tag          a timer's hold, among the keys'
    G hash key                          a key's hold, found by its key
    I hash source-id                    the id of a record that was delivered
    J commit-number expiry              the ids that one commit added, and that expire together
    X expiry commit-number              the same lot, the one that expires first in front
    C time commit-number n              a chunk of all keys, wanted at that time

A key in the middle of a row is length-prefixed, so no row of one key is inside the range of
another. Rows stay below LMDB's limit of 511 bytes: of a key, tag or entry that is too long, the row
holds a 256-bit digest, and the value holds the whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

VALUES: Final = b"V"
MAP: Final = b"M"
BAG: Final = b"B"
TIMERS: Final = b"T"
TIMER_BY_TAG: Final = b"U"
HOLDS: Final = b"H"
HOLD_BY_KEY: Final = b"G"
IDS: Final = b"I"
IDS_BY_COMMIT: Final = b"J"
IDS_BY_EXPIRY: Final = b"X"
CHUNKS: Final = b"C"

#: Longest key, entry or tag that stands in a row as it is. Two of them and the fixed parts make a
#: row of at most 1 + 1 + 8 + 8 + 2 + 160 + 160 bytes.
WHOLE: Final = 159
_DIGESTED: Final = 160
_SIGN: Final = 1 << 63
_LENGTHS: Final = [length.to_bytes(2, "big") for length in range(WHOLE + 1)]


def key_row(hash8: bytes, key: bytes) -> bytes:
    """Return the part of a row that names a key: its hash and the key, length-prefixed.

    >>> key_row(bytes(8), b"sJFK").hex()
    '00000000000000000004734a464b'
    """
    if len(key) <= WHOLE:
        return hash8 + _LENGTHS[len(key)] + key
    return hash8 + b"\xff\xff" + _digest(key)


def key_rows(hash8s: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """Return :func:`key_row` of many keys, whose hashes lie one after another.

    >>> key_rows(bytes(16), [b"sJFK", b"sEWR"]) == [
    ...     key_row(bytes(8), k) for k in (b"sJFK", b"sEWR")
    ... ]
    True
    """
    return [
        hash8 + _LENGTHS[len(key)] + key if len(key) <= WHOLE else key_row(hash8, key)
        for (hash8,), key in zip(struct.iter_unpack("8s", hash8s), keys, strict=True)
    ]


def chunks(at_us: int) -> bytes:
    """Return what the rows of chunks for an instant begin with."""
    return CHUNKS + time8(at_us)


def chunk(at_us: int, number: int, n: int) -> bytes:
    """Return the row of the n-th chunk that a commit leaves for an instant."""
    return chunks(at_us) + number.to_bytes(8, "big") + n.to_bytes(2, "big")


def last_part(data: bytes) -> bytes:
    """Return an entry or a tag as the last part of a row; see :func:`is_digested`."""
    if len(data) <= WHOLE:
        return data
    return data[: _DIGESTED - 32] + _digest(data)


def head(entry: bytes) -> bytes:
    """Return what rows of entries keep of them in order; entries with one head may be out of it."""
    return entry[: _DIGESTED - 32]


def is_digested(part: bytes) -> bool:
    """Return whether a last part stands for something longer, which its row's value then holds."""
    return len(part) == _DIGESTED


def time8(at_us: int) -> bytes:
    """Return an instant as 8 bytes that sort as instants do."""
    return (at_us + _SIGN).to_bytes(8, "big")


def time_of(data: bytes) -> int:
    """Return the instant that :func:`time8` made the bytes from."""
    return int.from_bytes(data, "big") - _SIGN


def after(prefix: bytes) -> bytes:
    r"""Return the first row after all rows with a prefix.

    >>> after(b"V"), after(b"a\xff")
    (b'W', b'b')
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
