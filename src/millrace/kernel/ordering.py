"""The order in which a bundle's records are worked on, and where its keys begin in it.

Records are ordered by their key's hash, then by id, on whole columns. Two keys may share a hash:
they stand next to each other, and are told apart by the keys themselves.

A bundle has tens of thousands of keys, mostly of one kind and length, and many records a key. So
encoded keys stay a column until one of them is asked for, and keys are decoded and named by column.
Senders and intervals are few small numbers: to count records by them costs a fifth to a thirtieth
of a sort, as ``numpy.unique`` and ``numpy.lexsort`` do it.
"""

from __future__ import annotations

import itertools
import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.kernel import row_codec
from millrace.model.keys import decode_key


class KeyColumn(Sequence[bytes]):
    """Keys, by record."""

    __slots__ = ()

    @abstractmethod
    def at(self, positions: list[int]) -> list[bytes]:
        """Return the keys at some places, none below zero."""

    @abstractmethod
    def take(self, order: npt.NDArray[np.intp]) -> KeyColumn:
        """Return the keys in another order."""

    @abstractmethod
    def changed(self) -> npt.NDArray[np.bool_]:
        """Return of each key but the first whether it is another than the one before."""


def keys_at(keys: Sequence[bytes], positions: list[int]) -> list[bytes]:
    """Return the keys at some places, of a column or a list."""
    return keys.at(positions) if isinstance(keys, KeyColumn) else [keys[n] for n in positions]


Column = npt.NDArray[Any]

#: From so many records a key on, they are counted key by key, and not compared pair by pair.
_LONG: Final = 4
#: So many are compared at once: what that needs stays near the processor.
_AT_ONCE: Final = 8_192


def arrival_order(hashes: Column, origins: Column, sequences: Column) -> npt.NDArray[np.intp]:
    """Return the positions of records by hash, and those of one hash by id."""
    # Each edge's records are in order of their ids, and a shuffle mostly fetches blocks in the
    # senders' order: then a stable sort by hash does.
    if _ascend(origins, sequences):
        order = _by_hash(hashes)
    else:
        # Where senders take turns there are long runs, which a sort by id alone only merges; one by
        # hash too costs three times as much.
        by_id = np.lexsort((sequences, origins))
        order = by_id[_by_hash(hashes[by_id])]
    ordered = hashes[order]
    if (ordered[1:] >= ordered[:-1]).all():
        return order
    return np.lexsort((sequences, origins, hashes))


def _ascend(origins: Column, sequences: Column) -> bool:
    """Return whether no id is lower than the one before it."""
    for first in range(0, len(origins), _AT_ONCE):
        some = slice(first, first + _AT_ONCE + 1)
        steps = np.diff(origins[some])
        if ((steps < 0) | ((steps == 0) & (np.diff(sequences[some]) < 0))).any():
            return False
    return True


def _by_hash(hashes: Column) -> npt.NDArray[np.intp]:
    """Return the positions of records by hash, nearly always, and by position where it is the same.

    Numbers alone sort in a seventh of the time that a stable sort of positions takes. So the
    position takes the place of a hash's last bits, of which no two keys of a bundle need all; where
    two do, whoever asks sees that the hashes are not in order.
    """
    last_bits = np.uint64((1 << (len(hashes) - 1).bit_length()) - 1)
    ranks = (hashes & ~last_bits) | np.arange(len(hashes), dtype=np.uint64)
    ranks.sort()
    return (ranks & last_bits).astype(np.intp)


def in_order(hashes: Column, origins: Column, sequences: Column) -> bool:
    """Return whether records are in the order that :func:`arrival_order` returns."""
    columns = hashes, origins, sequences
    return all(
        _in_order(*(column[first : first + _AT_ONCE + 1] for column in columns))
        for first in range(0, len(hashes), _AT_ONCE)
    )


def _in_order(hashes: Column, origins: Column, sequences: Column) -> bool:
    same = hashes[1:] == hashes[:-1]
    steps = np.diff(origins)
    ascending = (steps > 0) | ((steps == 0) & (np.diff(sequences) >= 0))
    return bool(np.where(same, ascending, hashes[1:] > hashes[:-1]).all())


def cuts_by_hash(hashes: Column) -> list[int]:
    """Return where another hash begins among ordered records, and how many there are.

    >>> cuts_by_hash(np.array([3, 3, 8]))
    [0, 2, 3]
    """
    changes = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
    return [0, *changes.tolist(), len(hashes)]


