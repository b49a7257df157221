"""SlidingWindows: windows of one size that begin a period apart, and overlap."""

from __future__ import annotations

import numpy as np

from millrace.dataflow.value import positive_us
from millrace.dataflow.windows.window_fn import Assigned, Hashes, Ints, WindowFn
from millrace.model.errors import PipelineError
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import Duration, duration_literal, duration_us


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

    def assign_column(self, timestamps: Ints, hashes: Hashes) -> Assigned:
        """Return the windows that the timestamps lie in, the earliest of each first."""
        last, counts = self._last(timestamps)
        rows = np.repeat(np.arange(len(timestamps)), counts)
        before = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(rows))
        starts = last[rows] - before * self.period_us
        return Assigned(rows, starts, starts + self.size_us)

    def alike(self, timestamps: Ints, hashes: Hashes) -> Ints:
        """Return a number that says which window is the last, and how many there are."""
        last, counts = self._last(timestamps)
        most = -(-self.size_us // self.period_us)  # or one fewer
        numbers: Ints = (last - self.offset_us) // self.period_us * 2 + (most - counts)
        return numbers

    def _last(self, timestamps: Ints) -> tuple[Ints, Ints]:
        """Return when the last window of each begins, and how many windows each is in."""
        into = (timestamps - self.offset_us) % self.period_us
        return timestamps - into, (self.size_us - into - 1) // self.period_us + 1

    def __repr__(self) -> str:
        more = f", offset={duration_literal(self.offset_us)}" if self.offset_us else ""
        size, period = duration_literal(self.size_us), duration_literal(self.period_us)
        return f"SlidingWindows({size}, {period}{more})"
