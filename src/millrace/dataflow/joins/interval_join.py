"""Joins of two streams without windows: by key and nearness in time, or by key alone.

Each side is kept by time, so that a value finds its partners, and what can meet nothing any more is
collected, by ranges of time: it costs what is found. Over values that are not too late the pairs
are exact, however they come.

A value without a partner is paired with None. Where a time is said from which none can come, that
is then, as with windows; where none is said, at once, and the pair is taken back by a retraction
when a partner comes.

Source: docs/design/2026-11-22-joins-without-windows.md; Dataflow patent, "anti-data".
"""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from typing import Any, Final

from millrace.dataflow.element_types import Side, check_keys, plain_format, retracts
from millrace.dataflow.joins.join_state import (
    LEFT,
    RIGHT,
    WEIGHT_MAX,
    Forms,
    InMaps,
    InOneRow,
    JoinRowCodec,
    Kept,
    KeptCoder,
    Nearness,
    RowForm,
    kept_by_time,
)
from millrace.dataflow.joins.window_join import checked_how
from millrace.dataflow.operator import Operator, Refuse
from millrace.model.coder import Coder
from millrace.model.computation import Computation
from millrace.model.declarations import DerivedFormat
from millrace.model.equality import equalities
from millrace.model.errors import RAISED, PipelineError, brief
from millrace.model.pane import Pane, PanedCoder, Window
from millrace.model.record import Record, Timer
from millrace.model.state import MapState, ValueState
from millrace.model.time import LATEST_RECORD, MAX_TIMESTAMP, UNBOUNDED_PAST

#: Tags of timers of a key's maps: for values without a partner, of the left and of the right side;
#: and for those that can be forgotten. And that of a key's row, for all of these.
_ALONE, _GONE, _OF_ROW = (0, 1), (2, 3), 4
_SIDES = LEFT, RIGHT

#: The times of the earliest values that the timers wait for, by tag; None without a timer.
_Awaited = tuple[int | None, int | None, int | None, int | None]
_AWAITS_NOTHING: Final[_Awaited] = (None, None, None, None)


def _awaiting(awaited: _Awaited, tag: int, at_us: int | None) -> _Awaited:
    """Return the same with another time for a tag."""
    first, second, third, fourth = (at_us if n == tag else us for n, us in enumerate(awaited))
    return first, second, third, fourth


