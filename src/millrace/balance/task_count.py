"""How many tasks a level has, where that is to follow the load: pure functions of what is measured.

*In real time* tasks last, and a change of their number is a hand-over in which all stand still. So
it follows how busy tasks are: seconds in turns by seconds that passed, on the average over a level,
of the level that has most to do. Above :data:`BUSY` for ten seconds there are to be more, below
:data:`IDLE` for a minute fewer, in both cases so many that they are as busy as :data:`MEANT`, which
lies well between the two. A level that is never idle says nothing of how much more there is to do:
then there are to be twice as many.

Tasks that are not busy may fall behind, too, as those of calls to a service that is slow. So what
waits in sources counts: where it is more than tasks read in a minute, there are not to be fewer,
and if it has grown in that time, there are to be more, in proportion to what comes.

*By epochs* another number costs nothing. An epoch that has ``w`` seconds of work for each level
takes about ``w / n + c * n + s`` seconds a level with ``n`` tasks, where ``c`` is what Spark needs
for another task, and ``s`` for a shuffle. That is least for ``n = sqrt(w / c)``. One task needs no
shuffle, and takes ``w + c``.

Source: MillWheel, "Architecture" (7.1): load is balanced by CPU and memory; Streaming Engine,
"Scalability: Keys and Parallelism".
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from math import ceil, sqrt
from typing import Final, NamedTuple

#: Level and number of a task.
TaskKey = tuple[int, int]

#: A level gets more tasks above the one, fewer below the other, to be as busy as the third.
BUSY: Final = 0.8
IDLE: Final = 0.4
MEANT: Final = 0.6
#: For so long a level is busy, or idle, before anything is done.
_BUSY_S: Final = 10.0
_IDLE_S: Final = 60.0
#: So busy is a level that was never idle: turns end, and others begin.
_SATURATED: Final = 0.95
#: Looks are so far apart.
_APART_S: Final = 1.0
#: Tasks fall behind where what waits grows by this share of what they read meanwhile, and so many
#: records.
_GROWTH: Final = 0.1
_GROWTH_RECORDS: Final = 100

#: What Spark needs for another task of a level, in seconds: it is scheduled, and its Python worker
#: gets the stage.
_TASK_S: Final = 0.02
#: And for a shuffle between two levels.
_SHUFFLE_S: Final = 0.05
#: What is left after an epoch of the work that is expected of the next: a burst is met at once, and
#: remembered for a while.
_KEPT: Final = 0.7


class TaskRange(NamedTuple):
    """How many tasks a level may have.

    Attributes:
        least: At least so many.
        most: And at most.

    >>> TaskRange(2, 16).within(40), TaskRange(2, 16).within(1), TaskRange(3, 3).follows_load
    (16, 2, False)
    """

    least: int
    most: int

    def within(self, tasks: int) -> int:
        """Return the number of them that is next to some number."""
        return max(self.least, min(self.most, tasks))

    @property
    def follows_load(self) -> bool:
        """Whether the number may change."""
        return self.least < self.most


class _Look(NamedTuple):
    """How live tasks were doing.

    Attributes:
        now_s: When.
        busy_s: Level and number of a task -> seconds in turns.
        records: That level 0 has read.
        done: What all have done: it grows where they are not stuck.
        waiting: Records in sources; None if that is not known.
    """

    now_s: float
    busy_s: Mapping[TaskKey, float]
    records: int
    done: int
    waiting: int | None


class LiveTaskCount:
    """Says when there are to be more live tasks, or fewer; of tasks that stay as many as they are.

    Args:
        allowed: How many there may be.
        tasks: How many there are of each level.

    >>> count = LiveTaskCount(TaskRange(1, 8), 2)
    >>> for second in range(12):
    ...     wanted = count.look(second, {(1, 0): 0.9 * second, (1, 1): 0.8 * second})
    >>> wanted
    3
    """

    def __init__(self, allowed: TaskRange, tasks: int) -> None:
        self._allowed = allowed
        self._tasks = tasks
        #: The oldest first.
        self._looks: deque[_Look] = deque()

    def look(
        self,
        now_s: float,
        busy_s: Mapping[TaskKey, float],
        *,
        records: int = 0,
        done: int = 0,
        waiting: int | None = None,
    ) -> int | None:
        """Take how tasks are doing; return how many there are to be, or None for as many as now.

        Args:
            now_s: When, by a clock that does not go back.
            busy_s: Level and number of a task -> seconds in turns since it began. Where they are
                fewer than before, other tasks have begun.
            records: That those of level 0 have read since they began.
            done: Records that all have done, and commits.
            waiting: Records that wait in sources and may be read; None if that is not known.
        """
        looks = self._looks
        if not busy_s:
            return None
        if looks and now_s - looks[-1].now_s < _APART_S:
            return None
        known = looks[-1].busy_s if looks else {}
        if any(busy_s.get(where, 0.0) < seconds for where, seconds in known.items()):
            looks.clear()
        looks.append(_Look(now_s, dict(busy_s), records, done, waiting))
        while len(looks) > 1 and now_s - looks[1].now_s >= _IDLE_S:
            looks.popleft()
        if (before := self._look_before(_BUSY_S)) is not None:
            busy = _busiest(before, looks[-1])
            if busy > BUSY:
                meant = 2 * self._tasks if busy >= _SATURATED else self._meant(busy)
                return self._other(max(self._tasks + 1, meant))
        if (before := self._look_before(_IDLE_S)) is not None:
            waits, grows = _waiting(before, looks[-1])
            if grows > 1.0:
                return self._other(max(self._tasks + 1, int(self._tasks * min(grows, 2.0))))
            busy = _busiest(before, looks[-1])
            if busy < IDLE and not waits:
                return self._other(self._meant(busy))
        return None

    def _meant(self, busy: float) -> int:
        """Return how many tasks would be as busy as is meant."""
        return max(1, ceil(round(self._tasks * busy / MEANT, 3)))

    def _other(self, wanted: int) -> int | None:
        count = self._allowed.within(wanted)
        return None if count == self._tasks else count

    def _look_before(self, for_s: float) -> _Look | None:
        """Return the last look that was so long before this one; None if there was none."""
        now_s = self._looks[-1].now_s
        return next((look for look in reversed(self._looks) if now_s - look.now_s >= for_s), None)


def _busiest(before: _Look, now: _Look) -> float:
    """Return how busy the busiest level was between two looks."""
    passed_s = now.now_s - before.now_s
    levels = defaultdict[int, list[float]](list)
    for where, seconds in now.busy_s.items():
        levels[where[0]].append((seconds - before.busy_s.get(where, 0.0)) / passed_s)
    return max(sum(shares) / len(shares) for shares in levels.values())


def _waiting(before: _Look, now: _Look) -> tuple[bool, float]:
    """Return whether more waits than was read between two looks, and by how much that grows.

    Returns:
        The second: how many times what was read has come; 1 where tasks do not fall behind, or do
        nothing at all, which more of them would not change.
    """
    read = now.records - before.records
    if now.waiting is None or before.waiting is None or now.waiting <= read:
        return False, 1.0
    grown = now.waiting - before.waiting
    falls_behind = grown > max(_GROWTH * read, _GROWTH_RECORDS) and now.done > before.done
    return True, 1.0 + (grown / read if read else 1.0) if falls_behind else 1.0


class EpochTaskCount:
    """Says how many tasks the next epoch is to have.

    Args:
        allowed: How many there may be.
        tasks: How many the first has.
        levels: Of the pipeline; what is in front of the first shuffle is another.

    Attributes:
        tasks: How many the next is to have.

    >>> count = EpochTaskCount(TaskRange(1, 16), 2, levels=1)
    >>> for seconds in (4.0, 0.01, 0.01, 0.01):
    ...     count.ran(seconds)
    ...     print(count.tasks)
    10
    8
    7
    6
    """

    def __init__(self, allowed: TaskRange, tasks: int, *, levels: int) -> None:
        self.tasks = tasks
        self._allowed = allowed
        self._stages = levels + 1
        self._expected_s = 0.0

    @property
    def follows_load(self) -> bool:
        """Whether the number may change."""
        return self._allowed.follows_load

    def ran(self, seconds: float) -> None:
        """Take how long Python code ran in an epoch, over all tasks; 0 for one without a job."""
        self._expected_s = max(seconds / self._stages, _KEPT * self._expected_s)
        if self.follows_load:
            self.tasks = self._allowed.within(_fastest(self._expected_s))


def _fastest(work_s: float) -> int:
    """Return with how many tasks a level takes least time that has so many seconds of work."""
    tasks = round(sqrt(work_s / _TASK_S))
    alone_s = work_s + _TASK_S
    return tasks if tasks > 1 and work_s / tasks + _TASK_S * tasks + _SHUFFLE_S < alone_s else 1
