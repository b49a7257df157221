"""Backoff: how long a task waits after a turn before it begins the next.

What comes meanwhile shares the next turn, and its packets. So a busy machine is kept from turns
that are ever smaller and cost the more a record; a task that had nothing to do begins at once.
"""

from __future__ import annotations

from math import inf
from typing import Final

#: As many times a turn's CPU time, and so long at the most.
_TIMES: Final = 1.0
_MOST_S: Final = 0.002
#: An injector task waits longer, as long as turn and pause together take no longer than this. Each
#: of its turns makes one of the tasks after it, and they are done with it when the next comes.
_INJECTOR_TIMES: Final = 4.0
_CYCLE_S: Final = 0.01
#: After so many turns that found input some pauses are short, or until a turn waits for it. What
#: is late by less than the time between two inputs has then caught up.
_UNKNOWN_MOST: Final = 8
_PROBES: Final = 2


class Backoff:
    """The pauses of one task.

    An injector task makes the longer pause only where input comes at least twice in it. Otherwise
    no turn would be the larger for it, and the task would be late for a source that has something
    every few milliseconds: again and again, where turn and pause take as long as that. How often
    input comes is known of turns that had to wait for it, so now and then pauses are short.

    Args:
        level: The task's.

    >>> backoff = Backoff(1)
    >>> [backoff.after(ms / 1e3, 0.0, 0.0, ms / 1e3) * 1e3 for ms in (0.5, 50)]
    [0.5, 2.0]
    """

    def __init__(self, level: int) -> None:
        self._injects = not level
        self._ended_s = -inf
        self._unknown = 0

    def after(self, spent_s: float, began_s: float, waited_s: float, ended_s: float) -> float:
        """Return how long to pause after a turn, in seconds.

        Args:
            spent_s: The turn's CPU time, but for waiting.
            began_s: When it began, by any clock.
            waited_s: How long it waited for input then; 0 if there was some, or none is read.
            ended_s: When it ended, by the same clock.

        >>> backoff = Backoff(0)
        >>> backoff.after(0.0005, 0.0, 0.0, 0.001)  # there was something
        0.002
        >>> backoff.after(0.0005, 0.003, 0.002, 0.006)  # it came 4 ms after the end of the last
        0.0005
        >>> backoff.after(0.0005, 0.0065, 0.0004, 0.0075)  # 0.9 ms
        0.002
        """
        before_s, self._ended_s = self._ended_s, ended_s
        if self._injects:
            longer_s = min(_INJECTOR_TIMES * spent_s, max(_CYCLE_S - spent_s, _MOST_S))
            if waited_s:
                self._unknown = 0
                longer = began_s + waited_s - before_s < longer_s / 2
            else:
                self._unknown += 1
                longer = self._unknown % (_UNKNOWN_MOST + _PROBES) < _UNKNOWN_MOST
            if longer:
                return longer_s
        return min(_TIMES * spent_s, _MOST_S)