def collide(keys: Sequence[bytes], hashes: Column, cuts: list[int]) -> bool:
    """Return whether keys of one hash differ: as good as never, but in a side input.

    Args:
        keys: Of ordered records.
        hashes: Theirs.
        cuts: Of the hashes.
    """
    if isinstance(keys, KeyColumn):
        return bool((keys.changed() & (hashes[1:] == hashes[:-1])).any())
    if len(keys) > _LONG * len(cuts):
        runs = (keys[start:stop] for start, stop in itertools.pairwise(cuts))
        return any(run.count(run[0]) < len(run) for run in runs)
    inner = np.ones(len(keys), np.bool_)
    inner[cuts[:-1]] = False
    same = np.flatnonzero(inner)
    pair = (map(keys.__getitem__, positions.tolist()) for positions in (same, same - 1))
    return not all(map(operator.eq, *pair))


def collisions_apart(keys: Sequence[bytes], cuts: list[int]) -> npt.NDArray[np.intp] | None:
    """Return an order in which keys that share a hash do not mix; None if none do.

    Rows of a side input all share one in an interval, so there may be many.
    """
    order: npt.NDArray[np.intp] | None = None
    for first, stop in itertools.pairwise(cuts):
        some = keys[first:stop]
        if len(some) == 1 or some.count(some[0]) == len(some):
            continue
        apart = sorted(range(len(some)), key=some.__getitem__)
        if apart != list(range(len(some))):
            order = np.arange(len(keys)) if order is None else order
            order[first:stop] = np.array(apart) + first
    return order


def cuts_by_key(keys: Sequence[bytes], cuts: list[int]) -> list[int]:
    """Return where another key begins, of records whose keys of one hash do not mix.

    >>> cuts_by_key([b"sa", b"sb", b"sb"], [0, 3])
    [0, 1, 3]
    """
    extra = [
        n
        for start, stop in itertools.pairwise(cuts)
        if stop - start > 1 and keys[start] != keys[stop - 1]
        for n in range(start + 1, stop)
        if keys[n] != keys[n - 1]
    ]
    return sorted([*cuts, *extra])


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
    """Return :func:`millrace.kernel.row_codec.key_row` of many keys.

    Args:
        hash8s: The keys' hashes, as rows have them, one after another.
        keys: Encoded.

    >>> key_rows(bytes(16), [b"sJFK", b"sEWR"]) == [
    ...     row_codec.key_row(bytes(8), key) for key in (b"sJFK", b"sEWR")
    ... ]
    True
    """
    count = len(keys)
    if not keys or len(keys[0]) > row_codec.WHOLE or len(set(map(len, keys))) > 1:
        hashes = (
            hash8s[n : n + row_codec.HASH_BYTES]
            for n in range(0, len(hash8s), row_codec.HASH_BYTES)
        )
        return list(map(row_codec.key_row, hashes, keys))
    begin, length = row_codec.HASH_BYTES, len(keys[0])
    # What comes before the key is as long in every row.
    head = np.frombuffer(row_codec.key_row(bytes(begin), keys[0])[:-length], np.uint8)
    table = np.empty((count, len(head) + length), np.uint8)
    table[:, : len(head)] = head
    table[:, :begin] = np.frombuffer(hash8s, np.uint8).reshape(count, begin)
    table[:, len(head) :] = np.frombuffer(b"".join(keys), np.uint8).reshape(count, length)
    return table.view(f"V{table.shape[1]}").ravel().tolist()


Ints = npt.NDArray[np.int64]

#: Numbers that lie so close together are counted; others are sorted.
SPAN: Final = 1 << 12


def coded(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and of each value its place among them.

    >>> coded(np.array([7, 5, 7]))
    (array([5, 7]), array([1, 0, 1]))
    """
    if len(values) and int(values.max()) - (low := int(values.min())) < SPAN:
        near = values - low
        present = np.flatnonzero(np.bincount(near))
        codes = np.empty(int(present[-1]) + 1, np.int64)
        codes[present] = np.arange(len(present))
        return present + low, codes[near]
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct, codes


def lasts(codes: Ints, count: int, highs: Ints, lows: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the codes that occur, ascending, with the highest number of each: high half, low half.

    Args:
        codes: Which group each number is of, from zero.
        count: All codes are below it.
        highs: The numbers' first halves, from zero.
        lows: Their second halves, from zero.

    >>> lasts(np.array([1, 1, 0]), 2, np.array([3, 3, 9]), np.array([4, 5, 6]))
    (array([0, 1]), array([9, 3]), array([6, 5]))
    """
    most, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    np.maximum.at(most, codes, highs)
    if len(highs) and int(highs.min()) < int(highs.max()):
        lows = np.where(highs == most[codes], lows, -1)
    np.maximum.at(last, codes, lows)
    groups = np.flatnonzero(most >= 0)
    return groups, most[groups], last[groups]
