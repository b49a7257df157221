"""How long a run was away, after a failure or at a rest, and where that time went."""

from __future__ import annotations

import time
from collections.abc import Callable


class Downtime:
    """Measures from the end of a session to the beginning of the next.

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
        """Take it that the session has ended, or that an attempt to begin one has."""
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
        """Take it that a session has begun; return how long that took, by part."""
        if self._laps is None:
            return None
        self.lap(what)
        laps, self._laps = self._laps, None
        self.seconds = self._at - self._gone_at
        digits = 1 if self.seconds >= 1 else 2  # a rest may take less than a tenth of a second
        parts = ", ".join(f"{seconds:.{digits}f} s {name}" for name, seconds in laps.items())
        return f"{self.seconds:.{digits}f} s: {parts}"
