"""State cells with a key under them: reads through the view, writes gathered for the commit.

One bound cell serves all keys of a computation: the machine points the shared :class:`KeyRows` at
a key, calls ``begin``, runs user code, and calls ``flush``. Nothing is encoded that did not change.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from millrace.model.coder import MsgpackCoder
from millrace.model.errors import AccumulatorRefused, CoderError
from millrace.model.keys import decode_key, encode_key
from millrace.model.state import BagState, CombiningState, MapState, StateCell, ValueState
from millrace.store import View
from millrace.windmill import rows

_encode = msgspec.msgpack.Encoder().encode
_decode_values = msgspec.msgpack.Decoder(list[bytes | None]).decode
_decode_items = msgspec.msgpack.Decoder(list[bytes]).decode


class KeyRows:
    """Where the current key's rows are read from and written to.

    Attributes:
        view: The interval's rows as of the last commit.
        mutations: Row -> new value or None, for the commit being made.
        key_row: The current key's part of a row.
        timed: The rows among the mutations that are ordered by time (timers and holds).
        number: The number of the commit being made.
        delta: Timestamp -> how many more timers and holds are pending there; None if not counted.
    """

    __slots__ = ("delta", "key_row", "mutations", "number", "timed", "view")

    def __init__(self) -> None:
        self.view: View = None  # type: ignore[assignment]  # set for every interval
        self.mutations: dict[bytes, bytes | None] = {}
        self.timed: list[bytes] = []
        self.key_row = b""
        self.number = 0
        self.delta: dict[int, int] | None = None


class _Bound(StateCell):
    """A cell bound to a machine: a copy of its declaration."""

    def _encoded(self, value: Any, where: str = "") -> bytes:
        """Return a value's bytes, or say which cell refuses it."""
        try:
            return self.coder.encode(value)
        except AccumulatorRefused:
            raise  # It says where; the cell and its entries are nothing that a user knows.
        except CoderError as refused:
            raise CoderError(f"{self.owner}.{self.name}{where}: {refused}") from None


class _BoundScalar(_Bound):
    """What value and combining cells share: one value in the key's row of values."""

    def _bind(self, cell: StateCell) -> None:
        self.__dict__.update(cell.__dict__)
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
            except (msgspec.ValidationError, ValueError) as refused:
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
        except (CoderError, TypeError, OverflowError, UnicodeError):
            return self._encoded(self.value)

    def verify(self) -> None:
        """Raise if the value cannot be stored."""
        self.stored()


class BoundValue(_BoundScalar, ValueState[Any]):
    """A ValueState with a key under it."""

    def __init__(self, cell: StateCell) -> None:
        self._bind(cell)

    def get(self, default: Any = None) -> Any:
        if self.raw is not None:
            self.load()
            # What can be changed in place may be, so it is compared when the bundle ends.
            self.dirty = not self.immutable
        value = self.value
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

    def __init__(self, cell: StateCell) -> None:
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
            stored = cell.stored()
            if stored != cell.old:
                key_rows.mutations[b"V" + key_rows.key_row] = stored


class Scalars:
    """The value and combining cells of a computation: they share one row a key.

    The row is a msgpack array of the cells' bytes, of which each is decoded on its own.
    """

    def __init__(self, cells: list[BoundValue | BoundCombining]) -> None:
        self._cells = cells

    def begin(self, row: bytes | None) -> None:
        """Hand the cells their parts of a key's row."""
        parts = _decode_values(row) if row is not None else []
        for n, cell in enumerate(self._cells):
            cell.begin(parts[n] if n < len(parts) else None)

    def flush(self, key_rows: KeyRows) -> None:
        """Write the row if a cell changed."""
        if any(cell.dirty for cell in self._cells):
            parts = [cell.stored() for cell in self._cells]
            if parts != [cell.old for cell in self._cells]:
                key_rows.mutations[b"V" + key_rows.key_row] = (
                    None if all(part is None for part in parts) else _encode(parts)
                )


_GONE: Any = object()
_UNREAD: Any = object()


