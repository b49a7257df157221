"""The start timeout: how long tasks may take to call, after a query starts or a rest begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from millrace.model.errors import PipelineError
from millrace.plane.realtime.coordinator import Where

#: How long all tasks may take to call, after the start of a query or the end of a session.
_CALLING_S = 120.0


class StartTimeout:
    """Knows since when tasks are waited for.

    Args:
        tasks: How many there are, of all levels.
        clock: Returns seconds.

    >>> times = iter([0.0, 60.0, 121.0])
    >>> timeout = StartTimeout(9, lambda: next(times))
    >>> timeout.begins()
    >>> timeout.too_long([(1, 0)])
    >>> str(timeout.too_long([(1, 0)])).partition(",")[0]
    '1 of 9 tasks have not called the driver within 120 s'
    """

    def __init__(self, tasks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._clock = clock
        self._since = 0.0

    def begins(self) -> None:
        """Take it that tasks are expected from now on."""
        self._since = self._clock()

    def too_long(self, absent: Sequence[Where]) -> PipelineError | None:
        """Return an error if some have not called for too long.

        Args:
            absent: Level and number of those.
        """
        if not absent or self._clock() - self._since < _CALLING_S:
            return None
        level, task = absent[0]
        return PipelineError(
            f"{len(absent)} of {self._tasks} tasks have not called the driver "
            f"within {_CALLING_S:.0f} s, the first of them task {task} of level {level}. All must "
            "run at once: are there as many slots as tasks x levels, and one more, which no other "
            "query takes? Has the topic of pacemaker=, if there is one, as many partitions?"
        )
