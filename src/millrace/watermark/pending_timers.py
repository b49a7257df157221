"""Pending timers: how many timers some key intervals have set that have not fired."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.watermark.report import Report


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
