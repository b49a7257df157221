"""The policy of the balancer: from loads of intervals, and who owns them, to splits and merges.

It is a pure function, and remembers nothing: asked again with the same load and the map that it has
asked for, it asks for less, until it asks for nothing.

- Nothing is done while no task has much more than its share, a quarter by default. A task has a
  range of the map, and nothing moves but the places at which ranges are cut.
- Intervals with much load are split and those with little merged, until all that can be have about
  as much; then the map is cut so that the busiest task has as little as it can have.
- A split is beside a key that has most of its interval, so that the key gets an interval of its own
  in two rounds, or else where about half of the load is on either side.
- One key cannot be divided. A task that has nothing else has what it has, and the rest is shared by
  the others.
- What is split has more than one and a half of an interval's due, what is merged less than three
  quarters together, so a constant load comes to rest.

Source: MillWheel, "Architecture" (7.1); Slicer (Adya and others, OSDI 2016) for the limit of churn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millrace.model.errors import PipelineError
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.map_change import Merge, Remapped, Split


@dataclass(frozen=True, slots=True)
class Weight:
    """What an interval costs.

    Attributes:
        load: In any unit, the same for all: seconds of user code, or records.
        hottest: Hash of a key -> its share of the load; as far as is known.
    """

    load: float = 0.0
    hottest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Balance:
    """How hard it is tried.

    Attributes:
        above: A task with so many times its share, or more, is worth doing something.
        splits: Splits a round, and as many merges.
        intervals: How many intervals there are to be; for a time there are twice as many.

    Raises:
        PipelineError: One cannot be that.

    Source: MillWheel, "Architecture" (7.1).

    >>> import millrace as mr
    >>> mr.ops.Balance(above=1.5).splits
    8
    """

    above: float = 1.25
    splits: int = 8
    intervals: int = 64

    def __post_init__(self) -> None:
        whole = (self.splits, self.intervals)
        if (
            type(self.above) not in (int, float)
            or not self.above >= 1
            or any(type(number) is not int or number < 1 for number in whole)
        ):
            raise PipelineError(
                f"{self!r}: expected above=, so many times a task's share, of 1 or more, and whole "
                "numbers from 1 on as splits= and intervals=."
            )


#: A key with so much of its interval gets one of its own.
_HOT = 0.4


def where(interval: KeyInterval, hottest: tuple[tuple[int, float], ...]) -> int:
    """Return the hash at which to split an interval of more than one.

    Args:
        interval: The interval.
        hottest: Hashes of keys with their share of its load; the rest is taken to be even.

    >>> where(KeyInterval(0, 0, 100), ())
    50
    >>> where(KeyInterval(0, 0, 100), ((10, 0.9),)), where(KeyInterval(0, 10, 100), ((10, 0.9),))
    (10, 11)
    >>> where(KeyInterval(0, 0, 100), ((90, 0.2), (80, 0.2)))
    80
    """
    inside = sorted(
        (hash, share) for hash, share in hottest if interval.start <= hash < interval.end
    )
    if inside:
        hash, share = max(inside, key=lambda key: (key[1], -key[0]))
        if share >= _HOT:
            return hash if hash > interval.start else interval.start + 1
    even = max(0.0, 1.0 - sum(share for _, share in inside))
    at, before = interval.start, 0.0
    for hash, share in [*inside, (interval.end, 0.0)]:
        stretch = even * (hash - at) / (interval.end - interval.start)
        if before + stretch >= 0.5 and even > 0.0:
            middle = at + int((0.5 - before) / even * (interval.end - interval.start))
            return min(max(middle, interval.start + 1), interval.end - 1)
        before += stretch
        if before + share >= 0.5:
            # The key itself lies on the side that has less.
            split = hash if 0.5 - before <= before + share - 0.5 else hash + 1
            return min(max(split, interval.start + 1), interval.end - 1)
        at, before = hash, before + share
    return (interval.start + interval.end) // 2


#: Of an interval's due: above it is split, below it two are merged. Twice apart, so that neither
#: undoes the other.
_MUCH, _LITTLE = 1.5, 0.75


def evened(
    intervals: IntervalMap, weights: Mapping[int, Weight], tasks: int, how: Balance
) -> list[Split | Merge]:
    """Return what makes the load of tasks more even, if one has much more than its share.

    Args:
        intervals: The map; a task has a range of it, see :meth:`IntervalMap.owned`.
        weights: Interval id -> what it costs; of one that is not there, nothing.
        tasks: How many there are.
        how: How hard it is tried.

    >>> quarters = IntervalMap.uniform(4)
    >>> weights = {0: Weight(9.0), 1: Weight(1.0), 2: Weight(1.0), 3: Weight(1.0)}
    >>> evened(quarters, weights, 2, Balance(intervals=4))
    [Split(interval=0, at=2305843009213693952), Merge(left=1, right=2)]
    """
    loads = _loads(intervals, weights)
    if not uneven(intervals, weights, tasks, how):
        return []
    share = _share(intervals, loads, tasks)
    due = share * tasks / how.intervals
    room = min(how.splits, 2 * how.intervals - len(intervals))
    large = sorted(
        (-loads.get(interval.id, 0.0), interval.id, interval)
        for interval in intervals.intervals
        if loads.get(interval.id, 0.0) > _MUCH * due and not _is_one_key(interval)
    )[: max(0, room)]
    splits = [Split(n, where(candidate, weights[n].hottest)) for _, n, candidate in large]
    return [*splits, *_merges(intervals, loads, due, splits, how)]


def uneven(intervals: IntervalMap, weights: Mapping[int, Weight], tasks: int, how: Balance) -> bool:
    """Return whether a task has so much more than its share that it is worth a change.

    But for one key that is too much for a task: it cannot be helped.
    """
    loads = _loads(intervals, weights)
    share = _share(intervals, loads, tasks)
    most = max(_of_task(intervals, loads, task, tasks, share) for task in range(tasks))
    return share > 0.0 and most > how.above * share


def busiest(intervals: IntervalMap, weights: Mapping[int, Weight], tasks: int) -> float:
    """Return what the task with the most load has."""
    loads, owned_ranges = (
        _loads(intervals, weights),
        map(intervals.owned, range(tasks), [tasks] * tasks),
    )
    return max(sum(loads[intervals.intervals[p].id] for p in indexes) for indexes in owned_ranges)


def cut_by_load(intervals: IntervalMap, weights: Mapping[int, Weight], tasks: int) -> IntervalMap:
    """Return a map cut for so many tasks so that the busiest has as little as it can have.

    >>> weights = {0: Weight(5.0), 1: Weight(1.0), 2: Weight(2.0), 3: Weight(2.0)}
    >>> cut_by_load(IntervalMap.uniform(4), weights, 2).cuts
    (1,)
    """
    loads = [*_loads(intervals, weights).values()]
    low, high = max(max(loads), sum(loads) / tasks), sum(loads)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_cuts(loads, middle)) < tasks else (middle, high)
    cuts = _cuts(loads, high)
    cuts += [len(loads)] * (tasks - 1 - len(cuts))
    return IntervalMap(intervals.intervals, cuts)


def weights_after(remapped: Remapped, weights: Mapping[int, Weight]) -> dict[int, Weight]:
    """Return what intervals will cost after remaps, as far as is known of their keys."""
    weights_of = dict(weights)
    for child, parents in remapped.parents.items():
        interval = remapped.intervals.intervals[remapped.intervals.places[child]]
        parent_weights = [weights[parent] for parent in parents]
        if len(parent_weights) > 1:
            weights_of[child] = Weight(sum(parent.load for parent in parent_weights))
            continue
        family = [n for n, before in remapped.parents.items() if before == parents]
        width = sum(remapped.intervals.width(n) for n in family)
        hot = sum(
            share
            for hash, share in parent_weights[0].hottest
            if interval.start <= hash < interval.end
        )
        even = max(0.0, 1.0 - sum(share for _, share in parent_weights[0].hottest))
        part = hot + even * remapped.intervals.width(child) / width
        weights_of[child] = Weight(parent_weights[0].load * part)
    return weights_of


def _cuts(loads: Sequence[float], most: float) -> list[int]:
    """Return where ranges begin, the first apart, none of which has more than some load."""
    cuts, here = list[int](), 0.0
    for place, load in enumerate(loads):
        # A little more, or sums of the same numbers in another order would not fit.
        if here + load > most * (1 + 1e-9) and here > 0.0:
            cuts.append(place)
            here = 0.0
        here += load
    return cuts


def _loads(intervals: IntervalMap, weights: Mapping[int, Weight]) -> dict[int, float]:
    """Return interval id -> its load, by place."""
    return {
        interval.id: weights.get(interval.id, Weight()).load for interval in intervals.intervals
    }


def _merges(
    intervals: IntervalMap,
    loads: Mapping[int, float],
    due: float,
    splits: list[Split],
    how: Balance,
) -> list[Merge]:
    """Return merges of the smallest neighbours, while there are more than there are to be."""
    surplus = min(how.splits, len(intervals) + len(splits) - how.intervals)
    taken = {split.interval for split in splits}
    small = sorted(
        (together, low.id, high.id)
        for low, high in pairwise(intervals.intervals)
        if (together := loads.get(low.id, 0.0) + loads.get(high.id, 0.0)) < _LITTLE * due
    )
    merges = list[Merge]()
    for _, low, high in small:
        if len(merges) < surplus and taken.isdisjoint((low, high)):
            taken |= {low, high}
            merges.append(Merge(low, high))
    return merges


def _share(intervals: IntervalMap, loads: Mapping[int, float], tasks: int) -> float:
    """Return a task's share, without what keys have that are too much for one."""
    total = sum(loads.values())
    alone = (
        loads.get(interval.id, 0.0) for interval in intervals.intervals if _is_one_key(interval)
    )
    for load in sorted(alone, reverse=True):
        if tasks < 2 or load <= total / tasks:
            break
        total, tasks = total - load, tasks - 1
    return total / tasks


def _of_task(
    intervals: IntervalMap, loads: Mapping[int, float], task: int, tasks: int, share: float
) -> float:
    """Return what a task has to do, of a key that is too much a share: it cannot be helped."""
    owned = map(intervals.intervals.__getitem__, intervals.owned(task, tasks))
    return sum(
        min(loads.get(interval.id, 0.0), share)
        if _is_one_key(interval)
        else loads.get(interval.id, 0.0)
        for interval in owned
    )


def _is_one_key(interval: KeyInterval) -> bool:
    return interval.end - interval.start == 1
