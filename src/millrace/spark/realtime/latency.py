"""Latency: where the time of a record goes in real time, from task to task.

From one level to the next a record is on the way, then waits for the turn of who gets it, and then
is part of that turn, at whose end what it makes leaves. Each is timed for every packet, in the
worker processes; the driver has the percentiles of the last half minute. Time on the way is by the
clocks of two hosts, and as wrong as they differ.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import ceil, inf, log2
from struct import Struct
from typing import Final, NamedTuple

from millrace.runtime.realtime.messages import Stepped

#: Buckets within a factor of two: what is said of a percentile is at most a fifth too much.
_PARTS: Final = 4
#: How often the driver is told; and for how long it counts.
_EVERY_S: Final = 1.0
_RECENT_S: Final = 30.0

_STAMP: Final = Struct("<q")

ON_THE_WAY, WAITING, TURN = "on the way", "before its turn", "turn"


class StepTimer:
    """Times the steps of one task; a receive queue's thread calls ``arrived``, one other the rest.

    Args:
        clock: Returns seconds since 1970; other hosts' clocks are compared with it.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._arrivals: deque[tuple[float, float]] = deque()
        self._times: dict[str, Counter[int]] = {}
        self._reported_at_s = -inf

    def stamped(self, packet: bytes) -> bytes:
        """Return a packet that leaves now."""
        return packet + _STAMP.pack(int(self._clock() * 1e6))

    def arrived(self, stamped: bytes) -> bytes:
        """Return the packet in what arrives now."""
        now = self._clock()
        left_us: int = _STAMP.unpack_from(stamped, len(stamped) - _STAMP.size)[0]
        self._arrivals.append((now - left_us / 1e6, now))
        return stamped[: -_STAMP.size]

    def begun(self, packets: int) -> None:
        """Take it that a turn begins, with so many of the packets that arrived first."""
        now = self._clock()
        for _ in range(packets):
            on_the_way_s, arrived = self._arrivals.popleft()
            self._add(ON_THE_WAY, on_the_way_s)
            self._add(WAITING, now - arrived)

    def ended(self, seconds: float) -> None:
        """Take how long a turn took that had something to do."""
        self._add(TURN, seconds)

    def due_report(self, level: int, task: int) -> Stepped | None:
        """Return what the driver is to be told now; None if it was told lately."""
        now = self._clock()
        if not self._times or abs(now - self._reported_at_s) < _EVERY_S:
            return None
        self._reported_at_s = now
        times, self._times = self._times, {}
        return Stepped(level, task, {name: dict(counts) for name, counts in times.items()})

    def _add(self, step: str, seconds: float) -> None:
        self._times.setdefault(step, Counter())[bucket(seconds)] += 1


class StepTimes(NamedTuple):
    """How long a step took, in seconds: so many of 100 took less, or a little more."""

    p50: float
    p95: float
    p99: float


class StepsSeen:
    """What tasks have told of their steps lately.

    Args:
        clock: Returns seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: deque[tuple[float, Stepped]] = deque()
        self._lock = threading.Lock()

    def receive(self, message: Stepped) -> None:
        """Take what a task says."""
        with self._lock:
            self._reports.append((self._clock(), message))
            self._forget()

    def times(self) -> dict[str, StepTimes]:
        """Return step -> how long it took; any thread.

        Steps are named by level, such as ``level 1, on the way``, and in the order in which a
        record takes them. ``injectors, turn`` is the first.
        """
        with self._lock:
            self._forget()
            reports = [message for _, message in self._reports]
        counts_by_step: dict[tuple[int, int], Counter[int]] = {}
        order = ON_THE_WAY, WAITING, TURN
        for message in reports:
            for step, counts in message.times.items():
                counts_by_step.setdefault((message.level, order.index(step)), Counter()).update(
                    counts
                )
        return {
            f"{f'level {level}' if level else 'injectors'}, {order[n]}": _percentiles(counts)
            for (level, n), counts in sorted(counts_by_step.items())
        }

    def _forget(self) -> None:
        since = self._clock() - _RECENT_S
        while self._reports and self._reports[0][0] < since:
            self._reports.popleft()


def bucket(seconds: float) -> int:
    """Return the bucket of a time; that of nought, or less, is the one of a microsecond.

    >>> bucket(0.0), bucket(-3.0), bucket(0.001), below_s(bucket(0.001))
    (0, 0, 40, 0.001024)
    """
    return max(0, ceil(_PARTS * log2(max(seconds * 1e6, 1.0))))


def below_s(bucket: int) -> float:
    """Return the longest time of a bucket, in seconds."""
    longest_us: float = 2.0 ** (bucket / _PARTS)
    return round(longest_us) / 1e6


def _percentiles(counts: Mapping[int, int]) -> StepTimes:
    buckets = sorted(counts)
    until = list(accumulate(counts[bucket] for bucket in buckets))
    return StepTimes(
        *(below_s(buckets[bisect_left(until, until[-1] * p / 100)]) for p in (50, 95, 99))
    )
