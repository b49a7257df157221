"""GroupByKeyAndWindow: the one computation that windows, triggers and aggregations compile to.

It is user space: state cells and timers, nothing else. The patent's five parts are here: elements'
timestamps are dropped for windows; the key is the computation's; windows of the key merge; values
are folded by window; panes leave with timestamps of their windows.

Source: Dataflow patent, "GroupByKeyAndWindow", FIG. 5; "Triggers API 400".
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from millrace.dataflow.aggregations import CombineFn
from millrace.dataflow.blame import blame
from millrace.dataflow.formats import field_type, picker, plain_format
from millrace.dataflow.merging import Active, ActiveCoder, Merging
from millrace.dataflow.partial import Partial
from millrace.dataflow.strategy import AccumulationMode, OutputTime, Windowing
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.tree import Fire
from millrace.dataflow.triggers.watermark_only import runner
from millrace.dataflow.window_row import Armed, Retractable, RowCoder, RowTimer, WindowRow
from millrace.dataflow.windows.window_fn import assignment, end_us
from millrace.model.coder import Coder, coder_for
from millrace.model.computation import Computation
from millrace.model.derived import DerivedFormat
from millrace.model.pane import Pane, PanedCoder, Timing, Window
from millrace.model.record import LOW_WATERMARK, WALL_TIME, Record, TimeDomain, Timer
from millrace.model.state import MapState, ValueState
from millrace.model.stream import KeyExtractor
from millrace.model.time import (
    LATEST_RECORD,
    MAX_TIMESTAMP,
    UNBOUNDED_PAST,
)

#: Numbers of clocks in a row: the low watermark, the wall clock, and from 100 on percentiles.
_WATERMARK, _WALL, _PERCENTILES = 0, 1, 100

#: Where a window is kept among the rows of its key, and the tag of its timers.
Address = bytes | int

#: A window's row, and the rows that have just merged into it.
_Found = tuple[Address, WindowRow, Sequence[WindowRow]]

_EXPIRED = Fire(FireMode.DEFAULT, "end of allowed lateness")


class GroupByKeyAndWindow(Computation):
    """Folds the values of each key and window, and emits panes.

    Args:
        inputs: Input stream -> key extractor.
        windowing: Where, when and how.
        combine: What.
        value: The value to aggregate: a column name, a function of the element, or None: itself.
        output: Output stream.
        format: Its record format; by default as the aggregation says.

    Counters of its own: ``dropped_late`` (elements whose window had expired),
    ``dropped_after_finish`` (elements whose window's trigger was done), ``lifted`` (elements that
    senders had combined).
    """

    # A late pane is the answer to late records; a retraction is as old as what it takes back.
    may_produce_late = UNBOUNDED_PAST

    def __init__(
        self,
        inputs: Mapping[str, KeyExtractor],
        windowing: Windowing,
        combine: CombineFn,
        value: str | Callable[[Any], Any] | None,
        output: str,
        format: Any = Any,
    ) -> None:
        self.inputs = inputs  # type: ignore[misc]  # of this instance
        self.output = output
        self.windowing = windowing
        self.combine = combine
        self.value = value
        self.format = format
        self._retracting = windowing.mode is AccumulationMode.ACCUMULATING_AND_RETRACTING
        self._discarding = windowing.mode is AccumulationMode.DISCARDING
        self._lateness_us = windowing.allowed_lateness_us
        self._at_end = windowing.output_time is OutputTime.END_OF_WINDOW
        self._window_fn = windowing.window_fn
        self._tree = runner(windowing.trigger)
        self.percentiles = windowing.trigger.percentiles  # type: ignore[misc]
        self._assign = assignment(self._window_fn)
        self._pick = picker(value)
        self._result_coder: Coder = coder_for(Any)
        self.outputs = {output: DerivedFormat(tuple(inputs), self._derive)}  # type: ignore[misc]
        self.windows: MapState[WindowRow] = MapState(RowCoder(Any))
        if self._window_fn.merges:
            self.active: ValueState[tuple[Active, ...]] = ValueState(ActiveCoder())
            self._merging = Merging(self._window_fn)

    def renamed(self, output: str, format: Any) -> GroupByKeyAndWindow:
        """Return the same with another name for its output, and a format unless that is Any."""
        return GroupByKeyAndWindow(
            self.inputs, self.windowing, self.combine, self.value, output, format
        )

    # -- building ----------------------------------------------------------------------------------

    def kind_of(self, formats: Sequence[Any]) -> Any:
        """Return the type of what is aggregated, for the inputs' formats."""
        return field_type(plain_format(formats[0]), self.value)

    def _derive(self, *formats: Any) -> PanedCoder:
        """Return the output's format for the inputs'."""
        kind = self.kind_of(formats)
        result = self.combine.result_type(kind) if self.format is Any else self.format
        return PanedCoder(result, retracts=self._retracting)

    def typed(self, coders: Sequence[Coder], combine: CombineFn, *, ends: bool) -> Self:
        """Return the same with state of the right types for its inputs.

        Args:
            coders: Of the inputs, in order.
            combine: What to fold by, for what the inputs carry.
            ends: Whether every window must end.
        """
        typed = copy.copy(self)
        typed.combine = combine
        typed._assign = assignment(self._window_fn, ends=ends)
        kind = self.kind_of(coders)
        typed._pick = picker(self.value, plain_format(coders[0]))
        users = not type(self.combine).__module__.startswith("millrace.")
        typed.windows = MapState(RowCoder(combine.accumulator_type(kind), checked=users))
        output = typed._derive(*coders)
        typed.outputs = {self.output: output}  # type: ignore[misc]  # of this instance
        typed._result_coder = output.inner
        return typed

    # -- elements ----------------------------------------------------------------------------------

    def process_record(self, record: Record) -> None:
        """Add an element, or a partial, to its windows."""
        if type(record.value) is Partial:
            self._add_partial(record, record.value)
            return
        value = self._pick(record.value)
        pane = record.pane
        retraction = pane is not None and pane.retraction
        for window in self._assign(record):
            try:
                found = self._row_for(window, 1)
                if found is None:
                    continue
                address, row, merged = found
                if retraction:
                    row.accumulator = self.combine.uncombine(row.accumulator, value)
                    row.size -= 1
                else:
                    row.accumulator = self.combine.add(row.accumulator, value)
                    row.size += 1
                size = len(_encode(value)) if self._tree.needs_bytes else 0
                at_us = record.timestamp
                self._added(address, row, merged, value, 1, size, at_us, at_us, at_us)
            except Exception as error:
                blame(error, self._whole(window))
                raise

    def _add_partial(self, record: Record, partial: Partial) -> None:
        self.increment("lifted", partial.elements)
        windows = self._assign(record) if partial.window is None else (partial.window,)
        for window in windows:
            try:
                found = self._row_for(window, partial.elements)
                if found is None:
                    continue
                address, row, merged = found
                row.accumulator = self.combine.merge(row.accumulator, partial.accumulator)
                row.size += partial.elements - 2 * partial.retracted
                self._added(
                    address, row, merged, None, partial.elements, partial.bytes, record.timestamp,
                    partial.earliest, partial.latest,
                )  # fmt: skip
            except Exception as error:
                blame(error, self._whole(window))
                raise

    def _whole(self, window: Window) -> Window:
        """Return the window of the key that an element's window has become part of."""
        if self._window_fn.merges:
            for start, end, _ in self.active.get(()):
                if window.start is not None and start <= window.start and end_us(window) <= end:
                    return Window(start, end)
        return window

    def _row_for(self, window: Window, elements: int) -> _Found | None:
        """Return the row that elements of a window go to; None if it takes no more."""
        found = self._merged_in(window) if self._window_fn.merges else self._found(window)
        if found is None:
            self.increment("dropped_late", elements)
        elif 0 in found[1].finished:
            self.increment("dropped_after_finish", elements)
            return None
        return found

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
        active = list(self.active.get(()))
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
            address = max((known.address for known in active), default=-1) + 1
            self._activate(active, whole, address)
            row = self.windows[address] = WindowRow(whole, accumulator=self.combine.create())
            return address, row, ()
        if len(old) == 1 and (old[0].start, old[0].end) == (whole.start, whole.end):
            return old[0].address, self.windows[old[0].address], ()
        return self._merge(active, whole, old)

    def _activate(self, active: list[Active], whole: Window, address: int) -> None:
        """Note a window among those of the key that still count."""
        active.append(Active(whole.start or 0, end_us(whole), address))
        active.sort()
        self.active.set(tuple(active))

    def _merge(self, active: list[Active], whole: Window, old: list[Active]) -> _Found:
        """Make one row, under the address of the first, of those of several windows, by start."""
        addresses = [known.address for known in old]
        active[:] = [known for known in active if known not in old]
        self._activate(active, whole, addresses[0])
        rows: list[WindowRow] = [self.windows[address] for address in addresses]
        first = rows[0]
        row = WindowRow(
            whole,
            size=sum(row.size for row in rows),
            pending=sum(row.pending for row in rows),
            late=sum(row.late for row in rows),
            earliest=min(row.earliest for row in rows),
            latest=max(row.latest for row in rows),
            panes=max(row.panes for row in rows),
            on_time=any(row.on_time for row in rows) and self.low_watermark >= end_us(whole),
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

    # -- timers ------------------------------------------------------------------------------------

    def process_timer(self, timer: Timer) -> None:
        """Fire the triggers' timers that are due in a window, and collect it when it expires."""
        address = _address(timer.tag)
        row = self.windows[address]
        clock = self.number(timer.domain, timer.percentile)
        row.armed.pop(clock, None)
        try:
            while row.timers and (due := _due(row.timers, clock, timer.at)) is not None:
                row.timers.remove(due)
                fire = self._tree.on_timer(self, row, due)
                if fire is not None:
                    self._fire(row, fire, over=self._is_over(row))
            if clock == _WATERMARK and self._expiry_us(row) <= timer.at:
                self._collect(address, row)
            else:
                self._arm(address, row)
        except Exception as error:
            blame(error, row.window)
            raise

    def window_of(self, tag: Any) -> Window | None:
        """Return the window of the current key whose timer has a tag; None if it is gone."""
        row = self.windows.get(_address(tag))
        return None if row is None else row.window

    def _is_over(self, row: WindowRow) -> bool:
        """Return whether a window takes no elements of a later bundle."""
        return self.low_watermark >= self._expiry_us(row)

    def _expiry_us(self, row: WindowRow) -> int:
        end = row.window.end
        if end is None:
            return MAX_TIMESTAMP
        expiry_us = end + self._lateness_us
        return expiry_us if expiry_us < MAX_TIMESTAMP else MAX_TIMESTAMP

    def _arm(self, address: Address, row: WindowRow) -> None:
        """Have the kernel wake this window for the earliest of its timers on each clock."""
        earliest_us = self._expiry_us(row)
        others: dict[int, int] = {}
        for timer in row.timers:
            clock, at_us = timer.clock, timer.at
            if clock != _WATERMARK:
                others[clock] = min(at_us, others.get(clock, MAX_TIMESTAMP))
            elif at_us < earliest_us:
                earliest_us = at_us
        armed = row.armed
        hold_us = self._hold_us(row, earliest_us)
        known = armed.get(_WATERMARK)
        if known is None or known.at != earliest_us or known.hold != hold_us:
            armed[_WATERMARK] = Armed(earliest_us, hold_us)
            self.set_timer(address, earliest_us, hold=hold_us)
        for clock, at_us in others.items():
            known = armed.get(clock)
            if known is None or known.at != at_us:
                armed[clock] = Armed(at_us)
                self.set_timer(
                    _tag(address, clock), at_us, _domain(clock), percentile=_percentile(clock)
                )
        if len(armed) > 1 + len(others):
            for clock in armed.keys() - others.keys() - {_WATERMARK}:
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

    def _collect(self, address: Address, row: WindowRow) -> None:
        """Forget a window that takes no more elements, having emitted what is pending."""
        if row.pending and 0 not in row.finished:
            self._fire(row, _EXPIRED, over=True)
        if row.armed:
            self._disarm(address, row)
        del self.windows[address]
        if self._window_fn.merges:
            left = tuple(known for known in self.active.get(()) if known.address != address)
            self.active.set(left or None)

    # -- panes -------------------------------------------------------------------------------------

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

    def _timestamp_us(self, row: WindowRow) -> int:
        """Return the event time that a pane has now."""
        if self.windowing.output_time is OutputTime.EARLIEST:
            return row.earliest
        if self.windowing.output_time is OutputTime.LATEST:
            return row.latest
        if row.window.end is not None:
            return row.window.end - 1
        # The global window has no last instant: its elements', or where the low watermark stands.
        low_watermark_us = self.low_watermark
        return max(row.latest, low_watermark_us if low_watermark_us <= LATEST_RECORD else 0)

    # -- what triggers ask -------------------------------------------------------------------------

    def now(self, domain: TimeDomain) -> int:
        """Return where a clock stands."""
        return self.low_watermark if domain == LOW_WATERMARK else self.wall_time

    def number(self, domain: TimeDomain, percentile: int) -> int:
        """Return the number of a clock."""
        if domain == WALL_TIME:
            return _WALL
        return _WATERMARK if percentile == 100 else _PERCENTILES + percentile

    def timer(self, tag: str, timer: RowTimer) -> Timer:
        """Return a timer as its trigger knows it."""
        return Timer(tag, timer.at, _domain(timer.clock), percentile=_percentile(timer.clock))

    def peek(self, row: WindowRow) -> Any:
        """Return the aggregate of a window."""
        return self.combine.extract(row.accumulator)


_encode = msgspec.msgpack.Encoder().encode
_pack = struct.Struct(">qq").pack


def _domain(clock: int) -> TimeDomain:
    return WALL_TIME if clock == _WALL else LOW_WATERMARK


def _percentile(clock: int) -> int:
    return clock - _PERCENTILES if clock > _PERCENTILES else 100


def _tag(address: Address, clock: int) -> Any:
    """Return the tag of a window's timer; a key's tags must differ within a domain."""
    return (address, _percentile(clock)) if clock > _PERCENTILES else address


def _address(tag: Any) -> Address:
    """Return the window whose timer has a tag."""
    address: Address = tag[0] if type(tag) is tuple else tag
    return address


def _due(timers: list[RowTimer], clock: int, at_us: int) -> RowTimer | None:
    """Return the earliest timer on a clock that is due; of equal ones the outermost trigger's."""
    due = [timer for timer in timers if timer.clock == clock and timer.at <= at_us]
    if len(due) > 1:
        return min(due, key=lambda timer: (timer.at, timer.node, timer.tag))
    return due[0] if due else None
