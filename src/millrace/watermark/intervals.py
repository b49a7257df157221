"""Key intervals: half-open ranges of the 64-bit key hash, and the map that covers it.

An interval has an id that is never used twice, so that the log of one that was split or merged away
cannot be mistaken for another's. Which task owns an interval is decided anew in every epoch.

Source: MillWheel, "Architecture" (7.1): each computation's keys are partitioned into lexicographic
intervals, which move between machines, split and merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

HASH_SPACE = 1 << 64

#: Ids of intervals are less: they are part of the ids of productions.
IDS = 1 << 30

#: From so many hashes on, a table of where they lie is quicker than a search for each.
_MANY: Final = 500
#: The table is by so many of a hash's first bits.
_CELL_BITS: Final = 12
_CELL_SHIFT: Final = np.uint64(64 - _CELL_BITS)


class KeyInterval(msgspec.Struct, frozen=True, order=True):
    """Hashes in ``[start, end)``.

    Attributes:
        id: Unique among all intervals that this computation ever had; less than :data:`IDS`.
        start: Lowest hash.
        end: One past the highest hash.
    """

    id: int
    start: int
    end: int


class IntervalMap:
    """A partition of the hash space, ordered by start. It is made once, and not changed.

    Attributes:
        intervals: In order.
        places: Interval id -> its place among them.
        cuts: Places at which tasks after the first begin, where somebody has chosen; for as many
            tasks only. Else each has about as many intervals.

    >>> halves = IntervalMap.uniform(2)
    >>> halves.locate(np.array([0, 1 << 63], dtype=np.uint64)).tolist()
    [0, 1]
    """

    def __init__(self, intervals: list[KeyInterval], cuts: Sequence[int] = ()) -> None:
        ordered = sorted(intervals, key=lambda interval: interval.start)
        edges = [0, *(interval.end for interval in ordered)]
        starts = [*(interval.start for interval in ordered), HASH_SPACE]
        if edges != starts:
            raise ValueError(f"these intervals do not cover the hash space once: {ordered!r}")
        if len({interval.id for interval in ordered}) != len(ordered):
            raise ValueError(f"two of these intervals have one id: {ordered!r}")
        if [*cuts] != sorted(cuts) or not all(0 <= cut <= len(ordered) for cut in cuts):
            raise ValueError(f"these places do not cut {len(ordered)} intervals: {cuts!r}")
        self.intervals = ordered
        self.cuts = tuple(cuts)
        self.places = {interval.id: place for place, interval in enumerate(ordered)}
        self._first = [interval.start for interval in ordered]
        self._starts = np.array(self._first, dtype=np.uint64)

    @classmethod
    @cache
    def uniform(cls, count: int) -> IntervalMap:
        """Return ``count`` intervals of equal size (``count`` must be a power of two).

        A power of two lets Spark find a key's interval by shifting its hash. It is made once in a
        process: every epoch asks for it.
        """
        if count < 1 or count & (count - 1):
            raise ValueError(f"the number of intervals must be a power of two, not {count}")
        step = HASH_SPACE // count
        return cls([KeyInterval(n, n * step, (n + 1) * step) for n in range(count)])

    def renumbered(self, first: int) -> IntervalMap:
        """Return the same intervals under ids from one on, in their order.

        >>> [interval.id for interval in IntervalMap.uniform(2).renumbered(7).intervals]
        [7, 8]
        """
        return IntervalMap(
            [
                KeyInterval(first + n, interval.start, interval.end)
                for n, interval in enumerate(self.intervals)
            ],
            self.cuts,
        )

    def __len__(self) -> int:
        return len(self.intervals)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IntervalMap)
            and other.intervals == self.intervals
            and other.cuts == self.cuts
        )

    __hash__ = None  # type: ignore[assignment]  # a mutable-looking value: compare, do not hash

    def width(self, interval: int) -> int:
        """Return how many hashes an interval has, by its id."""
        key_interval = self.intervals[self.places[interval]]
        return key_interval.end - key_interval.start

    def locate(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the position (not the id) of the interval that holds each hash."""
        if len(hashes) < _MANY or self._cells is None:
            return np.searchsorted(self._starts, hashes, side="right") - 1
        cell_indexes, lasts = self._cells
        cells = hashes >> _CELL_SHIFT
        indexes: npt.NDArray[np.intp] = cell_indexes[cells]
        indexes += hashes > lasts[cells]
        return indexes

    @cached_property
    def _cells(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]] | None:
        """Return of each cell the place of its first hash, and the last hash that has it.

        A cell is the hashes with the same first bits. None if one has parts of three intervals, as
        there may be beside a hot key.
        """
        firsts = np.arange(1 << _CELL_BITS, dtype=np.uint64) << _CELL_SHIFT
        lasts = firsts | ((np.uint64(1) << _CELL_SHIFT) - np.uint64(1))
        cell_indexes, last_places = (
            np.searchsorted(self._starts, hashes, side="right") - 1 for hashes in (firsts, lasts)
        )
        if (last_places > cell_indexes + 1).any():
            return None
        ends = np.append(self._starts[1:] - np.uint64(1), lasts[-1])
        return cell_indexes, ends[cell_indexes]

    def place_of(self, hash: int) -> int:
        """Return the position of the interval that holds a hash."""
        return bisect_right(self._first, hash) - 1

    def owned(self, task: int, tasks: int) -> range:
        """Return the places of the intervals that one of ``tasks`` tasks owns.

        Where nobody chose, the interval at place p belongs to task ``p * tasks // len(self)``.
        """
        count = len(self.intervals)
        if self._is_cut_for(tasks):
            edges = (0, *self.cuts, count)
            return range(edges[task], edges[task + 1])
        return range(-(-task * count // tasks), -(-(task + 1) * count // tasks))

    def firsts(self, tasks: int) -> list[tuple[int, int]]:
        """Return the lowest hash of each task that owns some, and its number, by hash.

        >>> IntervalMap.uniform(4).firsts(3)
        [(0, 0), (9223372036854775808, 1), (13835058055282163712, 2)]
        """
        owned = ((self.owned(task, tasks), task) for task in range(tasks))
        return [(self._first[indexes.start], task) for indexes, task in owned if indexes]

    def task_of(self, hashes: npt.NDArray[np.uint64], tasks: int) -> npt.NDArray[np.int32]:
        """Return the number of the task that owns each hash."""
        indexes = self.locate(hashes)
        if self._is_cut_for(tasks):
            return np.searchsorted(self.cuts, indexes, side="right").astype(np.int32)
        return (indexes * tasks // len(self.intervals)).astype(np.int32)

    def task_at(self, hash: int, tasks: int) -> int:
        """Return the number of the task that owns one hash."""
        place = self.place_of(hash)
        if self._is_cut_for(tasks):
            return bisect_right(self.cuts, place)
        return place * tasks // len(self.intervals)

    def _is_cut_for(self, tasks: int) -> bool:
        return bool(self.cuts) and len(self.cuts) == tasks - 1
