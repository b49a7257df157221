"""What holds a mark up: which task, at what, and since when."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from millrace.plane.realtime.coordinator import Where
from millrace.plane.realtime.messages import TaskReady
from millrace.spark.realtime.liveness import Liveness

_log = logging.getLogger("millrace")

#: How long no task may pass a mark that is under way, before the user is told.
_TOLD_S = 60.0


class StalledMark:
    """Says who is in the way of a mark.

    Args:
        liveness: Knows what tasks do, and how long the driver has watched them.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._awaited: list[Where] = []
        self._told_at = 0.0

    def look(self, awaited: Iterable[Where], hosts: Mapping[Where, TaskReady]) -> None:
        """Take which tasks have not passed the mark under way; called often.

        Args:
            awaited: In any order; none if no mark is under way.
            hosts: Task -> where it runs.
        """
        now, awaited = self._liveness.now_s, sorted(awaited)
        if awaited != self._awaited or not awaited:
            self._awaited, self._told_at = awaited, now
        elif now - self._told_at >= _TOLD_S:
            self._told_at = now
            _log.warning(
                "a mark has been under way for a minute, and no task has passed it since: %s. Does "
                "user code, or a sink, take so long there, or hang?",
                self._said(hosts),
            )

    def _said(self, hosts: Mapping[Where, TaskReady]) -> str:
        # A mark goes level by level: who comes first holds up the others, unless it waits for one
        # that does not take what it sends.
        said_of = {where: self._liveness.said_of(where)[0] for where in self._awaited}
        where = min(self._awaited, key=lambda one: (not said_of[one], one))
        said = f"{name_of(where, hosts.get(where))} {said_of[where]}".rstrip()
        others = len(self._awaited) - 1
        return f"{said}; {others} others wait" if others else said


def name_of(where: Where, host: TaskReady | None) -> str:
    """Return what people call a task."""
    level, task = where
    said = f"task {task} of level {level}"
    return said if host is None else f"{said} (process {host.pid} on host {host.host})"
