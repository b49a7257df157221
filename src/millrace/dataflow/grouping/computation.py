"""GroupByKeyAndWindow: the one computation that windows, triggers and aggregations compile to.

It is user space: state cells and timers, nothing else. The patent's five parts are here: elements'
timestamps are dropped for windows; the key is the computation's; windows of the key merge; values
are folded by window; panes leave with timestamps of their windows.

Source: Dataflow patent, "GroupByKeyAndWindow", FIG. 5; "Triggers API 400".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from millrace.dataflow.grouping.panes import WATERMARK, Address, PaneEmitter, address_of, due_timer
from millrace.dataflow.grouping.window_state import (
    Active,
    ActiveWindows,
    SpreadWindows,
    WindowRow,
    blame,
)
from millrace.dataflow.partials.partial import Partial
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.tree import Fire
from millrace.dataflow.windows.window_fn import end_us
from millrace.model.errors import RAISED
from millrace.model.pane import Window
from millrace.model.record import Record, Timer

_Windows = ActiveWindows | SpreadWindows

#: A window's row, and the rows that have just merged into it.
_Found = tuple[Address, WindowRow, Sequence[WindowRow]]

_EXPIRED = Fire(FireMode.DEFAULT, "end of allowed lateness")


class GroupByKeyAndWindow(PaneEmitter):
    """Folds the values of each key and window, and emits panes.

    Arguments are those of :class:`~millrace.dataflow.grouping.declaration.DeclaredGrouping`.

    Counters of its own: ``dropped_late`` (elements whose window had expired),
    ``dropped_after_finish`` (elements whose window's trigger was done), ``lifted`` (elements that
    senders had combined).
    """

    def renamed(self, output: str, format: Any) -> GroupByKeyAndWindow:
        """Return the same with another name for its output, and a format unless that is Any."""
        return GroupByKeyAndWindow(
            self.inputs,
            self.windowing,
            self.combine,
            self.value,
            output,
            format,
            self.key_fields,
        )

    # -- elements ----------------------------------------------------------------------------------

    def process_record(self, record: Record) -> None:
        """Add an element, or a partial, to its windows."""
        if record.stream in self._tree.signals:
            self._take_signal(record.stream)
            return
        if type(record.value) is Partial:
            self._add_partial(record, record.value)
            return
        value = self.pick(record.value)
        pane = record.pane
        retraction = pane is not None and pane.retraction
        for window in self._assign(record):
            try:
                window_row = self._row_for(window, 1)
                if window_row is None:
                    continue
                address, row, merged = window_row
                if retraction:
                    row.accumulator = self.combine.uncombine(row.accumulator, value)
                    row.size -= 1
                else:
                    row.accumulator = self.combine.add(row.accumulator, value)
                    row.size += 1
                size = len(_encode(value)) if self._tree.needs_bytes else 0
                at_us = record.timestamp
                self._added(address, row, merged, value, 1, size, at_us, at_us, at_us)
            except RAISED as error:
                blame(error, self._whole(window))
                raise

    def _add_partial(self, record: Record, partial: Partial) -> None:
        self.increment("lifted", partial.elements)
        windows = self._assign(record) if partial.window is None else (partial.window,)
        for window in windows:
            try:
                window_row = self._row_for(window, partial.elements)
                if window_row is None:
                    continue
                address, row, merged = window_row
                row.accumulator = self.combine.merge(row.accumulator, partial.accumulator)
                row.size += partial.elements - 2 * partial.retracted
                self._added(
                    address, row, merged, None, partial.elements, partial.bytes, record.timestamp,
                    partial.earliest, partial.latest,
                )  # fmt: skip
            except RAISED as error:
                blame(error, self._whole(window))
                raise

    def _whole(self, window: Window) -> Window:
        """Return the window of the key that an element's window has become part of."""
        if self._window_fn.merges:
            for start, end, _ in self._kept.get():
                if window.start is not None and start <= window.start and end_us(window) <= end:
                    return Window(start, end)
        return window

    def _row_for(self, window: Window, elements: int) -> _Found | None:
        """Return the row that elements of a window go to; None if it takes no more."""
        window_row = self._merged_in(window) if self._window_fn.merges else self._found(window)
        if window_row is None:
            self.increment("dropped_late", elements)
        elif 0 in window_row[1].finished:
            self.increment("dropped_after_finish", elements)
            return None
        return window_row

    def _found(self, window: Window) -> _Found | None:
        """Return the row of a window that never merges, made if need be; None if expired."""
        if window.start is None:
            address = b""
        else:
            if end_us(window) + self._lateness_us <= self.low_watermark:
                return None
            address = _pack(window.start, window.end)
        row = self.windows.get(address)
        if row is None:
            row = self.windows[address] = WindowRow(window, accumulator=self.combine.create())
        return address, row, ()

    def _added(
        self,
        address: Address,
        row: WindowRow,
        merged: Sequence[WindowRow],
        element: Any,
        elements: int,
        size: int,
        timestamp_us: int,
        earliest_us: int,
        latest_us: int,
    ) -> None:
        """Take note of elements that are in the accumulator, and tell the triggers of the first."""
        row.pending += elements
        if self.low_watermark >= end_us(row.window):
            row.late += elements
        if earliest_us < row.earliest:
            row.earliest = earliest_us
        if latest_us > row.latest:
            row.latest = latest_us
        if row.primed and not self._tree.per_element:
            # Nothing that timers and holds depend on has changed, but that something is pending.
            if row.pending == elements or not self._at_end:
                self._arm(address, row)
            return
        fire = self._tree.on_element(self, row, merged, element, timestamp_us, elements, size)
        if fire is not None:
            self._fire(row, fire)
        self._arm(address, row)

    # -- merging -----------------------------------------------------------------------------------

    def _merged_in(self, window: Window) -> _Found | None:
        """Return the row of the window that an element's window becomes part of.

        What triggers say of that is asked with the element, which the pane must have: merge and
        element are one step. Windows of a user's that merge besides are a step of their own.
        """
        active = self._kept.get()
        *besides, (whole, old) = self._merging.with_window(active, window)
        for merge in besides:
            address, row, merged = self._merge(active, merge.whole, merge.old)
            fire = self._tree.on_merge(self, row, merged)
            if fire is not None:
                self._fire(row, fire)
            self._arm(address, row)
        if not old:
            if end_us(whole) + self._lateness_us <= self.low_watermark:
                return None
            address = active.next_address()
            self._activate(active, whole, address)
            row = self.windows[address] = WindowRow(whole, accumulator=self.combine.create())
            return address, row, ()
        if len(old) == 1 and (old[0].start, old[0].end) == (whole.start, whole.end):
            return old[0].address, self.windows[old[0].address], ()
        return self._merge(active, whole, old)

    def _activate(self, active: _Windows, whole: Window, address: int) -> None:
        """Note a window among those of the key that still count."""
        active.add(_active(whole, address))
        self._kept.set(active)

    def _merge(self, active: _Windows, whole: Window, old: list[Active]) -> _Found:
        """Make one row, under the address of the first, of those of several windows, by start."""
        addresses = [known.address for known in old]
        for known in old:
            active.discard(known)
        self._activate(active, whole, addresses[0])
        rows: list[WindowRow] = [self.windows[address] for address in addresses]
        first, is_complete = rows[0], self.low_watermark >= end_us(whole)
        row = WindowRow(
            whole,
            size=sum(row.size for row in rows),
            pending=sum(row.pending for row in rows),
            late=sum(row.late for row in rows) if is_complete else 0,
            earliest=min(row.earliest for row in rows),
            latest=max(row.latest for row in rows),
            panes=max(row.panes for row in rows),
            on_time=is_complete and any(row.on_time for row in rows),
            finished=sorted(set.intersection(*(set(row.finished) for row in rows))),
            emitted=[emitted for row in rows for emitted in row.emitted],
            armed=first.armed,
            accumulator=first.accumulator,
        )
        for address, other in zip(addresses[1:], rows[1:], strict=True):
            row.accumulator = self.combine.merge(row.accumulator, other.accumulator)
            self._disarm(address, other)
            del self.windows[address]
        self.windows[addresses[0]] = row
        return addresses[0], row, rows

    # -- signals -----------------------------------------------------------------------------------

    def _take_signal(self, stream: str) -> None:
        """Fire what waits for a signal, in all windows of the key."""
        for address in list(self.windows):
            row = self.windows[address]
            try:
                for fire in self._tree.on_signal(self, row, stream):
                    self._fire(row, fire)
                self._arm(address, row)
            except RAISED as error:
                blame(error, row.window)
                raise

    # -- timers ------------------------------------------------------------------------------------

    def process_timer(self, timer: Timer) -> None:
        """Fire the triggers' timers that are due in a window, and collect it when it expires."""
        address = address_of(timer.tag)
        row = self.windows[address]
        clock = self.number(timer.domain, timer.percentile)
        row.armed.pop(clock, None)
        try:
            while row.timers and (due := due_timer(row.timers, clock, timer.at)) is not None:
                row.timers.remove(due)
                fire = self._tree.on_timer(self, row, due)
                if fire is not None:
                    self._fire(row, fire, over=self._is_over(row))
            if clock == WATERMARK and self._expiry_us(row) <= timer.at:
                self._collect(address, row)
            else:
                self._arm(address, row)
        except RAISED as error:
            blame(error, row.window)
            raise

    def pass_timer(self, timer: Timer) -> None:
        """Drop what was due by a timer that failed, and wait for what else the window waits for.

        A window that failed as it expired waits for nothing: its state stays as it is.
        """
        address = address_of(timer.tag)
        row = self.windows[address]
        clock = self.number(timer.domain, timer.percentile)
        row.armed.pop(clock, None)
        row.timers = [due for due in row.timers if due.clock != clock or due.at > timer.at]
        row.primed = False
        if clock != WATERMARK or timer.at < self._expiry_us(row):
            self._arm(address, row)

    def window_of(self, tag: Any) -> Window | None:
        """Return the window of the current key whose timer has a tag; None if it is gone."""
        row = self.windows.get(address_of(tag))
        return None if row is None else row.window

    def _collect(self, address: Address, row: WindowRow) -> None:
        """Forget a window that takes no more elements, having emitted what is pending."""
        if row.pending and 0 not in row.finished:
            self._fire(row, _EXPIRED, over=True)
        if row.armed:
            self._disarm(address, row)
        del self.windows[address]
        if self._window_fn.merges:
            active = self._kept.get()
            active.discard(_active(row.window, address))
            self._kept.set(active)


def _active(window: Window, address: Address) -> Active:
    """Return a window that may merge as the list of those of its key has it."""
    return Active(window.start or 0, end_us(window), cast(int, address))


_encode = msgspec.msgpack.Encoder().encode
_pack = struct.Struct(">qq").pack
