"""Whole numbers as keys: encoded and hashed, a column at a time.

``hash_key`` is XXH64, as Spark has it too, and the libraries for it take one key a call. That is a
good part of what an injector task does, where there are many keys. An encoded whole number has nine
bytes, always: so its hash is some twenty operations on whole numbers, each done by NumPy for all of
them at once.

Source: the specification of XXH64, for an input of nine bytes (in the repository
github.com/Cyan4973/xxHash); the names of the constants are its.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.kernel.ordering import ENCODED_NUMBER, NUMBER_TAG, SHIFT, decoded_numbers
from millrace.model.keys import HASH_SEED

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_BYTES: Final = ENCODED_NUMBER.itemsize
#: So many are done at once: what they need stays near the processor.
_AT_ONCE: Final = 8_192

_PRIME64_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME64_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME64_5: Final = np.uint64(0x27D4EB2F165667C5)
_BEGIN: Final = np.uint64((HASH_SEED + int(_PRIME64_5) + _BYTES) % (1 << 64))


def encoded_numbers(column: pa.Array) -> pa.Array:
    r"""Return integers as ``encode_key`` encodes each of them; null for a null.

    >>> encoded_numbers(pa.array([-1, None])).to_pylist()
    [b'i\x7f\xff\xff\xff\xff\xff\xff\xff', None]
    """
    count = len(column)
    valid = column.is_valid().buffers()[1] if column.null_count else None
    table = np.empty(count, ENCODED_NUMBER)
    table["tag"] = NUMBER_TAG
    table["shifted"] = _shifted(column)
    offsets = np.arange(0, (count + 1) * _BYTES, _BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(table)]
    )


def numbers_of(keys: pa.Array) -> Numbers | None:
    """Return the numbers of which encoded keys were made; None if one is of something else.

    >>> numbers_of(encoded_numbers(pa.array([7, -7]))), numbers_of(pa.array([b"sJFK"]))
    (array([ 7, -7]), None)
    """
    if keys.null_count or not pa.types.is_binary(keys.type):
        return None
    count = len(keys)
    if not count:
        return np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    at = np.frombuffer(offsets, np.int32, count + 1, keys.offset * 4)
    if (np.diff(at) != _BYTES).any():
        return None
    table = np.frombuffer(data, ENCODED_NUMBER, count, int(at[0]))
    return None if (table["tag"] != NUMBER_TAG).any() else decoded_numbers(table)


def hashes_of_numbers(column: pa.Array) -> Hashes:
    """Return what ``hash_key`` returns of each encoded integer; of a null any hash.

    >>> from millrace.model.keys import encode_key, hash_key
    >>> hashes_of_numbers(pa.array([7, -7])).tolist() == [hash_key(encode_key(n)) for n in (7, -7)]
    True
    """
    shifted = _shifted(column)
    hashes = np.empty(len(shifted), np.uint64)
    for first in range(0, len(shifted), _AT_ONCE):
        _hash(shifted[first : first + _AT_ONCE], hashes[first : first + _AT_ONCE])
    return hashes


def _shifted(column: pa.Array) -> Hashes:
    """Return numbers so that they sort as bytes do."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    whole: npt.NDArray[Any] = column.cast(pa.int64()).to_numpy()
    return whole.view(np.uint64) ^ SHIFT


def _hash(shifted: Hashes, into: Hashes) -> None:
    """Hash the tag and the big-endian bytes of numbers."""
    # Eight bytes, the first of them the lowest; then there is one more, the number's last.
    lane = shifted.byteswap()
    lane <<= np.uint64(8)
    lane |= np.uint64(NUMBER_TAG)
    lane *= _PRIME64_2
    lane = _rotated(lane, 31)
    lane *= _PRIME64_1
    lane ^= _BEGIN
    lane = _rotated(lane, 27)
    lane *= _PRIME64_1
    lane += _PRIME64_4
    last = shifted & np.uint64(0xFF)
    last *= _PRIME64_5
    lane ^= last
    lane = _rotated(lane, 11)
    lane *= _PRIME64_1
    lane ^= lane >> np.uint64(33)
    lane *= _PRIME64_2
    lane ^= lane >> np.uint64(29)
    lane *= _PRIME64_3
    np.bitwise_xor(lane, lane >> np.uint64(32), out=into)


def _rotated(lane: Hashes, bits: int) -> Hashes:
    """Return numbers with their highest bits as their lowest; what was given is used up."""
    high = lane >> np.uint64(64 - bits)
    lane <<= np.uint64(bits)
    lane |= high
    return lane
