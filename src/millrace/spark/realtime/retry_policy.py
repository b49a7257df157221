"""The retry policy: whether a run that has failed is to be tried again, and how soon.

With it stand what it goes by: how long a run was away, after a failure or at a rest, and where that
time went; and how long tasks may take to call, after a query starts or a rest begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from millrace.model.errors import (
    CheckpointMismatch,
    DeadLettersExceeded,
    PipelineError,
    ZombieWriter,
    is_of_code,
)
from millrace.runtime.realtime.coordinator import TaskKey
from millrace.spark.realtime.liveness import TaskHung

#: To try again would change nothing.
_FINAL = (ZombieWriter, CheckpointMismatch, DeadLettersExceeded)

_SHORTEST_S, _LONGEST_S = 0.1, 10.0
#: So often is the shortest doubled until it is longer than the longest, whatever lasts for days.
_DOUBLINGS: Final = 10


class RetryPolicy:
    """Counts failures since something went well.

    What comes from outside (a worker that is killed, a disk that is full, a server that is away) is
    tried again for as long as it takes, if an incarnation of this run has ever begun; what the
    pipeline's own code raises, that of sources and sinks too, and a hang that may be its own, so
    many times.

    Args:
        attempts: How often the same may be tried without a mark completed between.

    >>> from millrace.model.errors import CheckpointUnwritable, UserCodeError
    >>> policy = RetryPolicy(attempts=2)
    >>> policy.well()
    >>> policy.after(UserCodeError("no")), policy.after(UserCodeError("no"))
    (0.1, None)

    A full disk is waited for:

    >>> policy.well()
    >>> [policy.after(CheckpointUnwritable("full")) for _ in range(9)][-3:]
    [6.4, 10.0, 10.0]

    So is a disk that does not answer; but not user code that never returns:

    >>> policy.well()
    >>> [policy.after(TaskHung("at its segment", outside=True)) for _ in range(3)]
    [0.1, 0.2, 0.4]
    >>> policy.after(TaskHung("at a key")), policy.after(TaskHung("at a key"))
    (0.8, None)
    """

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._own = self._all = 0
        self._ever = False

    @property
    def tried_in_vain(self) -> bool:
        """Whether there is one attempt left of those that are given."""
        return self._attempts > 1 and self._all >= self._attempts - 1

    def begun(self) -> None:
        """Take it that an incarnation has begun."""
        self._ever = True

    def well(self) -> None:
        """Take it that a mark was completed."""
        self._ever = True
        self._own = self._all = 0

    def after(self, error: BaseException) -> float | None:
        """Return for how many seconds to wait after a failure; None to give up."""
        self._all += 1
        hung = isinstance(error, TaskHung) and not error.outside
        own = hung or is_of_code(error)
        self._own += own
        counted = self._own if own else 0 if self._ever else self._all
        if isinstance(error, _FINAL) or counted >= self._attempts:
            return None
        return min(_SHORTEST_S * (1 << min(self._all - 1, _DOUBLINGS)), _LONGEST_S)


class Downtime:
    """Measures from the end of an incarnation to the beginning of the next.

    Args:
        clock: Returns seconds.

    Attributes:
        seconds: How long the run was away last.

    >>> times = iter([10.0, 10.5, 13.25])
    >>> downtime = Downtime(lambda: next(times))
    >>> downtime.gone()
    >>> downtime.lap("until all tasks had ended")
    >>> downtime.back("until Spark ran them again")
    '3.2 s: 0.5 s until all tasks had ended, 2.8 s until Spark ran them again'
    >>> downtime.seconds
    3.25
    >>> downtime.back("until Spark ran them again")  # it was not away
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._gone_at = self._at = self.seconds = 0.0
        self._laps: dict[str, float] | None = None

    def gone(self) -> None:
        """Take it that the incarnation has ended, or that an attempt to begin one has."""
        now = self._clock()
        if self._laps is None:
            self._gone_at, self._laps = now, {}
            self._at = now

    def lap(self, what: str) -> None:
        """Take it that something is done; what is done twice on the way adds up."""
        if self._laps is not None:
            now = self._clock()
            self._laps[what] = self._laps.get(what, 0.0) + now - self._at
            self._at = now

    def back(self, what: str) -> str | None:
        """Take it that an incarnation has begun; return how long that took, by part."""
        if self._laps is None:
            return None
        self.lap(what)
        laps, self._laps = self._laps, None
        self.seconds = self._at - self._gone_at
        digits = 1 if self.seconds >= 1 else 2  # a rest may take less than a tenth of a second
        parts = ", ".join(f"{seconds:.{digits}f} s {name}" for name, seconds in laps.items())
        return f"{self.seconds:.{digits}f} s: {parts}"


#: How long all tasks may take to call, after the start of a query or the end of an incarnation.
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

    def too_long(self, absent: Sequence[TaskKey]) -> PipelineError | None:
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
