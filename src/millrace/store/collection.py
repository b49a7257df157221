"""Collection: removing what no recovery can need, in an order that a crash may end anywhere.

What is needed, of an interval whose last commit is n in the last completed epoch:

* its state at n, and at every later commit: an open epoch is tried again from n, and may need the
  productions of n+1. So only snapshots up to n count, and nothing after the older of the last two
  of them is touched. Of the two the newer may turn out damaged;
* productions of commits up to n: by nobody. Their epoch is complete, so its sinks have its rows,
  and no attempt at it may go on (:mod:`millrace.epochlog.fence`);
* for a reader that is behind (a host whose cache is old, a slow task): what it finds collected
  while it reads, it looks for again, in newer snapshots (:func:`~millrace.store.bring`).

Of a key interval that was split or merged away nothing is needed, once a completion has the map
without it; nor of one whose making was cut off. Ids are given once, so what is under one that was
given and is not in the map is nobody's.

Of the epoch log the last completion and the last claim are needed, and what came after the first of
them. Everything is removed from the lowest number up.

A grown segment goes as a whole, when all of its commits may go, and its notes are behind a complete
mark: one of the incarnation under way with its mark, a sealed one with the first mark after it. One
that is old goes when those of its commits that may not are few, and have been put as other segments
(:class:`~millrace.store.commit_log.GrownThinner`).

Source: MillWheel, section 6.1.1: "the system garbage collects" what has been acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from millrace.store.commit_log import KEPT_SEGMENTS, LEFT, Covered, GrownThinner
from millrace.store.hard_state import HardState
from millrace.store.incarnations import SegmentName

#: Snapshots that are kept of an interval: the last one, and one in case that is damaged.
KEPT_SNAPSHOTS = 2


class Collected(msgspec.Struct, array_like=True):
    """What was removed.

    Attributes:
        commits: From the commit logs.
        snapshots: Snapshots.
        entries: From the epoch log.
        segments: Grown segments.
        moved: Commits of those that were put as other segments.
    """

    commits: int = 0
    snapshots: int = 0
    entries: int = 0
    segments: int = 0
    moved: int = 0

    @property
    def files(self) -> int:
        """All that was removed, together."""
        return self.commits + self.snapshots + self.entries + self.segments

    def add(self, other: Collected) -> None:
        """Add another's counts to these."""
        self.commits += other.commits
        self.snapshots += other.snapshots
        self.entries += other.entries
        self.segments += other.segments
        self.moved += other.moved


class Given(msgspec.Struct, frozen=True):
    """Which key intervals a computation has had: those that are no more can go.

    Args:
        before: Ids below this were given, before the last completed epoch. Others may be being
            made now, by this driver or by one that comes after it.
        there: Those that are there.
    """

    before: int
    there: frozenset[int]


class Collectable(msgspec.Struct, frozen=True):
    """What a driver knows to be behind it, as of a completed epoch.

    Args:
        numbers: Computation -> interval id -> its last commit.
        first_entry: The first entry of the epoch log that a recovery would read.
        incarnation: That it was completed in: what is sealed was sealed by it, or before. 0 if none
            has begun.
        segments: Finished segments of that incarnation, by name, whose mark is complete -> the last
            number of each interval with a commit there.
        forget: Told the names of those, and of others, that have been removed.
        dropped: Computations of which nothing is needed.
        given: Computation -> which intervals it has had; only of those that were split or merged.
    """

    numbers: Mapping[str, Mapping[int, int]]
    first_entry: int
    incarnation: int = 0
    segments: Mapping[str, Covered] = {}
    forget: Callable[[Iterable[str]], object] = list
    dropped: frozenset[str] = frozenset()
    given: Mapping[str, Given] = {}


_Gone = Callable[[int], bool]
_Listed = Mapping[int, Sequence[int]]


def _gone(given: Given | None) -> _Gone:
    """Return whether an interval was split or merged away, or its making cut off."""
    if given is None:
        return lambda _: False
    return lambda interval: interval < given.before and interval not in given.there


def removable(
    segments: Mapping[SegmentName, Covered], floors: Mapping[tuple[str, int], int]
) -> list[SegmentName]:
    """Return the grown segments whose commits may all go, ascending.

    Args:
        segments: Those whose notes nobody needs -> the last number of each interval in them.
        floors: (computation, interval) -> the last commit that may go.

    >>> one, other = SegmentName(1, 1, 0, 1), SegmentName(1, 1, 0, 2)
    >>> segments = {one: {"count": {0: 4, 7: 2}}, other: {"count": {0: 6}}}
    >>> removable(segments, {("count", 0): 5, ("count", 7): 2}) == [one]
    True
    """
    return sorted(
        name
        for name, covered in segments.items()
        if all(
            number <= floors.get((computation, interval), 0)
            for computation, numbers in covered.items()
            for interval, number in numbers.items()
        )
    )


