"""What is pending in a key interval: timers, holds, chunks, delivered ids, from its rows.

Windows of groupings that are kept key by key: what a row of one says, by the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from millrace.compile.change.schemas import Schema
from millrace.compile.state_values import Encoded, plain_reader, reader
from millrace.dataflow.grouping.window_state import WindowRow
from millrace.kernel import families, row_codec, timer_families
from millrace.model.keys import decode_key
from millrace.model.record import TimeDomain
from millrace.store import View


class PendingTimer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer that has not fired. All times in microseconds.

    Attributes:
        key: Whose.
        tag: Its tag.
        at: When it fires.
        domain: ``LOW_WATERMARK`` or ``WALL_TIME``.
        percentile: Of the low watermark that it waits for; 100 is the low watermark itself.
        hold: Where it holds the low watermark, if not at its own time; None otherwise.
    """

    key: Any
    tag: Any
    at: int
    domain: str
    percentile: int
    hold: int | None

    @classmethod
    def of(cls, row: timer_families.TimerRow) -> PendingTimer:
        """Return the timer that a row tells of."""
        at_us, hold_us, percentile = row.setting
        return cls(
            key=decode_key(row.key),
            tag=_tag(row.tag),
            at=at_us,
            domain=TimeDomain(row.domain).name,
            percentile=percentile,
            hold=hold_us,
        )


class PendingHold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold of a key or of one of its timers.

    Attributes:
        key: Whose.
        at: Where it holds the low watermark, in microseconds.
        timer: The timer with which it is let go; None for a hold of the key.
    """

    key: Any
    at: int
    timer: PendingTimer | None


class PendingChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a grouping that is kept as columns has to do at an instant, for all keys of an interval.

    Attributes:
        at: When it is wanted, in microseconds: for windows, their end.
        commit: Number of the commit that left it.
        bytes: Its size.
    """

    at: int
    commit: int
    bytes: int


class DeliveredIds(msgspec.Struct, frozen=True, kw_only=True):
    """Source ids of delivered records that one commit added and that are forgotten together.

    Attributes:
        commit: Number of the commit.
        expires: The low watermark at which they are forgotten, in microseconds.
        count: How many.
    """

    commit: int
    expires: int
    count: int


def timers(view: View) -> Iterator[PendingTimer]:
    """Yield the timers of an interval: by clock, then in the order in which they fire."""
    for entry in row_codec.scan(view, timer_families.TIMERS):
        yield PendingTimer.of(timer_families.TimerRow.unpack(*entry))


def timers_of(view: View, key_row: bytes) -> Iterator[PendingTimer]:
    """Yield the timers of one key, by domain and tag."""
    for entry in row_codec.scan(view, timer_families.TIMER_BY_TAG + key_row):
        by_time = timer_families.TagRow.unpack(*entry).timer_row()
        yield PendingTimer.of(timer_families.TimerRow.unpack(by_time, view.get(by_time) or b""))


def holds(view: View) -> Iterator[PendingHold]:
    """Yield the holds of an interval, oldest first."""
    for entry in row_codec.scan(view, timer_families.HOLDS):
        yield hold_of(timer_families.HoldRow.unpack(*entry), view.get)


def holds_of(view: View, key_row: bytes) -> Iterator[PendingHold]:
    """Yield the hold of one key, if it has one, and those of its timers, by domain and tag."""
    by_key = timer_families.HOLD_BY_KEY + key_row
    if (entry := view.get(by_key)) is not None:
        by_time = timer_families.KeyHoldRow.unpack(by_key, entry).hold_row()
        yield hold_of(timer_families.HoldRow.unpack(by_time, view.get(by_time) or b""), view.get)
    for timer in timers_of(view, key_row):
        if timer.hold is not None:
            yield PendingHold(key=timer.key, at=timer.hold, timer=timer)


def hold_of(row: timer_families.HoldRow, get: Callable[[bytes], bytes | None]) -> PendingHold:
    """Return the hold that a row tells of; ``get`` finds the rows of the timer that holds.

    A timer's rows are put, and kept, together.
    """
    timer = None
    by_tag = row.tag_row()
    if by_tag is not None:
        by_time = timer_families.TagRow.unpack(by_tag, get(by_tag) or b"").timer_row()
        timer = PendingTimer.of(timer_families.TimerRow.unpack(by_time, get(by_time) or b""))
    return PendingHold(key=decode_key(row.key), at=row.at_us, timer=timer)


def chunks(view: View) -> Iterator[PendingChunk]:
    """Yield the chunks of an interval, the one that is wanted first in front."""
    for entry in row_codec.scan(view, families.CHUNKS):
        row = families.ChunkRow.unpack(*entry)
        yield PendingChunk(at=row.at_us, commit=row.number, bytes=len(row.data))


def delivered_ids(view: View) -> Iterator[DeliveredIds]:
    """Yield what is kept of delivered ids, by commit."""
    for entry in row_codec.scan(view, families.IDS_BY_COMMIT):
        row = families.IdBatchRow.unpack(*entry)
        count = len(row.entries) // families.ENTRY_BYTES
        yield DeliveredIds(commit=row.number, expires=row.expires_us, count=count)


#: The tag of the timer that holds the low watermark for a pending call.
CALL: Final = "(a call)"


def _tag(tag: bytes) -> Any:
    """Return a timer's tag; of one by which a cell expires, words."""
    if timer_families.waiting_in(tag) is not None:
        return "(a record that waits)"
    if timer_families.is_call(tag):
        return CALL
    return "(expiry)" if timer_families.expiry_of(tag) is not None else decode_key(tag)


#: What :class:`~millrace.dataflow.grouping.window_state.RowCoder` calls itself.
_ROWS: Final = "window"
_decode = msgspec.msgpack.Decoder(WindowRow).decode


class WindowState(msgspec.Struct, frozen=True, kw_only=True):
    """What a grouping keeps of one window of one key. All times in microseconds.

    Attributes:
        start: Of the window; None if it has no start.
        end: Of the window; None if it has no end.
        size: Elements in the accumulator, retracted ones taken off.
        pending: Elements since the last pane.
        panes: How many panes were emitted.
        accumulator: What is aggregated so far, as the aggregation keeps it.
    """

    start: int | None
    end: int | None
    size: int
    pending: int
    panes: int
    accumulator: Any


def cell_reader(schema: Schema) -> Callable[[bytes], Any]:
    """Return what makes values of a cell from bytes: as other formats, or windows of a grouping."""
    if schema["coder"] != _ROWS or "accumulator" not in schema:
        return reader(schema)
    accumulator = schema["accumulator"]["format"]
    plain = plain_reader(accumulator)
    opaque = reader(accumulator)

    def read(data: bytes) -> Any:
        try:
            row = _decode(data)
        except msgspec.ValidationError:
            return Encoded(_ROWS, data)  # by a coder of the user's own with that name
        # What has a coder of its own stands in the row as its bytes.
        accumulator = plain(row.accumulator) if plain is not None else opaque(row.accumulator)
        return WindowState(
            start=row.window.start,
            end=row.window.end,
            size=row.size,
            pending=row.pending,
            panes=row.panes,
            accumulator=accumulator,
        )

    return read
