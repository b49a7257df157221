"""Liveness: which task does nothing, though it waits for nobody, at what, and since when.

A task that has its turns says so twice a second. One that does not is asked what it is at; a thread
of its process answers, whatever the task is doing, and says whether the task has moved since. So
three things are told apart: a task that waits for others or for work, one whose work takes long,
and one that hangs. A process that is stopped, or in native code that lets no other thread run, does
not answer.

A *stalled mark* is one that no task passes for long: the user is told which task holds it up, and
at what. A *hang* is a task that did nothing for too long, though it waited for nobody: its process
is ended.

Source: docs/design/2026-11-27-hang-limit.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from millrace.model.errors import MillraceError
from millrace.model.time import SECOND, format_duration
from millrace.runtime.realtime.coordinator import TaskKey
from millrace.runtime.realtime.messages import At, StatusQuery, TaskReady, ToDriver, ToTask
from millrace.spark.realtime.process_id import ProcessId

#: How long a task may say nothing before it is asked what it does; and how often it is. Of a limit
#: that is shorter, a quarter.
_ASKED_S: Final = 5.0
#: A driver that has not looked for longer was paused itself, or its whole machine was: nobody could
#: have been heard meanwhile.
_PAUSED_S: Final = 1.0


@dataclass
class Activity:
    """What is known of a task.

    Attributes:
        since_s: When it was last known to move, or to wait.
        heard_s: When it was last heard of.
        what: What it said that it is at; "" if it waits, or has its turns.
        outside: Whether that is up to what is outside.
        moves: As it was told last.
    """

    since_s: float
    received_s: float
    what: str = ""
    outside: bool = False
    moves: int = -1


class Liveness:
    """Watches tasks.

    Args:
        tell: Sends a message to a task.
        limit_s: How long a task may be at one thing.
        clock: Returns seconds.

    Attributes:
        now_s: Seconds in which the driver has watched: none of those in which it was paused.
    """

    def __init__(
        self,
        tell: Callable[[TaskKey, ToTask], None],
        limit_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._looked_s, self.now_s = clock(), 0.0
        self._every_s = min(_ASKED_S, limit_s / 4)
        self._tasks: dict[TaskKey, Activity] = {}
        self._asked_s: dict[TaskKey, float] = {}
        self.limit_s = limit_s

    def receive(self, message: ToDriver) -> None:
        """Take what a task says."""
        now = self.now_s
        where = message.level, message.task
        task = self._tasks.get(where)
        if task is None:
            return
        task.received_s = now
        if not isinstance(message, At):
            task.since_s, task.what, task.outside = now, "", False
            return
        if not message.what or (message.what, message.moves) != (task.what, task.moves):
            task.since_s = now
        task.what, task.outside, task.moves = message.what, message.outside, message.moves

    def look(self, watched: Collection[TaskKey]) -> list[TaskKey]:
        """Ask tasks that are silent; return those that have been at one thing for too long.

        Args:
            watched: Those that are to have their turns now; of the others nothing is known any
                more. Whoever is new among them has moved just now.
        """
        clock = self._clock()
        self.now_s += min(clock - self._looked_s, _PAUSED_S)
        self._looked_s = clock
        now = self.now_s
        for where in self._tasks.keys() - set(watched):
            del self._tasks[where]
        for where in watched:
            task = self._tasks.get(where)
            if task is None:
                self._tasks[where], self._asked_s[where] = Activity(now, now), now
            elif now - max(task.since_s, self._asked_s[where]) >= self._every_s:
                self._asked_s[where] = now
                self._tell(where, StatusQuery())
        return sorted(
            where for where, task in self._tasks.items() if now - task.since_s >= self.limit_s
        )

    def describe(self, where: TaskKey) -> tuple[str, bool]:
        """Return what a task does, in words; "" if it waits. And whether that is up to outside."""
        task = self._tasks.get(where)
        if task is None or self.now_s - task.since_s < self._every_s:
            return "", False
        if self.now_s - task.received_s >= 2 * self._every_s:
            return (
                "does not answer: its process is stopped, or in native code that lets no other "
                "thread run",
                False,
            )
        if not task.what:
            return "", False
        return f"is at {task.what}, for {self.now_s - task.since_s:.0f} s at the least", (
            task.outside
        )


_log = logging.getLogger("millrace")

#: How long no task may pass a mark that is under way, before the user is told.
_WARN_AFTER_S = 60.0


class StalledMark:
    """Says who is in the way of a mark.

    Args:
        liveness: Knows what tasks do, and how long the driver has watched them.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._awaited: list[TaskKey] = []
        self._warned_at_s = 0.0

    def look(self, awaited: Iterable[TaskKey], hosts: Mapping[TaskKey, TaskReady]) -> None:
        """Take which tasks have not passed the mark under way; called often.

        Args:
            awaited: In any order; none if no mark is under way.
            hosts: Task -> where it runs.
        """
        now, awaited = self._liveness.now_s, sorted(awaited)
        if awaited != self._awaited or not awaited:
            self._awaited, self._warned_at_s = awaited, now
        elif now - self._warned_at_s >= _WARN_AFTER_S:
            self._warned_at_s = now
            _log.warning(
                "a mark has been under way for a minute, and no task has passed it since: %s. Does "
                "user code, or a sink, take so long there, or hang?",
                self._describe(hosts),
            )

    def _describe(self, hosts: Mapping[TaskKey, TaskReady]) -> str:
        # A mark goes level by level: who comes first holds up the others, unless it waits for one
        # that does not take what it sends.
        descriptions = {where: self._liveness.describe(where)[0] for where in self._awaited}
        where = min(self._awaited, key=lambda item: (not descriptions[item], item))
        description = f"{name_of(where, hosts.get(where))} {descriptions[where]}".rstrip()
        others = len(self._awaited) - 1
        return f"{description}; {others} others wait" if others else description