class Collector:
    """Collects one checkpoint. For one thread.

    It keeps no state of its own, so after a crash another one starts from a listing. That of a
    superseded driver does no harm: an object that was not needed is never needed again.

    Args:
        state: The checkpoint.
        kept: How many finished segments of a task are left alone, whatever keeps them.
        left: An older one is put again if at the most one of so many of its commits is needed.

    >>> from millrace.store import Commit, MemoryHardState
    >>> state = MemoryHardState()
    >>> log = state.commits
    >>> all(log.of_task("count", n, 0).put([Commit("count", 0, n, n, 1, [])]) for n in range(1, 10))
    True
    >>> all(state.snapshots.put("count", 0, n, [b""]) for n in (2, 5, 7, 9))
    True
    >>> Collector(state).collect(Collectable({"count": {0: 8}}, first_entry=0))
    Collected(commits=5, snapshots=1, entries=0, segments=0, moved=0)
    >>> state.snapshots.numbers("count"), state.commits.numbers("count")
    ({0: [5, 7, 9]}, {0: [6, 7, 8, 9]})
    """

    def __init__(self, state: HardState, *, kept: int = KEPT_SEGMENTS, left: int = LEFT) -> None:
        self._state = state
        self._thinner = GrownThinner(state.incarnations, state.commits, kept, left)
        self._left = left
        self._kept = kept
        self._looked_at: dict[str, dict[int, int]] = {}
        self._floors: dict[tuple[str, int], int] = {}
        self._dropped: set[str] = set()
        self._given: dict[str, Given] = {}

    def collect(self, collectable: Collectable) -> Collected:
        """Remove what is not needed, and return how much that was.

        Raises:
            StoreError: Something could not be removed. It is, next time.
        """
        collected = Collected()
        for computation, numbers in collectable.numbers.items():
            # A listing is a request that costs money: without commits nothing has become old.
            if self._looked_at.get(computation) != numbers:
                now = dict(numbers)
                gone = _gone(collectable.given.get(computation))
                self._collect(computation, now, gone, collected)
                self._looked_at[computation] = now
        for computation in sorted(collectable.dropped - self._dropped):
            self._collect_all(computation, collected, lambda _: True)
            self._dropped.add(computation)
        for computation, given in collectable.given.items():
            if self._given.get(computation) != given:
                self._collect_all(computation, collected, _gone(given))
                self._given[computation] = given
        self._collect_grown(collectable, collected)
        first = collectable.first_entry
        if first > 1:
            collected.entries += self._state.epochs.remove_before(first)
        return collected

    def _collect(
        self, computation: str, numbers: Mapping[int, int], gone: _Gone, collected: Collected
    ) -> None:
        floors: dict[int, int] = {}
        snapshots = self._state.snapshots.numbers(computation)
        # Whose writer was late comes after all of its interval was collected.
        self._remove_snapshots(computation, snapshots, gone, collected)
        for interval, there in snapshots.items():
            usable = [number for number in there if number <= numbers.get(interval, 0)]
            if gone(interval) or len(usable) < KEPT_SNAPSHOTS:
                continue
            floor = usable[-KEPT_SNAPSHOTS]
            if self._floors.get((computation, interval)) == floor:
                continue
            floors[interval] = floor
            old = [number for number in there if number < floor]
            self._state.snapshots.remove(computation, interval, old)
            collected.snapshots += len(old)
        if not floors:
            return
        commits = self._state.commits.numbers(computation)
        self._remove_commits(computation, commits, gone, collected)
        for interval, floor in floors.items():
            old = [number for number in commits.get(interval, ()) if number <= floor]
            collected.commits += self._state.commits.remove(computation, interval, old)
            self._floors[computation, interval] = floor
        self._state.commits.thin(computation, self._kept, self._left)

    def _collect_all(self, computation: str, collected: Collected, gone: _Gone) -> None:
        """Remove all of intervals that are no more: commits last, so that a listing has them."""
        snapshots = self._state.snapshots.numbers(computation)
        self._remove_snapshots(computation, snapshots, gone, collected)
        commits = self._state.commits.numbers(computation)
        self._remove_commits(computation, commits, gone, collected)

    def _remove_snapshots(
        self, computation: str, listed: _Listed, gone: _Gone, collected: Collected
    ) -> None:
        for interval in filter(gone, listed):
            self._state.snapshots.remove(computation, interval, listed[interval])
            collected.snapshots += len(listed[interval])

    def _remove_commits(
        self, computation: str, listed: _Listed, gone: _Gone, collected: Collected
    ) -> None:
        for interval in filter(gone, listed):
            old = listed[interval]
            collected.commits += self._state.commits.remove(computation, interval, old)
            self._floors[computation, interval] = max(old, default=0)

    def _collect_grown(self, collectable: Collectable, collected: Collected) -> None:
        if not collectable.incarnation or not (self._floors or collectable.segments):
            return
        segments = {
            name: covered
            for name, covered in self._state.commits.covered().items()
            if name.incarnation < collectable.incarnation
        }
        for text, covered in collectable.segments.items():
            if (name := SegmentName.parse(text)) is not None:
                segments[name] = covered
        old = removable(segments, self._floors)
        self._remove(old, collectable, collected)
        emptied: list[SegmentName] = []
        try:
            for name, moved in self._thinner.emptied(segments.keys() - {*old}, self._floors):
                emptied.append(name)
                collected.moved += moved
        finally:
            # Together: to remove some costs a list of all that there are.
            self._remove(emptied, collectable, collected)

    def _remove(
        self, old: list[SegmentName], collectable: Collectable, collected: Collected
    ) -> None:
        self._state.incarnations.remove(old)
        collectable.forget(map(str, old))
        collected.segments += len(old)
