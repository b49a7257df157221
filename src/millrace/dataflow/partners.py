"""Partners: the values of one key that a join without windows keeps, of both sides, by their time.

Most keys have few at a time: all of these lie in one row, which is read and written whole, and wait
for one timer. A key that has many has a map a side, with a row for each time, of which a value
costs what it meets. It goes there when its row would be too long, and comes back when it has been
empty.

Source: docs/design/2026-11-22-joins-without-windows.md.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from millrace.dataflow.kept import kept_as
from millrace.dataflow.nearness import RIGHT
from millrace.model.coder import Coder, MsgpackCoder
from millrace.model.state import MapState

#: A value as it is kept, how many partners it has met, and whether it is out paired with None.
#: Partners are only counted on where something may be taken back; else 1 is some.
Kept = tuple[Any, int, bool]

#: What a row may weigh: the bytes of its values, and so many more for each.
WEIGHT_MAX = 1_024
_MORE = 48


class RowForm:
    """How a stream's values are kept in a key's row: as msgpack, so that only what meets is read.

    Args:
        coder: Of the stream.
    """

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
    """The values of a key that has, or had, many.

    Args:
        cells: Of the left and the right side.
    """

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


class RowCoder(MsgpackCoder):
    """msgpack of :class:`InOneRow`.

    Args:
        kinds: The types of what values are kept as, of the left and of the right side.
    """

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: Any) -> None:
        kept = (types.GenericAlias(tuple, (kind, int, bool)) for kind in kinds)
        sides = (types.GenericAlias(dict, (int, types.GenericAlias(list, (k,)))) for k in kept)
        # What its bytes are, for who reads a checkpoint without this code.
        super().__init__(types.GenericAlias(tuple, (*sides, int, int | None)))
        self._kinds = kinds
        self._decode = msgspec.msgpack.Decoder(InOneRow).decode

    def encode(self, value: Any) -> bytes:
        """Return the row as msgpack."""
        return self._encode(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCoder, self._kinds
