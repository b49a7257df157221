"""The order in which a bundle's records are worked on, and where its keys begin in it.

Records are ordered by their key's hash, then by id, on whole columns. Two keys may share a hash:
they stand next to each other, and are told apart by the keys themselves.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.windmill.key_column import KeyColumn

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
    pair = (map(keys.__getitem__, places.tolist()) for places in (same, same - 1))
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