def name_of(where: TaskKey, host: TaskReady | None) -> str:
    """Return what people call a task."""
    level, task = where
    name = f"task {task} of level {level}"
    return name if host is None else f"{name} (process {host.pid} on host {host.host})"


#: So many names of what a task has are said.
_NAMED: Final = 8


class TaskHung(MillraceError):
    """A task did nothing for as long as ``hang_limit=`` allows.

    Attributes:
        processes: Those of all tasks that hang.
        outside: Whether that is up to a disk, a sink or a source, which may answer again, and not
            to user code.
    """

    def __init__(
        self, message: str, processes: Sequence[ProcessId] = (), *, outside: bool = False
    ) -> None:
        super().__init__(message)
        self.processes = tuple(processes)
        self.outside = outside


def task_hung(
    hung: Sequence[TaskKey],
    hosts: Mapping[TaskKey, TaskReady],
    liveness: Liveness,
    has: Mapping[str, Sequence[object]],
) -> TaskHung:
    """Return the error that says which tasks hang, and at what.

    Args:
        hung: Those tasks, at least one.
        hosts: Task -> where it runs.
        liveness: Knows what they do.
        has: What the first of them works on: computation -> its key intervals, or injected stream
            -> its processes.
    """
    first, *others = hung
    description, outside = liveness.describe(first)
    level = first[0]
    holdings = "; ".join(
        f"{'key intervals' if level else 'processes'} {_listed(names)} of {of!r}"
        for of, names in has.items()
        if names
    )
    more = f" {len(others)} other tasks hang, too." if others else ""
    limit = format_duration(int(liveness.limit_s * SECOND))
    known = (ProcessId.read(hosts[one].process) for one in hung if one in hosts)
    return TaskHung(
        f"{name_of(first, hosts.get(first))} did nothing for {limit}, which is hang_limit=: it "
        f"{description}.{f' It has {holdings}.' if holdings else ''}{more} The process is ended. "
        "If it may take so long, give start() a longer hang_limit=.",
        [one for one in known if one is not None],
        outside=outside,
    )


def _listed(names: Sequence[object]) -> str:
    """Return names in words.

    >>> _listed([1, 3]), _listed(range(20))
    ('1, 3', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    listed = ", ".join(map(repr, names[:_NAMED]))
    return f"{listed} and {len(names) - _NAMED} more" if len(names) > _NAMED else listed