class JoinByKeyAndTime(Computation):
    """Pairs the values of two streams by key and nearness in time.

    Counter of its own: ``dropped_late``, of values later than the allowed lateness, whose partners
    may be forgotten.

    Args:
        sides: Left and right: stream and key extractor.
        nearness: Which values meet.
        how: ``inner``, ``left`` or ``outer``; see
            :class:`~millrace.dataflow.joins.window_join.Pairs`.
        output: Output stream, of pairs.

    Attributes:
        row_weight: What a key's row may weigh before its values go into maps.
    """

    # A retraction is as old as what it takes back.
    may_produce_late = UNBOUNDED_PAST
    row_weight = WEIGHT_MAX

    def __init__(self, sides: tuple[Side, Side], nearness: Nearness, how: str, output: str) -> None:
        self.inputs = dict(sides)  # type: ignore[misc]  # of this instance
        self.output = output
        self.nearness = nearness
        self.how = checked_how(how)
        self.outputs = {output: DerivedFormat(tuple(self.inputs), self._derive)}  # type: ignore[misc]
        self._sides = {stream: side for side, (stream, _) in enumerate(sides)}
        self._pairs_with_none = how != "inner", self.how == "outer"
        self._offsets = nearness.offsets(LEFT), nearness.offsets(RIGHT)
        # What is itself not too late may still be taken back, whatever it can meet.
        self._kept_us = tuple(None if end is None else max(end, 1) for _, end in self._offsets)
        # What waits for the end of time holds the low watermark, each side for itself: in maps.
        self._in_rows = nearness.at_once or not any(
            lonely and end is None
            for lonely, (_, end) in zip(self._pairs_with_none, self._offsets, strict=True)
        )
        self._counts = self._panes = False
        self.refuse: Refuse
        self._forms: tuple[Forms, ...] = ()
        self._row_forms: tuple[RowForm, ...] = ()
        self.left: MapState[list[Kept]] = MapState(list)
        self.right: MapState[list[Kept]] = MapState(list)
        self.awaited: ValueState[_Awaited] = ValueState(KeptCoder(_Awaited))
        self.few: ValueState[InOneRow] = ValueState(JoinRowCodec(Any, Any))

    def _derive(self, *formats: Any) -> Any:
        """Return the output's format for the inputs'."""
        kinds = [plain_format(format) for format in formats]
        for side in (LEFT, RIGHT):
            if self._pairs_with_none[1 - side] and kinds[side] is not Any:
                kinds[side] = kinds[side] | None
        pair: Any = types.GenericAlias(tuple, tuple(kinds))
        return PanedCoder(pair, retracts=True) if self.takes_back(*formats) else pair

    def takes_back(self, *formats: Any) -> bool:
        """Return whether there may be retractions among the pairs."""
        soon = self.nearness.at_once or self.nearness.lateness_us > 0
        return (soon and self.how != "inner") or any(map(retracts, formats))

    def typed(self, formats: Mapping[str, Coder]) -> JoinByKeyAndTime:
        """Return the same with state of the right types for its inputs."""
        typed = copy.copy(self)
        coders = [formats[stream] for stream in self.inputs]
        typed.left, left = kept_by_time(coders[LEFT], int, bool)
        typed.right, right = kept_by_time(coders[RIGHT], int, bool)
        typed._forms = left, right
        typed._row_forms = tuple(map(RowForm, coders))
        typed.few = ValueState(JoinRowCodec(*(form.kind for form in typed._row_forms)))
        typed._counts = any(map(retracts, coders))
        typed._panes = self.takes_back(*coders)
        typed.outputs = {self.output: self._derive(*coders)}  # type: ignore[misc]
        return typed

    # -- values ------------------------------------------------------------------------------------

    def process_record(self, record: Record) -> None:
        """Pair a value with the stored ones of the other side and store it; or retract it."""
        side, at_us, pane = self._sides[record.stream], record.timestamp, record.pane
        too_late = at_us < self.low_watermark - self.nearness.lateness_us
        if too_late and self._offsets[1 - side][1] is not None:
            self.increment("dropped_late")
        elif pane is not None and pane.retraction:
            self._take_back(side, record.value, at_us)
        else:
            self._add(side, record.value, at_us)

    def _add(self, side: int, value: Any, at_us: int) -> None:
        kept_values = self._kept()
        row = kept_values if isinstance(kept_values, InOneRow) else None
        other, lonely = 1 - side, self._pairs_with_none
        unpack = self._forms[other][1] if row is None else self._row_forms[other].unpack
        met = 0
        for entry_us in kept_values.times(other, *self._partners(side, at_us)):
            kept, changed = kept_values.at(other, entry_us), False
            for n, (packed, count, alone) in enumerate(kept):
                partner = unpack(packed)
                if alone:
                    self._send_alone(other, partner, entry_us, retraction=True)
                self._send_pair(side, value, at_us, partner, entry_us)
                met += 1
                if lonely[other] and (self._counts or not count):
                    if not changed:
                        kept, changed = list(kept), True
                    kept[n] = packed, count + 1, False  # type: ignore[index]  # it is a list now
            if changed:
                kept_values.put(other, entry_us, kept)  # type: ignore[arg-type]  # likewise
        alone = lonely[side] and not met and self._is_over(side, at_us)
        if alone:
            self._send_alone(side, value, at_us)
        gone_us = self._gone_us(side, at_us)
        if gone_us is not None and gone_us <= self.low_watermark:
            return  # All that it could meet has come, or would come too late.
        waits = lonely[side] and not alone and not self.nearness.at_once
        if row is not None:
            row.add(side, at_us, (self._row_forms[side].pack(value), met, alone))
            if row.weight > self.row_weight:
                self._to_maps(row)
                return
            if self.few.get() is not row:
                self.few.set(row)
            self._look_again(row, self._over_us(side, at_us) if waits else gone_us)
            return
        kept_values.add(side, at_us, (self._forms[side][0](value), met, alone))
        if gone_us is not None:
            self._await(_GONE[side], at_us, gone_us)
        if waits:
            self._await(_ALONE[side], at_us, self._over_us(side, at_us))

    def _take_back(self, side: int, value: Any, at_us: int) -> None:
        """Take a value back, and its pairs."""
        kept_values, other = self._kept(), 1 - side
        row = kept_values if isinstance(kept_values, InOneRow) else None
        position = self._find(kept_values, side, value, at_us)
        if position is None:
            if (
                gone_us := self._gone_us(side, at_us)
            ) is not None and gone_us <= self.low_watermark:
                self.increment("dropped_late")
                return
            raise PipelineError(
                f"{self.output} was to take {brief(value)} back, which is not among the values of "
                "its key. A retraction must meet the value that it takes back. Was the key or the "
                "value made by a step or a computation that does not return the same for the same?"
            )
        at_us, place = position
        if kept_values.at(side, at_us)[place][2]:
            self._send_alone(side, value, at_us, retraction=True)
        kept_values.remove(side, at_us, place)
        unpack = self._forms[other][1] if row is None else self._row_forms[other].unpack
        for entry_us in kept_values.times(other, *self._partners(side, at_us)):
            partners = list(kept_values.at(other, entry_us))
            for n, (packed, count, _) in enumerate(partners):
                partner = unpack(packed)
                self._send_pair(side, value, at_us, partner, entry_us, retraction=True)
                if self._pairs_with_none[other]:
                    alone = count == 1 and self._is_over(other, entry_us)
                    if alone:
                        self._send_alone(other, partner, entry_us)
                    partners[n] = packed, count - 1, alone
            if self._pairs_with_none[other]:
                kept_values.put(other, entry_us, partners)
        if row is not None and row.is_empty:
            self._forget(row)

    def _find(
        self, kept_values: InOneRow | InMaps, side: int, value: Any, at_us: int
    ) -> tuple[int, int] | None:
        """Return where an equal value is kept: time and place; by the same time if there is one."""
        in_row = isinstance(kept_values, InOneRow)
        unpack = self._row_forms[side].unpack if in_row else self._forms[side][1]
        for is_equal in equalities(value):
            for entry_us in (at_us, *kept_values.times(side, None, None)):
                for place, (packed, _, _) in enumerate(kept_values.at(side, entry_us)):
                    if is_equal(unpack(packed)):
                        return entry_us, place
        return None

    # -- where they are ----------------------------------------------------------------------------

    def _kept(self) -> InOneRow | InMaps:
        """Return what is kept of the key."""
        row: InOneRow | None = self.few.get()
        if row is not None:
            return row
        # Without an end, no timer says that there is something in the maps.
        lasting = None in self._kept_us
        if not self._in_rows or self.awaited.get() is not None or (lasting and self._have_maps()):
            return InMaps(self.left, self.right)
        return InOneRow({}, {})

    def _have_maps(self) -> bool:
        return any(next(iter(cell), None) is not None for cell in (self.left, self.right))

    def _to_maps(self, row: InOneRow) -> None:
        """Keep a key's values in maps from now on: there are too many for a row."""
        maps = InMaps(self.left, self.right)
        for side in _SIDES:
            in_map = self._row_forms[side].in_map
            for at_us, kept in sorted(row.side(side).items()):
                maps.put(side, at_us, [(in_map(raw), count, out) for raw, count, out in kept])
                if (gone_us := self._gone_us(side, at_us)) is not None:
                    self._await(_GONE[side], at_us, gone_us)
                if self._pairs_with_none[side] and not self._is_over(side, at_us):
                    self._await(_ALONE[side], at_us, self._over_us(side, at_us))
        self._forget(row)

    def _forget(self, row: InOneRow) -> None:
        """Remove a key's row: there is nothing in it any more, or it is elsewhere."""
        self.few.clear()
        if row.due_us is not None:
            self.delete_timer(_OF_ROW)

    # -- time --------------------------------------------------------------------------------------

    def process_timer(self, timer: Timer) -> None:
        """Pair those with None that nothing can meet any more; forget those past all lateness."""
        if timer.tag != _OF_ROW:
            self._look_into_map(timer.tag)
        elif (row := self.few.get()) is not None:
            self._look_into_row(row)

    def _look_into_row(self, row: InOneRow) -> None:
        """Do to a row what is due by now; have it looked at when more is."""
        low_watermark = self.low_watermark
        row.due_us, due = None, []
        for side in sorted(_SIDES, key=lambda side: min(row.side(side), default=MAX_TIMESTAMP)):
            unpack = self._row_forms[side].unpack
            waits = self._pairs_with_none[side] and not self.nearness.at_once
            for at_us in row.times(side, None, None):
                if waits:
                    if low_watermark < (over_us := self._over_us(side, at_us)):
                        due.append(over_us)
                        continue
                    kept = row.at(side, at_us)
                    for raw, count, out in kept:
                        if not count and not out:
                            self._answer_alone(side, unpack(raw), at_us)
                    row.put(side, at_us, [(raw, count, not count) for raw, count, _ in kept])
                gone_us = self._gone_us(side, at_us)
                if gone_us is not None and gone_us <= low_watermark:
                    row.remove(side, at_us)
                elif gone_us is not None:
                    due.append(gone_us)
        if row.is_empty:
            self.few.clear()
        else:
            self._look_again(row, min(due, default=None))

    def _look_again(self, row: InOneRow, due_us: int | None) -> None:
        """Have a row looked at, at the latest then."""
        if due_us is not None and (row.due_us is None or due_us < row.due_us):
            row.due_us = due_us
            self.set_timer(_OF_ROW, due_us)

    def _look_into_map(self, tag: int) -> None:
        """Do to a map what is due by now; have it looked at when more is."""
        side, alone = tag % 2, tag in _ALONE
        wait_us = self._offsets[side][1] if alone else self._wait_us(side)
        # Those before it, and no others, have waited so long.
        stop_us = None if wait_us is None else self.low_watermark - wait_us + 1
        own, (_, unpack) = self.right if side else self.left, self._forms[side]
        awaited = self.awaited.get(_AWAITS_NOTHING)
        for at_us in list(own.between(awaited[tag], stop_us)):
            if self._pairs_with_none[side]:
                kept = own[at_us]
                # Also when it is gone: where the clock jumps, that timer may be the first.
                for packed, count, out in kept:
                    if not count and not out:
                        self._answer_alone(side, unpack(packed), at_us)
                if alone:
                    own[at_us] = [(packed, count, not count) for packed, count, _ in kept]
            if not alone:
                del own[at_us]
        next_us = None if stop_us is None else next(own.between(stop_us), None)
        awaited = _awaiting(awaited, tag, next_us)
        self.awaited.set(None if awaited == _AWAITS_NOTHING else awaited)
        if wait_us is not None and next_us is not None:
            self.set_timer(tag, next_us + wait_us)

    def _await(self, tag: int, at_us: int, timer_us: int) -> None:
        """Have a value in a map looked at when its time has come."""
        awaited = self.awaited.get(_AWAITS_NOTHING)
        earliest_us = awaited[tag]
        if earliest_us is None or at_us < earliest_us:
            self.awaited.set(_awaiting(awaited, tag, at_us))
            # Where there is no such time but the end, the low watermark waits for what it is about.
            self.set_timer(tag, timer_us, hold=at_us if timer_us == MAX_TIMESTAMP else None)

    def _over_us(self, side: int, at_us: int) -> int:
        """Return when a value on time can meet nothing more that is on time."""
        end = self._offsets[side][1]
        return MAX_TIMESTAMP if end is None else at_us + end

    def _gone_us(self, side: int, at_us: int) -> int | None:
        """Return when a value can meet nothing more at all; None: never."""
        wait_us = self._wait_us(side)
        return None if wait_us is None else at_us + wait_us

    def _wait_us(self, side: int) -> int | None:
        """Return for how long the low watermark must have passed a value until it is gone."""
        kept_us = self._kept_us[side]
        return None if kept_us is None else kept_us + self.nearness.lateness_us

    def _is_over(self, side: int, at_us: int) -> bool:
        return self.nearness.at_once or self.low_watermark >= self._over_us(side, at_us)

    def _partners(self, side: int, at_us: int) -> tuple[int | None, int | None]:
        """Return from when to before when those of the other side are that meet one of this."""
        first, end = self._offsets[side]
        return None if first is None else at_us + first, None if end is None else at_us + end

    # -- pairs -------------------------------------------------------------------------------------

    def _send_pair(
        self,
        side: int,
        value: Any,
        at_us: int,
        partner: Any,
        partner_us: int,
        *,
        retraction: bool = False,
    ) -> None:
        """Produce a pair, with the time of the later one."""
        pair = (partner, value) if side else (value, partner)
        self._send(pair, max(at_us, partner_us), retraction=retraction)

    def _send_alone(self, side: int, value: Any, at_us: int, *, retraction: bool = False) -> None:
        """Produce a value paired with None, with the last instant at which it could meet one."""
        end = self._offsets[side][1]
        if not self.nearness.at_once and end is not None:
            at_us = min(max(at_us, at_us + end - 1), LATEST_RECORD)
        self._send((None, value) if side else (value, None), at_us, retraction=retraction)

    def _answer_alone(self, side: int, value: Any, at_us: int) -> None:
        """Produce one of the values that a timer pairs with None."""
        try:
            self._send_alone(side, value, at_us)
        except RAISED as error:
            self.refuse(error, value, at_us)

    def _send(self, pair: tuple[Any, Any], at_us: int, *, retraction: bool) -> None:
        if self._panes:
            pane = Pane(Window(), retraction=retraction, production_time=self.wall_time)
            self.produce(self.output, pair, at_us, pane=pane)
        else:
            self.produce(self.output, pair, at_us)


