"""Panes of a grouping: when a window fires, what leaves, and what is taken back by the next.

A window has a timer on each clock, for the earliest of its triggers'.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.dataflow.grouping.declaration import DeclaredGrouping
from millrace.dataflow.grouping.window_state import Armed, Retractable, RowTimer, WindowRow
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.tree import Fire
from millrace.dataflow.windows.window_fn import end_us
from millrace.model.pane import Pane, Timing
from millrace.model.record import LOW_WATERMARK, WALL_TIME, TimeDomain, Timer
from millrace.model.time import MAX_TIMESTAMP

#: Numbers of clocks in a row: the low watermark, the wall clock, and from 100 on percentiles.
WATERMARK, _WALL, _PERCENTILES = 0, 1, 100

#: Where a window is kept among the rows of its key, and the tag of its timers.
Address = bytes | int


class PaneEmitter(DeclaredGrouping):
    """A grouping that emits panes, and whose windows wake when something may happen to them."""

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
            if self.key_fields is not None:
                value = self.key_fields.row(self.key, window, value)
            self.produce(self.output, value, at_us, pane=pane)
            if self._retracting and not is_last:
                row.emitted = [Retractable(self.result_coder.encode(value), pane, at_us)]
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
        value = self.result_coder.decode(emitted.value)
        self.produce(self.output, value, emitted.timestamp, pane=pane)

    def peek(self, row: WindowRow) -> Any:
        """Return the aggregate of a window."""
        return self.combine.extract(row.accumulator)

    def _arm(self, address: Address, row: WindowRow) -> None:
        """Have the kernel wake this window for the earliest of its timers on each clock."""
        if self._tree.with_each is not None and row.window.end is None:
            return  # Nothing is ever pending, and what has no end is not collected.
        earliest_us = self._expiry_us(row)
        others: dict[int, int] = {}
        for timer in row.timers:
            clock, at_us = timer.clock, timer.at
            if clock != WATERMARK:
                others[clock] = min(at_us, others.get(clock, MAX_TIMESTAMP))
            elif at_us < earliest_us:
                earliest_us = at_us
        armed = row.armed
        hold_us = self._hold_us(row, earliest_us)
        known = armed.get(WATERMARK)
        if known is None or known.at != earliest_us or known.hold != hold_us:
            armed[WATERMARK] = Armed(earliest_us, hold_us)
            self.set_timer(address, earliest_us, hold=hold_us)
        for clock, at_us in others.items():
            known = armed.get(clock)
            if known is None or known.at != at_us:
                armed[clock] = Armed(at_us)
                self.set_timer(
                    _tag(address, clock), at_us, _domain(clock), percentile=_percentile(clock)
                )
        if len(armed) > 1 + len(others):
            for clock in armed.keys() - others.keys() - {WATERMARK}:
                del armed[clock]
                self.delete_timer(_tag(address, clock), _domain(clock))

    def _hold_us(self, row: WindowRow, at_us: int) -> int | None:
        """Return where pending elements hold the low watermark, so that their pane is not late."""
        if not row.pending or (row.window.end is None and self._at_end):
            return None
        hold_us = self._timestamp_us(row)
        # A low-watermark timer holds it just before itself anyway.
        return hold_us if hold_us + 1 < at_us else None

    def _disarm(self, address: Address, row: WindowRow) -> None:
        for clock in row.armed:
            self.delete_timer(_tag(address, clock), _domain(clock))

    def now(self, domain: TimeDomain) -> int:
        """Return where a clock stands."""
        return self.low_watermark if domain == LOW_WATERMARK else self.wall_time

    def number(self, domain: TimeDomain, percentile: int) -> int:
        """Return the number of a clock."""
        if domain == WALL_TIME:
            return _WALL
        return WATERMARK if percentile == 100 else _PERCENTILES + percentile

    def timer(self, tag: str, timer: RowTimer) -> Timer:
        """Return a timer as its trigger knows it."""
        return Timer(tag, timer.at, _domain(timer.clock), percentile=_percentile(timer.clock))


def _domain(clock: int) -> TimeDomain:
    return WALL_TIME if clock == _WALL else LOW_WATERMARK


def _percentile(clock: int) -> int:
    return clock - _PERCENTILES if clock > _PERCENTILES else 100


def _tag(address: Address, clock: int) -> Any:
    """Return the tag of a window's timer; a key's tags must differ within a domain."""
    return (address, _percentile(clock)) if clock > _PERCENTILES else address


def address_of(tag: Any) -> Address:
    """Return where the window is kept whose timer has a tag."""
    address: Address = tag[0] if type(tag) is tuple else tag
    return address


def due_timer(timers: list[RowTimer], clock: int, at_us: int) -> RowTimer | None:
    """Return the earliest timer on a clock that is due; of equal ones the outermost trigger's."""
    due = [timer for timer in timers if timer.clock == clock and timer.at <= at_us]
    if len(due) > 1:
        return min(due, key=lambda timer: (timer.at, timer.node, timer.tag))
    return due[0] if due else None
