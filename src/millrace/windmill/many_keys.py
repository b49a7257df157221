"""What keys are called, for a whole bundle of them: the same as one by one, in much less time.

A bundle has tens of thousands of keys, mostly of one kind and length. Then their bytes are a table,
which NumPy reads, or puts together, by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.model.keys import decode_key
from millrace.windmill import rows

#: An encoded whole number: its tag, and it, shifted by so much that it sorts as bytes.
ENCODED_NUMBER: Final = np.dtype([("tag", "u1"), ("shifted", ">u8")])
_TEXT_TAG, NUMBER_TAG = 0x73, 0x69
SHIFT: Final = np.uint64(1 << 63)


def decode_keys(keys: Sequence[bytes]) -> list[Any]:
    """Return :func:`millrace.model.keys.decode_key` of many keys.

    >>> from millrace.model.keys import encode_key
    >>> decode_keys([encode_key("JFK"), encode_key("EWR")]), decode_keys([encode_key(-1)])
    (['JFK', 'EWR'], [-1])
    """
    tags = {key[0] for key in keys}
    if tags == {_TEXT_TAG}:
        return [key[1:].decode() for key in keys]
    if tags == {NUMBER_TAG}:
        joined = b"".join(keys)
        # Floats have the tag as well, and are longer.
        if len(joined) == len(keys) * ENCODED_NUMBER.itemsize:
            table = np.frombuffer(joined, ENCODED_NUMBER)
            return decoded_numbers(table).tolist()  # type: ignore[no-any-return]
    return [decode_key(key) for key in keys]


def decoded_numbers(table: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the numbers in a table of :data:`ENCODED_NUMBER`."""
    return (table["shifted"].astype(np.uint64) ^ SHIFT).view(np.int64)


def key_rows(hash8s: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """Return :func:`millrace.windmill.rows.key_row` of many keys.

    Args:
        hash8s: The keys' hashes, as rows have them, one after another.
        keys: Encoded.

    >>> key_rows(bytes(16), [b"sJFK", b"sEWR"]) == [
    ...     rows.key_row(bytes(8), key) for key in (b"sJFK", b"sEWR")
    ... ]
    True
    """
    count = len(keys)
    if not keys or len(keys[0]) > rows.WHOLE or len(set(map(len, keys))) > 1:
        hashes = (hash8s[n : n + rows.HASH_BYTES] for n in range(0, len(hash8s), rows.HASH_BYTES))
        return list(map(rows.key_row, hashes, keys))
    begin, length = rows.HASH_BYTES, len(keys[0])
    # What comes before the key is as long in every row.
    head = np.frombuffer(rows.key_row(bytes(begin), keys[0])[:-length], np.uint8)
    table = np.empty((count, len(head) + length), np.uint8)
    table[:, : len(head)] = head
    table[:, :begin] = np.frombuffer(hash8s, np.uint8).reshape(count, begin)
    table[:, len(head) :] = np.frombuffer(b"".join(keys), np.uint8).reshape(count, length)
    return table.view(f"V{table.shape[1]}").ravel().tolist()
