"""State of a join without windows: the values of one key, of both sides, by their time.

Most keys have few values at a time: these are in one row, which is read and written whole, with one
timer. A key with many values has a map for each side, with one row for each time; a value then
reads only the rows that it may be paired with. A key changes from the row to the maps when the row
would be too long, and back when the maps are empty. Lists of values are replaced, never changed in
place.

The *nearness* says which values of two sides are paired, by the difference of their times:
``first <= right - left < end``.

Source: docs/design/2026-11-22-joins-without-windows.md.
"""

from __future__ import annotations

import datetime as dt
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from millrace.dataflow.element_types import itself
from millrace.dataflow.value import positive_us
from millrace.model.coder import Coder, JsonCoder, MsgpackCoder
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.state import MapState
from millrace.model.time import MAX_TIMESTAMP, Duration, duration_literal, duration_us


class KeptCoder(MsgpackCoder):
    """msgpack of what was checked when it came by its stream, and is not changed in place."""

    __slots__ = ()

    immutable = True

    def encode(self, value: Any) -> bytes:
        """Return the value as msgpack."""
        return self._encode(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptCoder, (self.type,)


#: What a value is kept as, and how it is read from that.
Forms = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def plain_coder(coder: Coder) -> Coder:
    """Return the coder of a stream's values without their panes."""
    return coder.inner if isinstance(coder, PanedCoder) else coder


def kept_as(coder: Coder) -> tuple[Any, Forms]:
    """Return the type of what a stream's value is kept as, and the forms of a value there.

    A value of a coder of the user's own is kept as the bytes of that.
    """
    plain = plain_coder(coder)
    if isinstance(plain, MsgpackCoder | JsonCoder):
        return plain.type, (itself, itself)
    return bytes, (plain.encode, plain.decode)


def kept_by_time(coder: Coder, *more: Any) -> tuple[MapState[Any], Forms]:
    """Return a cell for lists of a stream's values by time, and the forms of a value there.

    Args:
        coder: Of the stream.
        more: Types of what is kept beside each value.
    """
    kind, forms = kept_as(coder)
    item = types.GenericAlias(tuple, (kind, *more))
    return MapState(KeptCoder(types.GenericAlias(list, (item,)))), forms


#: A value as it is kept, how many partners it has met, and whether it is out paired with None.
#: Partners are only counted on where something may be taken back; else 1 is some.
Kept = tuple[Any, int, bool]

#: What a row may weigh: the bytes of its values, and so many more for each.
WEIGHT_MAX = 1_024
_MORE = 48


class RowForm:
    """How values of a stream are kept in a key's row: as msgpack, so that what meets is read."""

    __slots__ = ("_coder", "_encode", "_of_map", "_to_map", "in_map", "kind")

    def __init__(self, coder: Coder) -> None:
        self._coder = coder
        self.kind, (self._to_map, self._of_map) = kept_as(coder)
        self._encode = msgspec.msgpack.Encoder().encode
        #: Returns what a map has of what a row has.
        self.in_map: Callable[[Raw], Any] = msgspec.msgpack.Decoder(self.kind).decode

    def pack(self, value: Any) -> Raw:
        """Return a value as a row has it."""
        return Raw(self._encode(self._to_map(value)))

    def unpack(self, raw: Raw) -> Any:
        """Return the value."""
        return self._of_map(self.in_map(raw))

    def __reduce__(self) -> tuple[Any, ...]:
        return RowForm, (self._coder,)


class InOneRow(msgspec.Struct, array_like=True):
    """The values of a key that has few.

    Attributes:
        left: Time -> what is kept of that time.
        right: Likewise.
        weight: See ``WEIGHT_MAX``.
        due_us: When something is to be done with one of them; None if never.
    """

    left: dict[int, list[tuple[Raw, int, bool]]]
    right: dict[int, list[tuple[Raw, int, bool]]]
    weight: int = 0
    due_us: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.left and not self.right

    def side(self, side: int) -> dict[int, list[tuple[Raw, int, bool]]]:
        """Return the values of a side."""
        return self.right if side == RIGHT else self.left

    def times(self, side: int, start_us: int | None, stop_us: int | None) -> list[int]:
        """Return the times of the values of a side from an instant to before another, in order."""
        return sorted(
            at_us
            for at_us in (self.right if side else self.left)
            if (start_us is None or at_us >= start_us) and (stop_us is None or at_us < stop_us)
        )

    def at(self, side: int, at_us: int) -> Sequence[Kept]:
        """Return what is kept of a time."""
        return (self.right if side else self.left).get(at_us, ())

    def put(self, side: int, at_us: int, kept: list[Kept]) -> None:
        """Replace what is kept of a time, by as many."""
        (self.right if side else self.left)[at_us] = kept

    def add(self, side: int, at_us: int, kept: Kept) -> None:
        """Keep one more."""
        (self.right if side else self.left).setdefault(at_us, []).append(kept)
        self.weight += len(kept[0]) + _MORE

    def remove(self, side: int, at_us: int, place: int | None = None) -> None:
        """Forget one of a time; or all."""
        kept = self.side(side)
        gone = kept[at_us] if place is None else [kept[at_us].pop(place)]
        self.weight -= sum(len(raw) + _MORE for raw, _, _ in gone)
        if place is None or not kept[at_us]:
            del kept[at_us]


class InMaps:
    """The values of a key that has, or had, many."""

    __slots__ = ("_cells",)

    def __init__(self, *cells: MapState[list[Kept]]) -> None:
        self._cells = cells

    def times(self, side: int, start_us: int | None, stop_us: int | None) -> list[int]:
        """Return the times of the values of a side from an instant to before another, in order."""
        return list(self._cells[side].between(start_us, stop_us))

    def at(self, side: int, at_us: int) -> Sequence[Kept]:
        """Return what is kept of a time."""
        return self._cells[side].get(at_us, ())

    def put(self, side: int, at_us: int, kept: list[Kept]) -> None:
        """Replace what is kept of a time, by as many."""
        self._cells[side][at_us] = kept

    def add(self, side: int, at_us: int, kept: Kept) -> None:
        """Keep one more."""
        cell = self._cells[side]
        cell[at_us] = [*cell.get(at_us, ()), kept]

    def remove(self, side: int, at_us: int, place: int | None = None) -> None:
        """Forget one of a time; or all."""
        cell = self._cells[side]
        left = [] if place is None else [*cell[at_us][:place], *cell[at_us][place + 1 :]]
        if left:
            cell[at_us] = left
        else:
            del cell[at_us]


class JoinRowCodec(MsgpackCoder):
    """msgpack of :class:`InOneRow`.

    Args:
        kinds: The types of what values are kept as, of the left and of the right side.
    """

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: Any) -> None:
        types_kept = (types.GenericAlias(tuple, (kind, int, bool)) for kind in kinds)
        sides = (
            types.GenericAlias(dict, (int, types.GenericAlias(list, (k,)))) for k in types_kept
        )
        # What its bytes are, for who reads a checkpoint without this code.
        super().__init__(types.GenericAlias(tuple, (*sides, int, int | None)))
        self._kinds = kinds
        self._decode = msgspec.msgpack.Decoder(InOneRow).decode

    def encode(self, value: Any) -> bytes:
        """Return the row as msgpack."""
        return self._encode(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinRowCodec, self._kinds


#: A duration that may be negative (``"-5 s"``), or None: without end.
Offset = Duration | None

LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class Nearness:
    """How near in time two values meet.

    Attributes:
        first_us: The least that a right value is after a left one; None: nothing is too little.
        end_us: What it is after a left one at most, and never reaches; None: nothing is too much.
        lateness_us: For how long the low watermark must have passed what a value could meet, until
            it is forgotten.
        at_once: Whether a value without a partner is paired with None at once, and not when it is
            sure that none will come.
    """

    first_us: int | None = None
    end_us: int | None = None
    lateness_us: int = 0
    at_once: bool = True

    def offsets(self, side: int) -> tuple[int | None, int | None]:
        """Return what partners of a value of a side lie after it: the first, and past the last.

        >>> Nearness(-5, 10).offsets(LEFT), Nearness(-5, 10).offsets(RIGHT)
        ((-5, 10), (-9, 6))
        """
        if side == LEFT:
            return self.first_us, self.end_us
        return (
            None if self.end_us is None else 1 - self.end_us,
            None if self.first_us is None else 1 - self.first_us,
        )

    def __str__(self) -> str:
        said = (
            "for ever"
            if self.first_us is None and self.end_us is None
            else f"{_bound_text(self.first_us)} <= right - left < {_bound_text(self.end_us)}"
        )
        if not self.lateness_us:
            return said
        return f"{said}, allowed lateness {duration_literal(self.lateness_us)}"


def nearness(
    within: Any, expires: Duration | None, allowed_lateness: Duration, call: str
) -> Nearness:
    """Return what a join says of times.

    Args:
        within: From when until when a right value meets a left one, counted from that.
        expires: For how long values are kept.
        allowed_lateness: See :class:`Nearness`.
        call: For the messages.

    Raises:
        PipelineError: It is not to be understood, or nothing could meet.
    """
    lateness_us = duration_us(allowed_lateness, f"{call}(allowed_lateness)")
    if within is not None and expires is not None:
        raise PipelineError(
            f"{call}(within={within!r}, expires={expires!r}): values that are further apart than "
            "within= allows expire anyway. Leave one of them out."
        )
    if expires is not None:
        apart_us = positive_us(expires, f"{call}(expires)")
        return Nearness(1 - apart_us, apart_us, lateness_us)
    if within is None:
        if lateness_us:
            raise PipelineError(
                f"{call}(allowed_lateness={allowed_lateness!r}): a join for ever forgets nothing, "
                "so nothing comes too late for it. Leave it out, or say within= or expires=."
            )
        return Nearness()
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise PipelineError(
            f"{call}(within={within!r}): expected from when until when a right value meets a left "
            'one, counted from that: within=("-5 s", "10 min").'
        )
    first_us, end_us = (_offset_us(each, f"{call}(within)") for each in within)
    if first_us is not None and end_us is not None and first_us >= end_us:
        raise PipelineError(
            f"{call}(within={within!r}): nothing is in there. Expected an instant, and a later "
            'one, at which it ends: within=("-5 s", "10 min").'
        )
    return Nearness(first_us, end_us, lateness_us, at_once=False)


def _offset_us(offset: Any, where: str) -> int | None:
    """Return a duration in microseconds that may be negative."""
    if offset is None:
        return None
    if isinstance(offset, str) and offset.strip().startswith("-"):
        us = -duration_us(offset.strip()[1:], where)
    elif isinstance(offset, dt.timedelta) and offset < dt.timedelta(0):
        us = -duration_us(-offset, where)
    elif type(offset) is int and offset < 0:
        us = offset
    else:
        us = duration_us(offset, where)
    if abs(us) >= MAX_TIMESTAMP:
        raise PipelineError(f"{where}: {offset!r} is longer than time is. For no end, say None.")
    return us


def _bound_text(us: int | None) -> str:
    if us is None:
        return "any"
    return f"-{duration_literal(-us)}" if us < 0 else duration_literal(us)
