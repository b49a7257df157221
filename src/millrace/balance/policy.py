"""The policy of the balancer: from loads of intervals, and who owns them, to splits and merges.

It is a pure function, and remembers nothing: asked again with the same load and the map that it has
asked for, it asks for less, until it asks for nothing.

- Nothing is done while no task has much more than its share, a quarter by default, or less than
  half of it. Then tasks give away until they have hardly more. Between the two lies what keeps it
  from going to and fro.
- A move is made only if it makes the larger of the two tasks smaller, and by more than a little. So
  the sum of the squares of the loads falls with each, and a constant load comes to rest.
- An interval that is too much to be moved is split: beside a key that has most of it, so that the
  key gets an interval of its own in two rounds, or else where about half of it is on either side.
- One key cannot be divided. A task that has nothing else has what it has, and the rest is shared by
  the others.
- Merges undo splits: only while there are more intervals than there are to be, of two neighbours
  that one task owns and that are small together, far too small to be split again.
- What a task that is gone owned is given away at once, and is not counted as moves.

Where a task has a range of the map, as live tasks have, nothing moves but the places at which
ranges are cut: intervals with much load are split and those with little merged, until all that can
be have about as much; then the map is cut so that the busiest task has as little as it can have.
What is split has more than one and a half of an interval's due, what is merged less than three
quarters together, so a constant load comes to rest there, too.

Source: MillWheel, "Architecture" (7.1); Slicer (Adya and others, OSDI 2016) for the limit of churn.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.map_change import Merge, Move, Remap, Remapped, Split


@dataclass(frozen=True, slots=True)
class Weight:
    """What an interval costs.

    Attributes:
        load: In any unit, the same for all: seconds of user code, or records.
        bytes: Of its state, which the next owner has to read.
        hottest: Hash of a key -> its share of the load; as far as is known.
    """

    load: float = 0.0
    bytes: int = 0
    hottest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Balance:
    """How hard it is tried.

    Attributes:
        above: A task with so many times its share, or more, is worth doing something.
        until: Then tasks give away until they have no more than so many times their share.
        moves: Moves a round; none on Spark, where a task has neighbouring intervals.
        splits: Splits a round, and as many merges.
        intervals: How many intervals there are to be; for a time there are twice as many.

    Source: MillWheel, "Architecture" (7.1).

    >>> import millrace as mr
    >>> mr.ops.Balance(above=1.5).splits
    8
    """

    above: float = 1.25
    until: float = 1.1
    moves: int = 8
    splits: int = 8
    intervals: int = 64


@dataclass(frozen=True, slots=True)
class Round:
    """What the balancer asks for.

    Attributes:
        remaps: No interval is in two of them.
        one_key: Intervals of one hash that are more than a task's share: ``fanout=`` divides the
            work of a key, and nothing else does.
    """

    remaps: list[Remap]
    one_key: list[int]


_NOTHING = Weight()
#: An interval with more of a task's share than this is hard to place, and two with less than that
#: are one too many. Far apart, so that what was merged is not split again.
_LARGE, _SMALL = 0.5, 0.1
#: A task with less than so much of its share is given something; no interval is split for it.
_IDLE = 0.5
#: Who gives away keeps so much of his share, or he would be the next to be given something.
_KEPT = 0.7
#: A key with so much of its interval gets one of its own.
_HOT = 0.4


def balance(
    intervals: IntervalMap,
    owners: Mapping[int, int],
    weights: Mapping[int, Weight],
    tasks: Collection[int],
    how: Balance,
) -> Round:
    """Return what makes the load of the tasks more even.

    Args:
        intervals: The map.
        owners: Interval id -> task.
        weights: Interval id -> what it costs; of one that is not there, nothing.
        tasks: Those that there are.
        how: How hard it is tried.

    >>> halves = IntervalMap.uniform(4)
    >>> weights = {0: Weight(6.0), 1: Weight(5.0), 2: Weight(1.0), 3: Weight(1.0)}
    >>> balance(halves, {0: 0, 1: 0, 2: 1, 3: 1}, weights, [0, 1], Balance(intervals=4)).remaps
    [Move(interval=1, to=1)]
    """
    work = _Round(intervals, owners, weights, tasks, how)
    work.give_away_what_has_no_owner()
    if work.uneven():
        work.even_out()
    work.merge()
    return Round(work.remaps, work.keys_that_are_too_much())


class _Round:
    """One round: what is known, and what is asked for so far."""

    def __init__(
        self,
        intervals: IntervalMap,
        owners: Mapping[int, int],
        weights: Mapping[int, Weight],
        tasks: Collection[int],
        how: Balance,
    ) -> None:
        self._intervals, self._weights, self._how = intervals, weights, how
        self._owner = dict(owners)
        self._owned: dict[int, set[int]] = {task: set() for task in tasks}
        self._load = dict.fromkeys(self._owned, 0.0)
        self._orphans: list[int] = []
        self._touched = set[int]()
        self._splits = 0
        self.remaps: list[Remap] = []
        for interval in intervals.intervals:
            if (task := self._owner[interval.id]) in self._owned:
                self._owned[task].add(interval.id)
                self._load[task] += self._of(interval.id)
            else:
                self._orphans.append(interval.id)
        self._total = sum(self._load.values()) + sum(map(self._of, self._orphans))
        self._least = [(load, task) for task, load in self._load.items()]
        heapq.heapify(self._least)
        self._keys = [
            interval for interval in intervals.intervals if interval.end - interval.start == 1
        ]
        self._share = self._share_of_each()

    def give_away_what_has_no_owner(self) -> None:
        """Give what tasks owned that are gone to those with the least load, the largest first.

        Of equal ones, to those with the fewest.
        """
        if not self._orphans:
            return
        heap = [(load, len(self._owned[task]), task) for task, load in self._load.items()]
        heapq.heapify(heap)
        for interval in sorted(self._orphans, key=lambda n: (-self._of(n), n)):
            _, _, task = heap[0]
            self._move(interval, task)
            heapq.heapreplace(heap, (self._load[task], len(self._owned[task]), task))

    def uneven(self) -> bool:
        """Return whether a task has so much more or less than its share that it is worth a change.

        But for one that works on one key, and on nothing else: it cannot be helped.
        """
        enough, little = self._how.above * self._share, _IDLE * self._share
        loads = self._load.items()
        return any(load < little or (load > enough and not self._one_key(n)) for n, load in loads)

    def _share_of_each(self) -> float:
        """Return a task's share, without tasks that keys of their own are too much for."""
        left, tasks = self._total, len(self._load)
        for load in sorted((self._of(interval.id) for interval in self._keys), reverse=True):
            if tasks < 2 or load <= left / tasks:
                break
            left, tasks = max(0.0, left - load), tasks - 1  # sums of floats are rounded
        return left / tasks

    def _one_key(self, task: int) -> bool:
        """Return whether what a task does is of one key, in an interval of one hash."""
        working = [n for n in self._owned[task] if self._of(n)]
        return len(working) == 1 and self._of_one_key(working[0])

    def _of_one_key(self, interval: int) -> bool:
        key_interval = self._interval(interval)
        return key_interval.end - key_interval.start == 1

    def even_out(self) -> None:
        """Have those with the most give away, the first first; split what is too much to move."""
        most = [(-load, task) for task, load in self._load.items()]
        heapq.heapify(most)
        moves = 0
        while most and moves < self._how.moves:
            negative, task = heapq.heappop(most)
            if -negative != self._load[task]:
                continue  # it has changed since, and is here again
            much = -negative > self._how.until * self._share
            if not much and not self._some_idle():
                break
            moved = self._best_move(task)
            if much and not self._worthwhile(task, moved) and self._split_large(task):
                continue  # to give away much else would help for a round
            if moved is None:
                continue
            interval, to = moved
            self.remaps.append(Move(interval, to))
            self._touched.add(interval)
            self._owned[task].discard(interval)
            self._load[task] -= self._of(interval)
            self._own(interval, to)
            heapq.heappush(self._least, (self._load[task], task))
            heapq.heappush(most, (-self._load[task], task))
            heapq.heappush(most, (-self._load[to], to))
            moves += 1

    def keys_that_are_too_much(self) -> list[int]:
        """Return the intervals of one hash that are more than a task's share."""
        share = self._total / len(self._load)
        return [interval.id for interval in self._keys if self._of(interval.id) > share]

    def merge(self) -> None:
        """Merge small neighbours of one task, while there are more than there are to be."""
        surplus = len(self._intervals) + self._splits - self._how.intervals
        if surplus <= 0:
            return
        small = _SMALL * self._share
        candidates = sorted(
            (self._of(low.id) + self._of(high.id), low.id, high.id)
            for low, high in pairwise(self._intervals.intervals)
            if self._owner[low.id] == self._owner[high.id]
            and self._of(low.id) + self._of(high.id) <= small
        )
        merges = 0
        for _, low, high in candidates:
            if merges == min(surplus, self._how.splits):
                break
            if low in self._touched or high in self._touched:
                continue
            self._touched |= {low, high}
            self.remaps.append(Merge(low, high))
            merges += 1

    def _best_move(self, task: int) -> tuple[int, int] | None:
        """Return the interval whose move evens two tasks out most, and where it goes.

        Of those that do so about as well, the one with the least state.
        """
        to = self._least_loaded(task)
        if to is None:
            return None
        between = self._load[task] - self._load[to]
        spare = self._load[task] - _KEPT * self._share
        # What is about the distance between two loads makes one of the other.
        fitting = [
            (load, interval)
            for interval in self._owned[task] - self._touched
            if 0.0 < (load := self._of(interval)) < between - 0.05 * self._share and load <= spare
        ]
        if not fitting:
            return None
        gains = {interval: load * (between - load) for load, interval in fitting}
        best = max(gains.values())
        well = [interval for interval, gain in gains.items() if gain >= 0.8 * best]
        return min(well, key=lambda n: (self._weights[n].bytes, -gains[n], n)), to

    def _worthwhile(self, task: int, move: tuple[int, int] | None) -> bool:
        """Return whether a move is of much, or leaves a task with not too much."""
        if move is None:
            return False
        load, enough = self._of(move[0]), self._how.above * self._share
        return load > _LARGE * self._share or self._load[task] - load <= enough

    def _split_large(self, task: int) -> bool:
        """Split the intervals of a task that are hard to place; return whether it has any."""
        large = sorted(
            (-self._of(n), n)
            for n in self._owned[task]
            if self._of(n) > _LARGE * self._share and not self._of_one_key(n)
        )
        for _, interval in large:
            too_many = len(self._intervals) + self._splits >= 2 * self._how.intervals
            if interval in self._touched or too_many or self._splits >= self._how.splits:
                continue
            self._splits += 1
            self._touched.add(interval)
            at = where(self._interval(interval), self._weights[interval].hottest)
            self.remaps.append(Split(interval, at))
        return any(interval in self._touched for _, interval in large)

    def _some_idle(self) -> bool:
        """Return whether a task has so little that it is given something, if that is at hand."""
        least = self._least_loaded(-1)
        return least is not None and self._load[least] < _IDLE * self._share

    def _least_loaded(self, but: int) -> int | None:
        while self._least:
            load, task = self._least[0]
            if load != self._load[task]:
                heapq.heapreplace(self._least, (self._load[task], task))
                continue
            return None if task == but else task
        return None

    def _move(self, interval: int, to: int) -> None:
        self.remaps.append(Move(interval, to))
        self._touched.add(interval)
        self._own(interval, to)

    def _own(self, interval: int, task: int) -> None:
        self._owner[interval] = task
        self._owned[task].add(interval)
        self._load[task] += self._of(interval)

    def _of(self, interval: int) -> float:
        return self._weights.get(interval, _NOTHING).load

    def _interval(self, interval: int) -> KeyInterval:
        return self._intervals.intervals[self._intervals.places[interval]]


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


def weights_after(made: Remapped, weights: Mapping[int, Weight]) -> dict[int, Weight]:
    """Return what intervals will cost after remaps, as far as is known of their keys."""
    weights_of = dict(weights)
    for child, parents in made.parents.items():
        one = made.intervals.intervals[made.intervals.places[child]]
        parent_weights = [weights[parent] for parent in parents]
        if len(parent_weights) > 1:
            weights_of[child] = Weight(sum(parent.load for parent in parent_weights))
            continue
        family = [n for n, before in made.parents.items() if before == parents]
        width = sum(made.intervals.width(n) for n in family)
        hot = sum(share for hash, share in parent_weights[0].hottest if one.start <= hash < one.end)
        even = max(0.0, 1.0 - sum(share for _, share in parent_weights[0].hottest))
        part = hot + even * made.intervals.width(child) / width
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
        min(loads.get(one.id, 0.0), share) if _is_one_key(one) else loads.get(one.id, 0.0)
        for one in owned
    )


def _is_one_key(interval: KeyInterval) -> bool:
    return interval.end - interval.start == 1
