"""Liveness: which task does nothing, though it waits for nobody, at what, and since when.

A task that has its turns says so twice a second. One that does not is asked what it is at; a thread
of its process answers, whatever the task is doing, and says whether the task has moved since. So
three things are told apart: a task that waits for others or for work, one whose work takes long,
and one that hangs. A process that is stopped, or in native code that lets no other thread run, does
not answer.

Source: docs/design/2026-11-27-hang-limit.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from millrace.plane.realtime.coordinator import Where
from millrace.plane.realtime.messages import At, Said, StatusQuery, ToTask

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
    heard_s: float
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
        tell: Callable[[Where, ToTask], None],
        limit_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._looked_s, self.now_s = clock(), 0.0
        self._every_s = min(_ASKED_S, limit_s / 4)
        self._tasks: dict[Where, Activity] = {}
        self._asked_s: dict[Where, float] = {}
        self.limit_s = limit_s

    def heard(self, message: Said) -> None:
        """Take what a task says."""
        now = self.now_s
        where = message.level, message.task
        task = self._tasks.get(where)
        if task is None:
            return
        task.heard_s = now
        if not isinstance(message, At):
            task.since_s, task.what, task.outside = now, "", False
            return
        if not message.what or (message.what, message.moves) != (task.what, task.moves):
            task.since_s = now
        task.what, task.outside, task.moves = message.what, message.outside, message.moves

    def look(self, watched: Collection[Where]) -> list[Where]:
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

    def said_of(self, where: Where) -> tuple[str, bool]:
        """Return what a task does, in words; "" if it waits. And whether that is up to outside."""
        task = self._tasks.get(where)
        if task is None or self.now_s - task.since_s < self._every_s:
            return "", False
        if self.now_s - task.heard_s >= 2 * self._every_s:
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
