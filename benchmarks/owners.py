"""A balancer of single intervals, each of which any task may own, for simulations.

Tasks on Spark own ranges of neighbours, and so the balancer of a run (``balance/policy.py``) moves
nothing but the places at which ranges are cut. This one is for clusters whose tasks own what they
are given. It is a pure function, and remembers nothing.

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

Source: MillWheel, "Architecture" (7.1); Slicer (Adya and others, OSDI 2016) for the limit of churn.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millrace.balance.policy import Balance, Weight, where
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.map_change import Merge, Remap, Remapped, Split, remapped


@dataclass(frozen=True, slots=True)
class Round:
    """What the balancer asks for.

    Attributes:
        remaps: No interval is in two of them.
        one_key: Intervals of one hash that are more than a task's share: ``fanout=`` divides the
            work of a key, and nothing else does.
    """

    remaps: list[Remap | Move]
    one_key: list[int]


_NOTHING = Weight()
#: An interval with more of a task's share than this is hard to place, and two with less than that
#: are one too many. Far apart, so that what was merged is not split again.
_LARGE, _SMALL = 0.5, 0.1
#: A task with less than so much of its share is given something; no interval is split for it.
_IDLE = 0.5
#: Who gives away keeps so much of his share, or he would be the next to be given something.
_KEPT = 0.7


@dataclass(frozen=True, slots=True)
class Move:
    """An interval gets another owner.

    Attributes:
        interval: Its id.
        to: Number of the task.
    """

    interval: int
    to: int


@dataclass(frozen=True, slots=True)
class OwnerBalance(Balance):
    """How hard it is tried.

    Attributes:
        until: Tasks give away until they have no more than so many times their share.
        moves: Moves a round.
    """

    until: float = 1.1
    moves: int = 8


def balance(
    intervals: IntervalMap,
    owners: Mapping[int, int],
    weights: Mapping[int, Weight],
    tasks: Collection[int],
    how: OwnerBalance,
    sizes: Sequence[int] | None = None,
) -> Round:
    """Return what makes the load of the tasks more even.

    Args:
        intervals: The map.
        owners: Interval id -> task.
        weights: Interval id -> what it costs; of one that is not there, nothing.
        tasks: Those that there are.
        how: How hard it is tried.
        sizes: By interval id: of its state, which the next owner has to read; None: all alike.

    >>> halves = IntervalMap.uniform(4)
    >>> weights = {0: Weight(6.0), 1: Weight(5.0), 2: Weight(1.0), 3: Weight(1.0)}
    >>> balance(halves, {0: 0, 1: 0, 2: 1, 3: 1}, weights, [0, 1], OwnerBalance(intervals=4)).remaps
    [Move(interval=1, to=1)]
    """
    work = _Round(intervals, owners, weights, tasks, how, sizes)
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
        how: OwnerBalance,
        sizes: Sequence[int] | None,
    ) -> None:
        self._intervals, self._weights, self._how = intervals, weights, how
        self._sizes = sizes
        self._owner = dict(owners)
        self._owned: dict[int, set[int]] = {task: set() for task in tasks}
        self._load = dict.fromkeys(self._owned, 0.0)
        self._orphans: list[int] = []
        self._touched = set[int]()
        self._splits = 0
        self.remaps: list[Remap | Move] = []
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
        return min(
            well, key=lambda n: (0 if self._sizes is None else self._sizes[n], -gains[n], n)
        ), to

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


def carried_out(
    intervals: IntervalMap,
    owners: Mapping[int, int],
    remaps: Iterable[Remap | Move],
    *,
    first_id: int,
) -> tuple[Remapped, dict[int, int]]:
    """Return the map after remaps and moves, and who owns its intervals.

    Children are their parents' owner's; what is merged, the owner's of the left one.

    >>> halves = IntervalMap.uniform(2)
    >>> carried_out(halves, {0: 0, 1: 1}, [Split(0, 5), Move(1, 7)], first_id=2)[1]
    {1: 7, 2: 0, 3: 0}
    """
    remaps = list(remaps)
    made = remapped(
        intervals, [one for one in remaps if not isinstance(one, Move)], first_id=first_id
    )
    children = {child: owners[parents[0]] for child, parents in made.parents.items()}
    moved = {one.interval: one.to for one in remaps if isinstance(one, Move)}
    there = {one.id for one in made.intervals.intervals}
    return made, {n: to for n, to in (dict(owners) | moved | children).items() if n in there}
