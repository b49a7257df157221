"""Report: what pins the low watermark of one key interval.

Source: MillWheel, "Low watermarks" (4.5): the oldest work of a computation is the timestamp of its
oldest unfinished record; "Injector and low watermark API" (5.2): state can hold it too.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.model.time import MAX_TIMESTAMP


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
    """

    low_watermark_timer_us: int = MAX_TIMESTAMP
    wall_timer_us: int = MAX_TIMESTAMP
    hold_us: int = MAX_TIMESTAMP
    ids_us: int = MAX_TIMESTAMP

    def oldest_work_us(self) -> int:
        """Return the earliest timestamp that this interval may still produce for."""
        return min(self.low_watermark_timer_us, self.hold_us)


NOTHING_PENDING = Report()


def output_low_watermark(input_us: int, reports: Iterable[Report]) -> int:
    """Return the low watermark that a computation shows its consumers.

    Args:
        input_us: Minimum over its senders.
        reports: One a key interval.

    >>> output_low_watermark(100, [Report(low_watermark_timer_us=90), Report()])
    90
    """
    return min([input_us, *(report.oldest_work_us() for report in reports)])
