"""Row codec: how keys, instants and long parts stand in the rows of a key interval.

A key is its hash and itself, length-prefixed, so no row of one key is inside the range of another.
Rows stay below LMDB's limit of 511 bytes: of a key, tag or entry that is too long, the row holds a
256-bit digest. What is the interval's, and no key's, has rows under a key that stands for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from millrace.model.keys import encode_key
from millrace.store import View

#: Longest key, entry or tag that stands in a row as it is. Two of them and the fixed parts make a
#: row of at most 1 + 1 + 8 + 8 + 2 + 160 + 160 bytes.
WHOLE: Final = 159
#: Bytes of a key's hash.
HASH_BYTES: Final = 8
_DIGESTED: Final = 160
_DIGEST_BYTES: Final = 32
#: So many bytes of an entry its row has in order, however long it is.
HEAD: Final = _DIGESTED - _DIGEST_BYTES
#: Added to an instant, it makes it sort as bytes.
SIGN: Final = 1 << 63
_LENGTHS: Final = [length.to_bytes(2, "big") for length in range(WHOLE + 1)]
_TOO_LONG: Final = b"\xff\xff"
#: All numbers of one byte, as bytes.
BYTE: Final = [bytes([n]) for n in range(256)]


def key_row(hash8: bytes, key: bytes) -> bytes:
    """Return the part of a row that names a key: its hash and the key, length-prefixed.

    >>> key_row(bytes(8), b"sJFK").hex()
    '00000000000000000004734a464b'
    """
    if len(key) <= WHOLE:
        return hash8 + _LENGTHS[len(key)] + key
    return hash8 + _TOO_LONG + _digest(key)


def key_row_end(row: bytes, start: int) -> int:
    """Return where the part of a row ends that names a key and begins at ``start``.

    >>> key_row_end(b"V" + key_row(bytes(8), b"sJFK") + b"more", 1)
    15
    """
    length = int.from_bytes(row[start + 8 : start + 10], "big")
    return start + 10 + (length if length <= WHOLE else _DIGEST_BYTES)


def key_row_at(row: bytes, start: int) -> bytes:
    """Return the part of a row that names a key and begins at ``start``."""
    return row[start : key_row_end(row, start)]


def hash_in(key_row: bytes) -> int:
    """Return the hash of the key that a row names."""
    return int.from_bytes(key_row[:HASH_BYTES])


def key_in(key_row: bytes) -> bytes | None:
    """Return the encoded key that a row names; None if it is too long to stand in one.

    >>> key_in(key_row(bytes(8), b"sJFK")), key_in(key_row(bytes(8), b"s" * 160))
    (b'sJFK', None)
    """
    return None if key_row[8:10] == _TOO_LONG else key_row[10:]


def hashes_in(key_rows: Sequence[bytes]) -> bytes:
    """Return the hashes of the keys that rows name, 8 bytes each, one after another."""
    return b"".join([named[:HASH_BYTES] for named in key_rows])


def last_part(data: bytes) -> bytes:
    """Return an entry or a tag as the last part of a row; see :func:`is_digested`."""
    if len(data) <= WHOLE:
        return data
    return data[:HEAD] + _digest(data)


def head(entry: bytes) -> bytes:
    """Return what rows of entries keep of them in order; entries with one head may be out of it."""
    return entry[:HEAD]


def is_digested(part: bytes) -> bool:
    """Return whether a last part stands for something longer, which its row's value then holds."""
    return len(part) == _DIGESTED


def time8(at_us: int) -> bytes:
    """Return an instant as 8 bytes that sort as instants do."""
    return (at_us + SIGN).to_bytes(8)


def time_of(data: bytes) -> int:
    """Return the instant that :func:`time8` made the bytes from."""
    return int.from_bytes(data) - SIGN


def instant_behind(prefix: bytes, row: bytes) -> int:
    """Return the instant that stands in a row right behind a prefix of it."""
    at = len(prefix)
    return time_of(row[at : at + 8])


def after(prefix: bytes) -> bytes:
    r"""Return the first row after all rows with a prefix.

    >>> after(b"V"), after(b"a\xff")
    (b'W', b'b')
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def everything(view: View) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of an interval and their values, ascending."""
    return view.scan(b"A", b"[")


def scan(view: View, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows with a prefix and their values, ascending."""
    return view.scan(prefix, after(prefix))


#: The key that stands for all keys of an interval.
ALL_KEYS: Final = encode_key("all keys")
#: No user's key has it: theirs hash to it once in 2**64.
ALL_KEYS_ROW: Final = key_row(bytes(HASH_BYTES), ALL_KEYS)
