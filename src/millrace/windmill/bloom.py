"""The Bloom filter in front of the store: "provably never seen before", for whole columns.

A blocked filter: an id sets five bits of one 64-bit word, so a look-up reads one word, and adding
or asking costs some 25 ns an id in NumPy. At sixteen bits an id, 1 of 230 ids never seen seems
seen, against 1 of 720 for five bits anywhere in the filter; a look-up in the store, which decides,
costs about as much as forty in the filter, so that is cheap enough.

Source: MillWheel, 6.1.1 ("we maintain a Bloom filter of known record fingerprints, to provide a
fast path for records that we have provably never seen before"); Putze, Sanders and Singler,
"Cache-, Hash- and Space-Efficient Bloom Filters" (2007).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.uint64]

BITS_PER_ID = 16
_BITS_SET = 5
_WORD_BITS = 64

#: Fewest ids that a filter is made for: half a kilobyte.
_CAPACITY_MIN = 256
#: How much larger the filter is that follows one that ran full.
_GROWTH = 4


class BloomFilter:
    """Ids that may have been added. Not one that was is ever denied.

    Args:
        capacity: How many ids it is made for. More can be added; it then errs more often.

    Attributes:
        capacity: The same, rounded up to what fills a power of two of words.
        count: How many were added.

    >>> seen = BloomFilter(1000)
    >>> ids = np.array([[1, 2], [3, 4]], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    >>> seen.add(ids[:1])
    >>> seen.may_hold(ids).tolist()
    [True, False]
    """

    __slots__ = ("_shift", "_words", "capacity", "count")

    def __init__(self, capacity: int) -> None:
        bits = max(capacity, _CAPACITY_MIN) * BITS_PER_ID
        exponent = (-(-bits // _WORD_BITS) - 1).bit_length()
        self._words = np.zeros(1 << exponent, dtype=np.uint64)
        self._shift = np.uint64(64 - exponent)
        self.capacity = (_WORD_BITS << exponent) // BITS_PER_ID
        self.count = 0

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self._words.nbytes

    def add(self, ids: Column) -> None:
        """Add ids: one row of two random halves each."""
        np.bitwise_or.at(self._words, self._places(ids), _masks(ids))
        self.count += len(ids)

    def may_hold(self, ids: Column) -> npt.NDArray[np.bool_]:
        """Return for each id whether it may have been added."""
        masks = _masks(ids)
        found: npt.NDArray[np.bool_] = (self._words[self._places(ids)] & masks) == masks
        return found

    def _places(self, ids: Column) -> npt.NDArray[np.int64]:
        return (ids[:, 0] >> self._shift).astype(np.int64)


class RotatingFilter:
    """Bloom filters one after the other, so that what has expired leaves with the filter it is in.

    A new one is begun when the newest is full, or when what comes now expires a span later than
    what went into it first. One whose ids have all expired is dropped. So with ids coming at a
    steady rate and a span of a quarter of the slack about six exist, each with room for what the
    one before it got.

    Args:
        span_us: How far apart in expiry the ids of one filter may be.
        bytes_max: What all may take together. At this size the newest takes more ids than it is
            made for, and more look-ups than need be go to the store.
    """

    __slots__ = ("_bytes_max", "_filters", "_first_us", "_last_us", "_span_us")

    def __init__(self, span_us: int, bytes_max: int) -> None:
        self._span_us = span_us
        self._bytes_max = bytes_max
        self._filters: list[BloomFilter] = []
        self._first_us: list[int] = []
        self._last_us: list[int] = []

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(one.bytes for one in self._filters)

    @property
    def count(self) -> int:
        """How many ids are in them."""
        return sum(one.count for one in self._filters)

    def add(self, ids: Column, first_us: int, last_us: int) -> None:
        """Add ids that expire between two low watermarks, inclusive."""
        self._make_room(len(ids), first_us)
        self._filters[-1].add(ids)
        self._last_us[-1] = max(self._last_us[-1], last_us)

    def may_hold(self, ids: Column) -> npt.NDArray[np.bool_]:
        """Return for each id whether it may have been added."""
        found = np.zeros(len(ids), dtype=np.bool_)
        for one in self._filters:
            found |= one.may_hold(ids)
        return found

    def expire(self, low_watermark_us: int) -> None:
        """Drop the filters in which every id has expired."""
        kept = [n for n, last_us in enumerate(self._last_us) if last_us > low_watermark_us]
        if len(kept) < len(self._filters):
            self._filters = [self._filters[n] for n in kept]
            self._first_us = [self._first_us[n] for n in kept]
            self._last_us = [self._last_us[n] for n in kept]

    def _make_room(self, count: int, first_us: int) -> None:
        wanted = count
        if self._filters:
            newest = self._filters[-1]
            full = newest.count + count > newest.capacity
            if not full and first_us < self._first_us[-1] + self._span_us:
                return
            wanted = max(count, newest.count * (_GROWTH if full else 1))
        made = BloomFilter(wanted)
        while made.bytes + self.bytes > self._bytes_max and made.capacity > _CAPACITY_MIN:
            made = BloomFilter(made.capacity // 2)
        if self._filters and made.bytes + self.bytes > self._bytes_max:
            return
        self._filters.append(made)
        self._first_us.append(first_us)
        self._last_us.append(first_us)


def _masks(ids: Column) -> Column:
    """Return for each id a word with five of its bits set, as its second half says."""
    second, one, low = ids[:, 1], np.uint64(1), np.uint64(_WORD_BITS - 1)
    masks = one << (second & low)
    for n in range(1, _BITS_SET):
        masks |= one << ((second >> np.uint64(6 * n)) & low)
    return masks
