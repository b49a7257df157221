"""Report: what pins the low watermark of one key interval.

Source: MillWheel, "Low watermarks" (4.5): the oldest work of a computation is the timestamp of its
oldest unfinished record; "Injector and low watermark API" (5.2): state can hold it too.

Pending timers: how many timers some key intervals have set that have not fired.

Process: what is known of one process, or source partition, of an injector.

Source: MillWheel, "Injector and Low Watermark API" (5.2): an injector can be distributed across
multiple processes; the aggregate low watermark of those processes is the injector low watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.percentiles import Outstanding

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
            (``compile/change/schemas.py``). It pins nothing.
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


class PendingTimers(msgspec.Struct, frozen=True):
    """How many timers are pending, by clock.

    Attributes:
        low_watermark: Of those that wait for a low watermark, of any percentile.
        wall_clock: Of those that wait for the wall clock.

    >>> two = PendingTimers.of([Report(5, timers=2), Report(wall_timer_us=9, wall_timers=1)])
    >>> two.low_watermark, two.wall_clock
    (2, 1)
    >>> two.changed([Report(5, timers=2)], [Report()]).low_watermark
    0
    """

    low_watermark: int = 0
    wall_clock: int = 0

    @classmethod
    def of(cls, reports: Iterable[Report]) -> PendingTimers:
        """Return those of some intervals."""
        return cls().changed((), reports)

    def changed(self, before: Iterable[Report], after: Iterable[Report]) -> PendingTimers:
        """Return them after some reports have taken the place of others.

        Args:
            before: Reports that count no longer.
            after: Those that count now.
        """
        low_watermark, wall_clock = self.low_watermark, self.wall_clock
        for sign, reports in ((-1, before), (1, after)):
            for report in reports:
                low_watermark += sign * report.timers
                wall_clock += sign * report.wall_timers
        return PendingTimers(low_watermark, wall_clock)


class ProcessState(msgspec.Struct, array_like=True, frozen=True):
    """The last known state of one process of an injector. All times are in microseconds.

    Attributes:
        newest_us: Latest record timestamp read from it; MIN_TIMESTAMP if none was.
        process_watermark_us: Latest low watermark that it published itself; MIN_TIMESTAMP if it
            does not.
        received_us: Wall clock when it last delivered anything, or else was first expected.
    """

    newest_us: int = MIN_TIMESTAMP
    process_watermark_us: int = MIN_TIMESTAMP
    received_us: int = MIN_TIMESTAMP

    def is_idle(self, idle_us: int | None, wall_time_us: int, last_epoch_us: int) -> bool:
        """Return whether the process has been silent for its time-out, and can be left out.

        One that the last epoch heard is not idle yet, however long that epoch took: what it has
        read counts in one publication first.

        Args:
            idle_us: The time-out; None: never.
            wall_time_us: What time it is.
            last_epoch_us: Clock of the last epoch that has completed.

        >>> [ProcessState(received_us=0).is_idle(5, 9, last_epoch_us=us) for us in (0, 1)]
        [False, True]
        """
        return (
            idle_us is not None
            and self.received_us != MIN_TIMESTAMP
            and self.received_us + idle_us <= wall_time_us
            and self.received_us < last_epoch_us
        )

    def merged(self, other: ProcessState) -> ProcessState:
        """Return what is known from two observations; the order does not matter.

        >>> ProcessState(newest_us=5, received_us=1).merged(
        ...     ProcessState(newest_us=3, process_watermark_us=2, received_us=4)
        ... )
        ProcessState(newest_us=5, process_watermark_us=2, received_us=4)
        """
        return ProcessState(
            max(self.newest_us, other.newest_us),
            max(self.process_watermark_us, other.process_watermark_us),
            max(self.received_us, other.received_us),
        )


#: The name of the only process of an injector that does not say which it has.
ONLY = ""
