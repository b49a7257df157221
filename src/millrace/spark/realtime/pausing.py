"""How long a task pauses after a turn, so that a busy machine gets fewer and larger turns.

A turn costs the same again whatever is in it: half a millisecond here, and a packet for Spark. What
comes while a task pauses shares the next turn. A task that had nothing to do begins at once, so
nobody who is alone waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: As many times the CPU time that the turn took, and so long at most.
_SPENT, _SPENT_S = 1.0, 0.002
#: As many times the time that it waited for a CPU, and so long at most. Where tasks wait for one
#: another's CPU, smaller turns would only make them wait the longer.
_WAITED, _WAITED_S = 2.0, 0.01


#: On CPU, waited for one, times run.
_WAITS = "/proc/thread-self/schedstat"


class Pausing:
    """Says when the task of this thread is to have its next turn.

    Args:
        spent_s: Returns the thread's CPU time so far.
        waited_s: Returns how long it was ready to run so far, and had no CPU.
        now_s: The clock.

    >>> cpu, waited = iter([0.0, 0.0015]), iter([0.0, 0.002])
    >>> pausing = Pausing(cpu.__next__, waited.__next__, lambda: 10.0)
    >>> pausing.begin()
    >>> pausing.end()
    >>> round(pausing.left_s(), 4)
    0.0055
    """

    def __init__(
        self,
        spent_s: Callable[[], float] = time.thread_time,
        waited_s: Callable[[], float] = lambda: 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spent_s = spent_s
        self._waited_s = waited_s
        self._now_s = now_s
        self._began = (0.0, 0.0)
        self._until = now_s()

    def begin(self) -> None:
        """Take the beginning of a turn."""
        self._began = self._spent_s(), self._waited_s()

    def end(self) -> None:
        """Take its end."""
        spent, waited = self._spent_s() - self._began[0], self._waited_s() - self._began[1]
        pause_s = min(_SPENT * spent, _SPENT_S) + min(_WAITED * waited, _WAITED_S)
        self._until = self._now_s() + pause_s

    def left_s(self) -> float:
        """Return how long the task has to pause yet; none if negative."""
        return self._until - self._now_s()


@contextmanager
def pausing() -> Iterator[Pausing]:
    """Have the pauses of this thread; only Linux says how long it was kept waiting for a CPU.

    >>> with pausing() as mine:
    ...     mine.begin()
    ...     mine.end()
    ...     mine.left_s() < 0.012
    True
    """
    try:
        file = os.open(_WAITS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield Pausing()
        return
    try:
        yield Pausing(waited_s=lambda: int(os.pread(file, 80, 0).split()[1]) / 1e9)
    finally:
        os.close(file)
