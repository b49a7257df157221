"""What holds a mark up: which task, at what, and since when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from millrace.plane.realtime.coordinator import Where
from millrace.plane.realtime.messages import Ask, At, Hello, ToTask

_log = logging.getLogger("millrace")

#: How long no task may pass a mark that is under way, before they are asked what they do; how often
#: they are; and how long before the user is told.
_ASKED_S = 5.0
_TOLD_S = 60.0


class HoldUp:
    """Asks the tasks that have not passed a mark, and says who is in the way.

    Args:
        tell: Sends a message to a task.
        clock: Returns seconds.
    """

    def __init__(
        self, tell: Callable[[Where, ToTask], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._awaited: list[Where] = []
        self._told_at = self._asked_at = 0.0
        # Task -> at what it was when asked last, and since when it is known to be there.
        self._found: dict[Where, tuple[str, float]] = {}

    def look(self, awaited: Iterable[Where], hosts: Mapping[Where, Hello]) -> None:
        """Take which tasks have not passed the mark under way; called often.

        Args:
            awaited: In any order; none if no mark is under way.
            hosts: Task -> where it runs.
        """
        now, awaited = self._clock(), sorted(awaited)
        if awaited != self._awaited or not awaited:
            self._awaited, self._told_at, self._asked_at = awaited, now, now
            self._found = {}
            return
        if now - self._asked_at >= _ASKED_S:
            self._asked_at = now
            for where in awaited:
                self._tell(where, Ask())
        if now - self._told_at >= _TOLD_S:
            self._told_at = now
            _log.warning(
                "a mark has been under way for a minute, and no task has passed it since: %s. Does "
                "user code, or a sink, take so long there, or hang?",
                self._said(hosts),
            )

    def heard(self, answer: At) -> None:
        """Take what a task is doing."""
        where = answer.level, answer.task
        what, since = self._found.get(where, ("", 0.0))
        if what != answer.what or where not in self._found:
            since = self._clock()
        self._found[where] = answer.what, since

    def _said(self, hosts: Mapping[Where, Hello]) -> str:
        # A mark goes level by level: who comes first holds up the others, unless it waits for one
        # that does not take what it sends.
        level, task = where = min(
            self._awaited, key=lambda one: (self._found.get(one, ("?",))[0] == "", one)
        )
        host = hosts.get(where)
        said = f"task {task} of level {level}"
        if host is not None:
            said += f" (process {host.pid} on host {host.host})"
        if where not in self._found:
            said += " does not answer: its process is paused, or in native code that lets no other \
thread run"
        elif what := self._found[where][0]:
            said += f" is at {what}, for {self._clock() - self._found[where][1]:.0f} s at the least"
        others = len(self._awaited) - 1
        return f"{said}; {others} others wait" if others else said
