"""Value and combining cells: one value a key, all of a key's in one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.model.coder import MsgpackCoder
from millrace.model.errors import CoderError
from millrace.model.state import CombiningState, StateDescriptor, ValueState
from millrace.windmill import rows
from millrace.windmill.cells.bound import Bound
from millrace.windmill.timers import KeyRows

#: What msgspec raises of a value that it cannot encode, or bytes that are none of its type.
_UNENCODABLE = (CoderError, TypeError, OverflowError, UnicodeError)
_UNDECODABLE = (msgspec.ValidationError, ValueError)


class _BoundScalar(Bound):
    """What value and combining cells share: one value in the key's row of values.

    What is touched for every key has a slot, which costs less than an entry of a dictionary.
    """

    __slots__ = (
        "_decode", "_encode", "dirty", "immutable", "old", "raw", "shape", "value",
    )  # fmt: skip

    def _bind(self, cell: StateDescriptor) -> None:
        self.__dict__.update(cell.__dict__)
        self.immutable, self.shape = cell.immutable, cell.shape
        self._encode: Callable[[Any], bytes] = cell.coder.encode
        self._decode: Callable[[bytes], Any] = cell.coder.decode
        if isinstance(cell.coder, MsgpackCoder):
            encode, self._decode = cell.coder.quick()
            if cell.coder.scalar is not None:
                # Checked by its type when it was set, and the same since.
                self._encode = encode
        self.raw: bytes | None = None
        self.old: bytes | None = None
        self.value: Any = None
        self.dirty = False

    def begin(self, raw: bytes | None) -> None:
        """Take the stored bytes of a new key; they are decoded when asked for."""
        self.raw = self.old = raw
        self.value = None
        self.dirty = False

    def load(self) -> Any:
        if self.raw is not None:
            try:
                self.value = self._decode(self.raw)
            except _UNDECODABLE as refused:
                raise CoderError(
                    f"{self.owner}.{self.name}: the stored state does not fit {self.coder!r}: "
                    f"{refused}. Was its type changed since the checkpoint was written?"
                ) from refused
            self.raw = None
        return self.value

    def stored(self) -> bytes | None:
        """Return the bytes to store for this key."""
        if not self.dirty:
            return self.old
        if self.value is None:
            return None
        try:
            return self._encode(self.value)
        except _UNENCODABLE:
            return self._encoded(self.value)

    def verify(self) -> None:
        """Raise if the value cannot be stored."""
        self.stored()


class BoundValue(_BoundScalar, ValueState[Any]):
    """A ValueState with a key under it."""

    def __init__(self, cell: StateDescriptor) -> None:
        self._bind(cell)

    def get(self, default: Any = None) -> Any:
        if (raw := self.raw) is None:
            value = self.value
        else:
            try:
                value = self.value = self._decode(raw)
                self.raw = None
            except _UNDECODABLE:
                value = self.load()  # It says what is wrong.
            # What can be changed in place may be, so it is compared when the bundle ends.
            self.dirty = not self.immutable
        return default if value is None else value

    def set(self, value: Any) -> None:
        if type(value) is not self.shape and value is not None:
            self._encoded(value)
        self.raw = None
        self.value = value
        self.dirty = True

    def clear(self) -> None:
        self.set(None)


class BoundCombining(_BoundScalar, CombiningState[Any]):
    """A CombiningState with a key under it."""

    def __init__(self, cell: StateDescriptor) -> None:
        self._bind(cell)

    def add(self, item: Any) -> None:
        value = self.fold(self.load(), item)
        if type(value) is not self.shape:
            self._encoded(value)
        self.value = value
        self.dirty = True

    def get(self, default: Any = None) -> Any:
        value = self.load()
        return default if value is None else value

    def clear(self) -> None:
        self.raw = None
        self.value = None
        self.dirty = True


class Scalar:
    """The only value or combining cell of a computation: its bytes are the key's row."""

    def __init__(self, cell: BoundValue | BoundCombining) -> None:
        self._cell = cell
        self.begin = cell.begin

    def flush(self, key_rows: KeyRows) -> None:
        """Write the row if the cell changed."""
        cell = self._cell
        if cell.dirty:
            stored = None
            if (value := cell.value) is not None:
                try:
                    stored = cell._encode(value)
                except _UNENCODABLE:
                    stored = cell.stored()  # It says what is wrong.
            if stored != cell.old:
                key_rows.mutations[rows.VALUES + key_rows.key_row] = stored


class Scalars:
    """The value and combining cells of a computation: they share one row a key.

    Each is decoded on its own, when it is asked for.
    """

    def __init__(self, cells: list[BoundValue | BoundCombining]) -> None:
        self._cells = cells

    def begin(self, row: bytes | None) -> None:
        """Hand the cells their parts of a key's row."""
        parts = rows.unpack_values(row, len(self._cells))
        for cell, part in zip(self._cells, parts, strict=True):
            cell.begin(part)

    def flush(self, key_rows: KeyRows) -> None:
        """Write the row if a cell changed."""
        if any(cell.dirty for cell in self._cells):
            parts = [cell.stored() for cell in self._cells]
            if parts != [cell.old for cell in self._cells]:
                key_rows.mutations[rows.VALUES + key_rows.key_row] = rows.pack_values(parts)
