"""Sessions: bursts of a key's activity, ended by a gap."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.dataflow.value import positive_us
from millrace.dataflow.windows.window_fn import Assigned, Hashes, Ints, WindowFn, end_us, one_each
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import Duration, duration_literal


class Sessions(WindowFn):
    """Elements of a key that follow each other within less than a gap.

    Each element gets the window ``[timestamp, timestamp + gap)``, and windows that overlap merge.
    Two elements exactly one gap apart are two sessions.

    Raises:
        PipelineError: A gap that is not above zero.

    Source: Dataflow patent, FIG. 5, "Sessions".

    >>> Sessions("30 min").merge([Window(0, 10), Window(9, 19), Window(19, 29)])
    [Window(0, 19), Window(19, 29)]
    """

    merges = True
    joins_overlapping = True

    def __init__(self, gap: Duration) -> None:
        self.gap_us = positive_us(gap, "Sessions(gap)")

    def assign(self, record: Record) -> tuple[Window]:
        """Return the element's own window."""
        return (Window(record.timestamp, record.timestamp + self.gap_us),)

    def assign_column(self, timestamps: Ints, hashes: Hashes) -> Assigned:
        """Return the elements' own windows."""
        return one_each(timestamps, timestamps + self.gap_us)

    def merge(self, windows: Sequence[Window]) -> list[Window]:
        """Return the windows with those that overlap as one."""
        merged: list[Window] = []
        for window in sorted(windows, key=lambda window: window.start or 0):
            last = merged[-1] if merged else None
            if last is not None and (window.start or 0) < end_us(last):
                if end_us(window) > end_us(last):
                    merged[-1] = Window(last.start, window.end)
            else:
                merged.append(window)
        return merged

    def __repr__(self) -> str:
        return f"Sessions({duration_literal(self.gap_us)})"