class BoundMap(_Bound, MapState[Any]):
    """A MapState with a key under it: entries read so far, and entries changed."""

    def __init__(self, cell: StateCell, index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = bytes([index])
        self._prefix = b""
        self._entries: dict[bytes, Any] = {}
        self._changed: set[bytes] = set()
        self._read: dict[bytes, bytes] = {}
        self._cleared = False

    def begin(self) -> None:
        """Forget the last key's entries."""
        self._prefix = rows.MAP + self._rows.key_row + self._cell
        if self._entries or self._cleared:
            self._entries = {}
            self._changed = set()
            self._read = {}
            self._cleared = False

    def get(self, entry: Any, default: Any = None) -> Any:
        encoded = encode_key(entry)
        value = self._entries.get(encoded, _UNREAD)
        if value is _UNREAD:
            value = self._load(encoded)
        return default if value is _GONE else value

    def __getitem__(self, entry: Any) -> Any:
        value = self.get(entry, _GONE)
        if value is _GONE:
            raise KeyError(entry)
        return value

    def __contains__(self, entry: Any) -> bool:
        return self.get(entry, _GONE) is not _GONE

    def __setitem__(self, entry: Any, value: Any) -> None:
        encoded = encode_key(entry)
        if type(value) is not self.shape:
            self._encoded(value, f"[{entry!r}]")
        self._entries[encoded] = value
        self._changed.add(encoded)

    def __delitem__(self, entry: Any) -> None:
        encoded = encode_key(entry)
        value = self._entries.get(encoded, _UNREAD)
        if value is _UNREAD:
            value = self._load(encoded)
        if value is _GONE:
            raise KeyError(entry)
        self._entries[encoded] = _GONE
        self._changed.add(encoded)

    def __iter__(self) -> Iterator[Any]:
        return (decode_key(entry) for entry, _ in self._walk())

    def __len__(self) -> int:
        return sum(1 for _ in self._walk())

    def clear(self) -> None:
        self._entries = {}
        self._changed = set()
        self._read = {}
        self._cleared = True

    def flush(self) -> None:
        """Write the entries that changed, and those changed in place."""
        if not self._entries and not self._cleared:
            return
        mutations, prefix, changed = self._rows.mutations, self._prefix, self._changed
        if self._cleared:
            for row, _ in self._rows.view.scan(prefix, rows.after(prefix)):
                mutations[row] = None
        if self._read and not self.immutable:
            changed.update(self._read)
        for entry in sorted(changed) if len(changed) > 1 else changed:
            value = self._entries[entry]
            part = entry if len(entry) <= rows.WHOLE else rows.last_part(entry)
            if value is _GONE:
                mutations[prefix + part] = None
                continue
            try:
                data = self.coder.encode(value)
            except CoderError:
                data = self._encoded(value, f"[{decode_key(entry)!r}]")
            if data != self._read.get(entry):
                if rows.is_digested(part):
                    data = len(entry).to_bytes(4, "big") + entry + data
                mutations[prefix + part] = data

    def verify(self) -> None:
        """Raise if an entry cannot be stored."""
        for entry in self._changed.union(self._read):
            if self._entries[entry] is not _GONE:
                self._encoded(self._entries[entry], f"[{decode_key(entry)!r}]")

    def _load(self, entry: bytes) -> Any:
        """Read an entry that was not read before."""
        part = entry if len(entry) <= rows.WHOLE else rows.last_part(entry)
        found = None if self._cleared else self._rows.view.get(self._prefix + part)
        if found is None:
            self._entries[entry] = _GONE
            return _GONE
        return self._remember(entry, found[4 + len(entry) :] if rows.is_digested(part) else found)

    def _remember(self, entry: bytes, data: bytes) -> Any:
        value = self.coder.decode(data)
        self._entries[entry] = value
        if not self.immutable:
            self._read[entry] = data
        return value

    def _walk(self) -> Iterator[tuple[bytes, Any]]:
        """Yield present entries in the order of their encoding, merging stored and changed ones.

        Entries that only pass by are not kept, so a map larger than memory can be walked.
        """
        changed = ((entry, 0, b"") for entry in sorted(self._entries))
        last = None
        for entry, stored, _ in heapq.merge(changed, self._stored()):
            if entry == last:
                continue
            last = entry
            if (stored and entry not in self._entries) or self._entries.get(
                entry, _GONE
            ) is not _GONE:
                yield entry, None

    def _stored(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (entry, 1, data) of every stored entry, in the order of the entries.

        Rows are in that order but for long entries, which have a digest behind their head: those
        with one head are sorted together.
        """
        if self._cleared:
            return
        prefix = self._prefix
        scanned = self._rows.view.scan(prefix, rows.after(prefix))
        for _, group in itertools.groupby(
            (self._entry(row[len(prefix) :], data) for row, data in scanned),
            key=lambda found: rows.head(found[0]),
        ):
            yield from sorted(group)

    @staticmethod
    def _entry(part: bytes, data: bytes) -> tuple[bytes, int, bytes]:
        if not rows.is_digested(part):
            return part, 1, data
        length = int.from_bytes(data[:4], "big")
        return data[4 : 4 + length], 1, data[4 + length :]


class BoundBag(_Bound, BagState[Any]):
    """A BagState with a key under it: each commit adds one block of items, reading none."""

    def __init__(self, cell: StateCell, index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = bytes([index])
        self._added: list[bytes] = []
        self._cleared = False

    def begin(self) -> None:
        """Forget the last key's items."""
        self._added = []
        self._cleared = False

    def add(self, item: Any) -> None:
        self._added.append(self._encoded(item))

    def __iter__(self) -> Iterator[Any]:
        decode = self.coder.decode
        if not self._cleared:
            prefix = self._prefix()
            for _, block in self._rows.view.scan(prefix, rows.after(prefix)):
                yield from map(decode, _decode_items(block))
        yield from map(decode, list(self._added))

    def clear(self) -> None:
        self._added = []
        self._cleared = True

    def flush(self) -> None:
        """Write the block of this commit."""
        prefix = self._prefix()
        if self._cleared:
            for row, _ in self._rows.view.scan(prefix, rows.after(prefix)):
                self._rows.mutations[row] = None
        if self._added:
            block = prefix + self._rows.number.to_bytes(8, "big")
            self._rows.mutations[block] = _encode(self._added)

    def _prefix(self) -> bytes:
        return rows.BAG + self._rows.key_row + self._cell
