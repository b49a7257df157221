"""Pacing: what injector tasks know of one another, by way of the coordinator.

Each reads some processes of a stream. To hold back one that is too far ahead, and to go on where
all of its own have fallen silent, a task must know how far the others have come. Nothing is wrong
if it learns so late: a process waits a little longer than it had to, never less.

So a task says it when it has moved by an eighth of what the skew limit allows, and else now and
then: the limit is kept to within an eighth, and who does not need it hears nothing.

Source: MillWheel 5.2 and 8.4; docs/injectors.md, "Skew".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millrace.compile.topology import Topology
from millrace.injectors.rate_limit import together
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, is_over

#: A task says how far it has come when it has moved by such a part of the least skew limit ...
_PARTS = 8
#: ... but no more often than this, and the coordinator passes on no more often, in microseconds;
_OFTEN_US = 20_000
#: and if it has moved by less, so often.
_RARELY_US = 500_000


def steps(topology: Topology) -> dict[str, int]:
    """Return injected stream -> how far it may move untold, in microseconds.

    Of those that somebody must know of: one that has a time-out for silent processes, or feeds a
    computation together with one that has a skew limit.
    """
    found = {}
    for stream, group in together(topology).items():
        near = [topology.streams[name].injection for name in group]
        limits = [one.skew_us for one in near if one is not None and one.skew_us is not None]
        own = topology.streams[stream].injection
        if limits:
            found[stream] = max(1, min(limits) // _PARTS)
        elif own is not None and own.idle_us is not None:
            found[stream] = MAX_TIMESTAMP
    return found


class Pacing:
    """One injector task's side.

    Args:
        topology: The pipeline.
        read: The streams that the task reads.
        before: Injected stream -> low watermark as the session began.

    Attributes:
        slowest: Injected stream -> the lowest low watermark of all tasks, as last heard.
    """

    def __init__(self, topology: Topology, read: Iterable[str], before: Mapping[str, int]) -> None:
        known = steps(topology)
        self._steps = {stream: known[stream] for stream in read if stream in known}
        self._said: dict[str, int] | None = None
        self._said_us = MIN_TIMESTAMP
        self.slowest = dict(before)

    def take(self, slowest: Mapping[str, int]) -> None:
        """Take what the coordinator says."""
        self.slowest |= slowest

    def word(self, low_watermarks: Mapping[str, int], now_us: int) -> dict[str, int] | None:
        """Return what the coordinator is to be told now; None if nothing, or not yet.

        Args:
            low_watermarks: Injected stream -> this task's own, of those that it has a say in.
            now_us: What time it is, of any clock.
        """
        last = self._said
        now = {stream: low_watermarks[stream] for stream in self._steps if stream in low_watermarks}
        if now == last or not self._steps:
            return None
        if last is not None and now.keys() == last.keys():
            far = any(us - last[stream] >= self._steps[stream] for stream, us in now.items())
            if not is_over(_OFTEN_US if far else _RARELY_US, self._said_us, now_us):
                return None
        self._said, self._said_us = now, now_us
        return now


class Pace:
    """The coordinator's side, for one session.

    Args:
        readers: Injected stream -> tasks that read it; of those that somebody must know of.
        before: Injected stream -> low watermark as the session began.

    >>> pace = Pace({"s": [0, 1]}, {"s": 10})
    >>> pace.reached(0, {"s": 70}), pace.news(0)
    (None, None)
    >>> pace.reached(1, {"s": 20}), pace.news(0)
    (None, {'s': 20})
    >>> pace.reached(1, {}), pace.news(1_000_000)  # all that it reads is idle
    (None, {'s': 70})
    """

    def __init__(self, readers: Mapping[str, Collection[int]], before: Mapping[str, int]) -> None:
        self._readers = readers
        self._slowest = {stream: before[stream] for stream in readers}
        self._said: dict[int, Mapping[str, int]] = {}
        self._untold = False
        self._told_us = MIN_TIMESTAMP

    def reached(self, task: int, low_watermarks: Mapping[str, int]) -> None:
        """Take what a task says; it has no say in a stream that it leaves out."""
        self._said[task] = low_watermarks
        for stream, readers in self._readers.items():
            if any(n not in self._said for n in readers):
                continue
            said = [self._said[n][stream] for n in readers if stream in self._said[n]]
            if said and min(said) > self._slowest[stream]:
                self._slowest[stream], self._untold = min(said), True

    def news(self, now_us: int) -> dict[str, int] | None:
        """Return what all injector tasks are to be told now; None if nothing, or not yet."""
        if not (self._untold and is_over(_OFTEN_US, self._told_us, now_us)):
            return None
        self._untold, self._told_us = False, now_us
        return dict(self._slowest)
