"""The kill: a worker process gone in the middle of its work, once, and the time that it costs."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import millrace as mr

from .reports import Reports


class Kill:
    """Kills the process that sent the last report, and sees when reports come again.

    Args:
        reports: That come.
        due_us: When, microseconds since 1970.

    Attributes:
        killed_us: When it was; None before.
        pid: The process.
    """

    def __init__(self, reports: Reports, due_us: int) -> None:
        self._reports = reports
        self._due_us = due_us
        self.killed_us: int | None = None
        self.pid = 0

    def look(self, now_us: int) -> None:
        """Do it, if it is time."""
        if self.killed_us is None and now_us >= self._due_us and self._reports.worker:
            self.killed_us, self.pid = now_us, self._reports.worker
            os.kill(self.pid, signal.SIGKILL)

    @property
    def resumed_us(self) -> int | None:
        """When reports came again: the end of the longest pause; None if none have."""
        pauses = self._pauses()
        return max(pauses, key=_length)[1] if pauses else None

    def words(self, now_us: int) -> str:
        """Return what there is to say about it."""
        if self.killed_us is None:
            return ""
        pauses = self._pauses()
        last_us = pauses[-1][1] if pauses else self.killed_us
        longest = max(pauses, key=_length, default=(last_us, last_us))
        if now_us - last_us > _length(longest):
            return f"kill -9 of worker {self.pid}: no report for {_seconds(last_us, now_us)}"
        after = _seconds(self.killed_us, longest[1])
        return f"kill -9 of worker {self.pid}: reports came again after {after}"

    def _pauses(self) -> list[tuple[int, int]]:
        """Return from when to when nothing came that a score had made, since the kill."""
        if self.killed_us is None:
            return []
        since = self._reports.since(self.killed_us)
        return list(pairwise([self.killed_us, *(r.at_us for r in since if r.latency_us)]))


def _length(pause: tuple[int, int]) -> int:
    return pause[1] - pause[0]


def _seconds(from_us: int, until_us: int) -> str:
    return f"{(until_us - from_us) / mr.SECOND:.1f} s"
