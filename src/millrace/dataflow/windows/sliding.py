"""SlidingWindows: windows of one size that begin a period apart, and overlap."""

from __future__ import annotations

from millrace.dataflow.durations import positive_us, shown
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.errors import PipelineError
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import Duration, duration_us


class SlidingWindows(WindowFn):
    """Windows ``[n * period + offset, n * period + offset + size)``.

    An element is in ``size / period`` of them, and counts in each.

    Args:
        size: How long each is.
        period: How far apart they begin; at most ``size``, else some elements were in none.
        offset: Where they begin, counted from 1970 in UTC; below ``period``.

    Raises:
        PipelineError: A duration that is not above zero, or a period above the size.

    Source: Dataflow patent, "Sliding windows 320".

    >>> SlidingWindows("1 h", "1 min")
    SlidingWindows('1 h', '1 min')
    """

    def __init__(self, size: Duration, period: Duration, *, offset: Duration = 0) -> None:
        self.size_us = positive_us(size, "SlidingWindows(size)")
        self.period_us = positive_us(period, "SlidingWindows(period)")
        self.offset_us = duration_us(offset, "SlidingWindows(offset)")
        if self.period_us > self.size_us:
            raise PipelineError(
                f"SlidingWindows({size!r}, {period!r}): the period is longer than the size, so "
                "elements between two windows would be in none. Did you swap size and period?"
            )
        if self.offset_us >= self.period_us:
            raise PipelineError(
                f"SlidingWindows({size!r}, {period!r}, offset={offset!r}): the offset must be "
                "below the period."
            )

    def assign(self, record: Record) -> list[Window]:
        """Return the windows that the timestamp lies in, the earliest first."""
        at, size, period = record.timestamp, self.size_us, self.period_us
        last = at - (at - self.offset_us) % period
        first = last - (size - (at - last) - 1) // period * period
        return [Window(start, start + size) for start in range(first, last + 1, period)]

    def __repr__(self) -> str:
        more = f", offset={shown(self.offset_us)}" if self.offset_us else ""
        return f"SlidingWindows({shown(self.size_us)}, {shown(self.period_us)}{more})"
