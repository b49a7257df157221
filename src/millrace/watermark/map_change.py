"""Remaps: how a map of key intervals changes into the next.

Source: MillWheel, "Architecture" (7.1): intervals move between machines, split and merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from millrace.watermark.intervals import IntervalMap, KeyInterval


@dataclass(frozen=True, slots=True)
class Split:
    """An interval becomes two.

    Attributes:
        interval: Its id.
        at: The lowest hash of the second; by default the middle of its range.

    Source: MillWheel, "Architecture" (7.1).

    >>> import millrace as mr
    >>> mr.ops.Split(3)
    Split(interval=3, at=None)
    """

    interval: int
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours become one.

    Attributes:
        left: Id of the one with the lower hashes.
        right: Id of the other.

    Source: MillWheel, "Architecture" (7.1).

    >>> import millrace as mr
    >>> mr.ops.Merge(2, 3)
    Merge(left=2, right=3)
    """

    left: int
    right: int


Remap = Split | Merge


@dataclass(frozen=True)
class Remapped:
    """A map after remaps.

    Attributes:
        intervals: The map.
        parents: Id of each interval that is new -> those that it was made of.
    """

    intervals: IntervalMap
    parents: dict[int, tuple[int, ...]]


def remapped(intervals: IntervalMap, remaps: Iterable[Remap], *, first_id: int) -> Remapped:
    """Return a map after some remaps, each of intervals that are in the map as it was.

    Args:
        intervals: The map before.
        remaps: What changes; no interval is in two of them.
        first_id: Of the intervals that are made; above all that the computation ever had.

    Raises:
        ValueError: One is of an interval that is not there, or is in another; a split is at no
            hash inside its interval; a merge is of intervals that are no neighbours; or it is
            neither.

    >>> halves = IntervalMap.uniform(2)
    >>> made = remapped(halves, [Split(0, 5)], first_id=2)
    >>> [(one.id, one.start) for one in made.intervals.intervals], made.parents
    ([(2, 0), (3, 5), (1, 9223372036854775808)], {2: (0,), 3: (0,)})
    """
    known = {interval.id: interval for interval in intervals.intervals}
    parents, touched = dict[int, tuple[int, ...]](), set[int]()
    next_id = first_id

    def taken(interval: int, remap: Remap) -> KeyInterval:
        if interval in touched or interval not in known:
            raise ValueError(
                f"{remap!r}: expected an interval of the map that no other remap has; interval "
                f"{interval} {'is in another' if interval in touched else 'is not there'}."
            )
        touched.add(interval)
        return known[interval]

    def replace(old: tuple[KeyInterval, ...], cuts: list[int]) -> None:
        nonlocal next_id
        for parent in old:
            del known[parent.id]
        for start, end in pairwise(cuts):
            known[next_id] = KeyInterval(next_id, start, end)
            parents[next_id] = tuple(parent.id for parent in old)
            next_id += 1

    for remap in remaps:
        match remap:
            case Split(interval, at):
                split = taken(interval, remap)
                middle = (split.start + split.end) // 2 if at is None else at
                if not (isinstance(middle, int) and split.start < middle < split.end):
                    raise ValueError(
                        f"{remap!r}: expected a hash above {split.start} and below {split.end}."
                    )
                replace((split,), [split.start, middle, split.end])
            case Merge(left, right):
                low, high = taken(left, remap), taken(right, remap)
                if low.end != high.start:
                    raise ValueError(
                        f"{remap!r}: interval {left} ends at {low.end}, and {right} begins at "
                        f"{high.start}; expected neighbours, the lower one first."
                    )
                replace((low, high), [low.start, high.end])
            case _:
                raise ValueError(f"{remap!r}: expected mr.ops.Split(3) or mr.ops.Merge(3, 4).")
    return Remapped(IntervalMap(list(known.values())), parents)
