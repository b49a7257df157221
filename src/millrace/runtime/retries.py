"""Retries: when attempts of calls may begin, and what follows one that failed.

It decides by instants that it is given, and by a random source: it knows no clock and no asyncio.

A *circuit breaker* stands in front of the service. It is closed while the service answers. After
some failures in a row it opens: no attempt begins for a pause. Then one attempt, the *trial*, finds
out whether the service is back. An answer closes the breaker. A failure opens it for a longer
pause. A failure that is met while it is open is the service's and not the call's: it does not count
as a retry.

Source: Nygard, "Release It!", "Circuit Breaker"; "Exponential Backoff And Jitter" (AWS Architecture
Blog), full jitter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from millrace.model.calls import CallPolicy
from millrace.model.time import SECOND

#: 2 ** 62 times the shortest backoff is longer than any longest one.
_DOUBLINGS: Final = 62


class Again(NamedTuple):
    """A call is made again.

    Attributes:
        pause_s: After so long.
        counts: Whether that is one of the policy's retries. If not, other calls go first.
    """

    pause_s: float
    counts: bool


class Retries:
    """Decides about the attempts of one computation in one process.

    Args:
        policy: How calls are made.
        random: Returns numbers in [0, 1).

    >>> retries = Retries(CallPolicy(backoff="1 s", retries=1), random=lambda: 0.5)
    >>> retries.failed(ConnectionError(), retried=0, now_s=0.0)
    Again(pause_s=0.5, counts=True)
    >>> retries.failed(ConnectionError(), retried=1, now_s=1.0) is None
    True
    """

    def __init__(self, policy: CallPolicy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._in_a_row = 0
        self._pauses = 0
        self._opened_s: float | None = None
        self._until_s = -math.inf
        self._trial = False

    def wait_s(self, now_s: float) -> float:
        """Return after how many seconds an attempt may begin; infinity while a trial is made."""
        if self._opened_s is None:
            return 0.0
        return math.inf if self._trial else max(0.0, self._until_s - now_s)

    def begin(self) -> bool:
        """Begin an attempt, as :meth:`wait_s` allows; return whether it is the trial."""
        self._trial = self._opened_s is not None
        return self._trial

    def answered(self) -> None:
        """Take that the service has answered an attempt, if only with an error of the request."""
        self._in_a_row = self._pauses = 0
        self._opened_s = None
        self._trial = False

    def dropped(self, *, trial: bool) -> None:
        """Take that nobody waits for an attempt any more: another one may be the trial."""
        if trial:
            self._trial = False

    def failed(
        self, error: BaseException, *, retried: int, now_s: float, trial: bool = False
    ) -> Again | None:
        """Return what follows an attempt that failed; None: the call has failed.

        Args:
            error: What it raised.
            retried: How many retries of the call have counted.
            now_s: What time it is.
            trial: Whether the attempt was the trial.
        """
        if not self._policy.retries_after(error):
            self.answered()
            return None
        if self._fails(now_s, trial):
            return Again(0.0, counts=False)
        if retried >= self._policy.retries:
            return None
        return Again(self._random() * self._longest_s(retried), counts=True)

    def open_s(self, now_s: float) -> float:
        """Return for how many seconds the breaker has been open; 0 if it is closed."""
        return 0.0 if self._opened_s is None else now_s - self._opened_s

    def _fails(self, now_s: float, trial: bool) -> bool:
        """Count a failure; return whether the breaker is open."""
        self._in_a_row += 1
        if self._opened_s is None:
            if self._policy.breaker is None or self._in_a_row < self._policy.breaker:
                return False
            self._opened_s = now_s
        elif not trial:
            return True  # begun before it opened
        self._trial = False
        # Half of it at random: tasks that met the same failure do not come back together.
        pause_s = self._longest_s(self._pauses) * (1 + self._random()) / 2
        self._until_s = now_s + pause_s
        self._pauses += 1
        return True

    def _longest_s(self, before: int) -> float:
        """Return how long a pause after so many others may be."""
        longest_us = self._policy.backoff_us << min(before, _DOUBLINGS)
        return min(longest_us, self._policy.max_backoff_us) / SECOND