class TimeJoinOperator(Operator):
    """The operator of :class:`JoinByKeyAndTime`."""

    def __init__(self, join: JoinByKeyAndTime) -> None:
        super().__init__(join)
        self._join = join

    def set_refuse(self, refuse: Refuse) -> None:
        """Have single values without a partner refused."""
        self._join.refuse = refuse

    def settings(self) -> dict[str, str]:
        """Return what is kept depends on."""
        join = self._join
        return {"join": join.how, "near": str(join.nearness)}

    def sides(self) -> tuple[str, ...]:
        """Return left and right."""
        return tuple(self._join.inputs)

    def described(self) -> list[str]:
        """Return which values meet, and when those without a partner are out."""
        join = self._join
        when = "at once" if join.nearness.at_once else "when none can come"
        lines = [f"join   {join.how}, {join.nearness}"]
        return lines if join.how == "inner" else [*lines, f"alone  paired with None {when}"]

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> JoinByKeyAndTime:
        """Return the join with state of the right types for its inputs."""
        join = self._join
        near = join.nearness
        if unbounded and not near.at_once and None in (near.first_us, near.end_us):
            raise PipelineError(
                f"the join {join.output!r} has an unbounded interval, {near}, over an unbounded "
                "stream: its state would never expire, and a value without a partner would never "
                "be reported. Give within= two times, or leave it out for a join without a time "
                "limit."
            )
        check_keys(join.output, join.inputs, formats)
        return join.typed(formats)
