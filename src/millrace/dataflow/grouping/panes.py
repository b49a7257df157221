"""Panes of a grouping: when a window fires, what leaves, and what is taken back by the next."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.dataflow.grouping.declared import DeclaredGrouping
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.tree import Fire
from millrace.dataflow.window_row import Retractable, WindowRow
from millrace.dataflow.windows.window_fn import end_us
from millrace.model.pane import Pane, Timing
from millrace.model.time import MAX_TIMESTAMP


class PaneEmitter(DeclaredGrouping):
    """A grouping that emits panes."""

    def _fire(self, row: WindowRow, fire: Fire, *, over: bool = False) -> None:
        """Emit a pane, unless nothing has come since the last.

        Args:
            row: Of the window.
            fire: Why.
            over: Whether the window takes no more elements. While elements come it may: until its
                timer collects it, a session that has expired goes on with those that touch it.
        """
        finished = 0 in row.finished
        if row.pending:
            self._emit(row, fire, is_last=finished or over)
        if finished:
            row.accumulator, row.size = self.combine.create(), 0

    def _emit(self, row: WindowRow, fire: Fire, *, is_last: bool) -> None:
        low_watermark_us, window = self.low_watermark, row.window
        if low_watermark_us < end_us(window):
            timing = Timing.EARLY
        else:
            timing = Timing.LATE if row.on_time or row.late else Timing.ON_TIME
            row.on_time = True
        pane = Pane(
            window,
            row.panes,
            timing,
            row.panes == 0,
            is_last,
            False,
            self.wall_time,
            self._percentile_reached(row, timing),
            fire.trigger,
        )
        for emitted in row.emitted:
            self._retract(emitted, fire)
        row.emitted = []
        # Of a window whose elements were all taken back, nothing is left to say but that.
        if row.size or not self._retracting:
            value, at_us = self.combine.extract(row.accumulator), self._timestamp_us(row)
            self.produce(self.output, value, at_us, pane=pane)
            if self._retracting and not is_last:
                row.emitted = [Retractable(self._result_coder.encode(value), pane, at_us)]
        row.panes += 1
        row.pending = row.late = 0
        row.earliest = MAX_TIMESTAMP
        if fire.mode is FireMode.CLEAR or (self._discarding and fire.mode is FireMode.DEFAULT):
            row.accumulator, row.size, row.emitted = self.combine.create(), 0, []

    def _percentile_reached(self, row: WindowRow, timing: Timing) -> int | None:
        """Return the largest percentile low watermark, of those in use, that passed the window."""
        if timing is not Timing.EARLY:
            return 100 if timing is Timing.ON_TIME else None
        end = end_us(row.window)
        reached = (p for p, us in self.percentile_low_watermarks.items() if us >= end)
        return max(reached, default=0)

    def _retract(self, emitted: Retractable, fire: Fire) -> None:
        pane = msgspec.structs.replace(
            emitted.pane, retraction=True, production_time=self.wall_time, trigger=fire.trigger
        )
        value = self._result_coder.decode(emitted.value)
        self.produce(self.output, value, emitted.timestamp, pane=pane)

    def peek(self, row: WindowRow) -> Any:
        """Return the aggregate of a window."""
        return self.combine.extract(row.accumulator)
