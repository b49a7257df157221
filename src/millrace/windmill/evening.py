"""Evening: splits and merges by which tasks that have neighbouring intervals share the load.

A task has a range of the map, so nothing moves but the places at which ranges are cut. Intervals
with much load are split and those with little merged, until all that can be have about as much;
then the map is cut so that the busiest task has as little as it can have. These are pure functions,
and a constant load comes to rest: what is split has more than one and a half of an interval's due,
what is merged less than three quarters together.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.map_change import Merge, Remapped, Split
from millrace.windmill.balancer import Balance, Weight, where

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
        (-loads.get(one.id, 0.0), one.id, one)
        for one in intervals.intervals
        if loads.get(one.id, 0.0) > _MUCH * due and not _is_one_key(one)
    )[: max(0, room)]
    splits = [Split(n, where(one, weights[n].hottest)) for _, n, one in large]
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
    loads, places = _loads(intervals, weights), map(intervals.owned, range(tasks), [tasks] * tasks)
    return max(sum(loads[intervals.intervals[p].id] for p in of) for of in places)


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


def weights_after(made: Remapped, weights: Mapping[int, Weight]) -> dict[int, Weight]:
    """Return what intervals will cost after remaps, as far as is known of their keys."""
    found = dict(weights)
    for child, parents in made.parents.items():
        one = made.intervals.intervals[made.intervals.places[child]]
        of = [weights[parent] for parent in parents]
        if len(of) > 1:
            found[child] = Weight(sum(parent.load for parent in of))
            continue
        family = [n for n, before in made.parents.items() if before == parents]
        width = sum(_width(made.intervals, n) for n in family)
        hot = sum(share for hash, share in of[0].hottest if one.start <= hash < one.end)
        even = max(0.0, 1.0 - sum(share for _, share in of[0].hottest))
        part = hot + even * _width(made.intervals, child) / width
        found[child] = Weight(of[0].load * part)
    return found


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


def _width(intervals: IntervalMap, interval: int) -> int:
    one = intervals.intervals[intervals.places[interval]]
    return one.end - one.start


def _loads(intervals: IntervalMap, weights: Mapping[int, Weight]) -> dict[int, float]:
    """Return interval id -> its load, by place."""
    return {one.id: weights.get(one.id, Weight()).load for one in intervals.intervals}


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
    alone = (loads.get(one.id, 0.0) for one in intervals.intervals if _is_one_key(one))
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
        min(loads.get(one.id, 0.0), share) if _is_one_key(one) else loads.get(one.id, 0.0)
        for one in owned
    )


def _is_one_key(one: KeyInterval) -> bool:
    return one.end - one.start == 1
