"""Report: what pins the low watermark of one key interval.

Source: MillWheel, "Low watermarks" (4.5): the oldest work of a computation is the timestamp of its
oldest unfinished record; "Injector and low watermark API" (5.2): state can hold it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from millrace.model.time import MAX_TIMESTAMP
from millrace.watermark.outstanding import Outstanding

#: When nothing is ever due. A timer may wait for the end of time, and a clock may be there.
NEVER: Final = MAX_TIMESTAMP + 1


class Report(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The oldest pending work of an interval after a commit. All in microseconds.

    Records and productions do not appear: an epoch ends with none unfinished or undelivered.

    Attributes:
        low_watermark_timer_us: Earliest pending low-watermark timer; MAX_TIMESTAMP if none.
        wall_timer_us: Earliest pending wall-clock timer; MAX_TIMESTAMP if none. It pins nothing;
            it says when the interval must be woken.
        hold_us: Earliest hold; MAX_TIMESTAMP if none.
        ids_us: Low watermark at which delivered ids can be forgotten; MAX_TIMESTAMP if none are
            kept. It pins nothing either.
        percentile_timers: (percentile, earliest pending timer that waits for it), ascending. No
            dict: half a million reports would each have their own empty one.
        outstanding: How the timers and holds are spread; None if nobody has asked yet.
        version: Which shape of its computation's state the interval's rows have
            (``compile/shapes.py``). It pins nothing.
        timers: Pending low-watermark timers, of all percentiles.
        wall_timers: Pending wall-clock timers.
    """

    low_watermark_timer_us: int = MAX_TIMESTAMP
    wall_timer_us: int = MAX_TIMESTAMP
    hold_us: int = MAX_TIMESTAMP
    ids_us: int = MAX_TIMESTAMP
    percentile_timers: tuple[tuple[int, int], ...] = ()
    outstanding: Outstanding | None = None
    version: int = 0
    timers: int = 0
    wall_timers: int = 0

    def oldest_work_us(self) -> int:
        """Return the earliest timestamp that this interval may still produce for."""
        oldest_us = min(self.low_watermark_timer_us, self.hold_us)
        if self.percentile_timers:
            return min(oldest_us, *(at_us for _, at_us in self.percentile_timers))
        return oldest_us

    def event_time_us(self) -> int:
        """Return the earliest low watermark, of any percentile, at which something is due.

        It is :data:`NEVER` where nothing waits for one.
        """
        first_us = min(self.low_watermark_timer_us, self.ids_us)
        if self.percentile_timers:
            first_us = min(first_us, *(at_us for _, at_us in self.percentile_timers))
        return first_us if first_us < MAX_TIMESTAMP or self.timers else NEVER

    def spread(self) -> Outstanding:
        """Return how the pending work is spread; what is not known keeps all percentiles back."""
        if self.outstanding is not None:
            return self.outstanding
        return Outstanding(floor_us=self.oldest_work_us())

    def due(self, clocks: Mapping[int, int], wall_time_us: int) -> bool:
        """Return whether a timer is due, or there are ids to forget.

        A clock at the end of time makes nothing due where nothing waits: the injector of a
        computation's own keys is there from the beginning.

        Args:
            clocks: Percentile -> low watermark; 100 is the low watermark itself.
            wall_time_us: The wall clock.
        """
        low_us = clocks[100]
        return (
            _is_due(self.low_watermark_timer_us, low_us, self.timers)
            or _is_due(self.wall_timer_us, wall_time_us, self.wall_timers)
            or _is_due(self.ids_us, low_us, 0)
            or any(at_us <= clocks.get(p, low_us) for p, at_us in self.percentile_timers)
        )


def _is_due(at_us: int, clock_us: int, timers: int) -> bool:
    """Return whether a clock is where the first of some timers waits for it."""
    return at_us <= clock_us and (at_us < MAX_TIMESTAMP or timers > 0)


NOTHING_PENDING = Report()
