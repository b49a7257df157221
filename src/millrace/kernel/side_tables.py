"""Side tables: the table of a side input in each key interval, read by key and time.

They are stored under the key that means all keys, with an entry for each key of the table: its rows
by time, without those that no record can see any more.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from millrace.kernel import row_codec
from millrace.kernel.families import map_prefix, pack_entry, unpack_entry
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.kernel.timers import KeyRows
from millrace.model.copies import own_copy
from millrace.model.errors import PipelineError
from millrace.model.keys import decode_key, encode_key
from millrace.model.state import SideInput

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode

#: Rows of one key of the table, each with its time, by that.
_History = list[tuple[Any, int]]

#: Types of which equal keys are one key; True equals 1, and is another.
_PLAIN: Final = frozenset([str, int, bytes])


class TableChange(NamedTuple):
    """What the rows of a bundle make of a table, in every interval that has the same before.

    Attributes:
        rows: The rows of the keys that came, ascending.
        before: What was stored in each.
        size: What was stored of the table's size.
        mutations: What is written.
        known: Key -> its rows after it.
        changed: Key -> the bytes of those.
    """

    rows: list[bytes]
    before: list[bytes | None]
    size: bytes | None
    mutations: dict[bytes, bytes | None]
    known: dict[bytes, _History]
    changed: dict[bytes, bytes]


class BoundSide(SideInput[Any]):
    """A SideInput with an interval under it.

    Args:
        cell: Its declaration.
        index: Its number.
        sizes: Number of the cell that keeps the sizes of tables.
        key_rows: Where the interval is read and written.

    Attributes:
        as_of: Returns the time whose rows are seen, of the record or timer at hand.
        fired_watermark_us: Of the times before, only what stood there at the end is asked for.
    """

    def __init__(self, cell: SideInput[Any], index: int, sizes: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._key_rows = key_rows
        self._prefix = map_prefix(ALL_KEYS_ROW, row_codec.BYTE[index])
        self._size_row = map_prefix(ALL_KEYS_ROW, row_codec.BYTE[sizes]) + encode_key(cell.name)
        self._known: dict[bytes, _History] = {}
        self._found: dict[Any, _History] = {}
        self._changed: dict[bytes, bytes] = {}
        self._read: dict[bytes, tuple[bytes, bytes | None]] = {}
        self._lengths: dict[bytes, int] = {}
        self._size: int | None = None
        self.as_of: Callable[[], int] = lambda: 0
        self.fired_watermark_us = 0

    def begin(self, fired_watermark_us: int) -> None:
        """Start a bundle, which may be another interval's."""
        self.fired_watermark_us = fired_watermark_us
        self._known, self._found, self._changed = {}, {}, {}
        self._read, self._lengths, self._size = {}, {}, None

    # -- what user code calls ----------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        row = self._visible_row(key)
        return default if row is None else row

    def __getitem__(self, key: Any) -> Any:
        row = self._visible_row(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: Any) -> bool:
        return self._visible_row(key) is not None

    def __iter__(self) -> Iterator[Any]:
        changed = ((entry, b"") for entry in sorted(self._changed))
        merged = heapq.merge(changed, self._entries(), key=lambda item: item[0])
        for entry, _ in itertools.groupby(merged, key=lambda item: item[0]):
            if self._seen(self._history(entry)) is not None:
                yield decode_key(entry)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _visible_row(self, key: Any) -> Any:
        """Return the row of a key that is seen now; None if there is none."""
        history = self._found.get(key) if type(key) in _PLAIN else None
        if history is None:
            history = self._history(encode_key(key))
            if type(key) in _PLAIN:
                self._found[key] = history
        return self._seen(history)

    def _seen(self, history: _History) -> Any:
        """Return which of a key's rows is seen now, a copy of it; None if none is."""
        if not history:
            return None
        if not self.waits:
            return own_copy(self.forms[1](history[-1][0]))
        n = bisect.bisect_right(history, self.as_of(), key=_time)
        return own_copy(self.forms[1](history[n - 1][0])) if n else None

    # -- rows of the stream ------------------------------------------------------------------------

    def take(self, key: bytes, row: Any, at_us: int, *, back: bool) -> None:
        """Take a row of the stream, or take it back.

        Raises:
            PipelineError: The table would be larger than its limit.
        """
        history = list(self._history(key))
        if back:
            self._take_back(history, row, at_us)
        else:
            packed = None if row is None else self.forms[0](row)
            bisect.insort_right(history, (packed, at_us), key=_time)
        history = self._wanted(history)
        data = self.coder.encode(history) if history else b""
        size = self._now() + len(data) - self._lengths[key]
        if size > self.limit and len(data) > self._lengths[key]:
            raise PipelineError(
                f"{self.owner}.{self.name}: with the row of key {decode_key(key)!r} the table of "
                f"stream {self.stream!r} has {size:,} bytes in a key interval, and its limit is "
                f"{self.limit:,}. Raise it, mr.SideInput({self.stream!r}, ..., limit=...); have "
                "rows that are not needed any more replaced by None; or, if the table grows with "
                "the data, join the stream by key: enrich(...)."
            )
        self._known[key], self._changed[key] = history, data
        self._lengths[key], self._size = len(data), size

    def read(self, keys: Iterable[bytes]) -> None:
        """Read what is stored of keys whose rows are to be taken: all at once, which costs less."""
        rows_of = {self._row_of(key): key for key in keys}
        wanted = sorted(rows_of)
        stored_rows = self._key_rows.view.get_many(wanted)
        self._read = {
            rows_of[row]: (row, stored) for row, stored in zip(wanted, stored_rows, strict=True)
        }

    def flush(self) -> TableChange:
        """Write what has changed; return the change."""
        stored = self._key_rows.view.get(self._size_row)
        mutations: dict[bytes, bytes | None] = {
            self._read[entry][0]: pack_entry(entry, data) if data else None
            for entry, data in self._changed.items()
        }
        if self._size is not None:
            mutations[self._size_row] = _encode(self._size)
        self._key_rows.mutations.update(mutations)
        # Lookups of this bundle add to what is known, of rows that another interval may not have.
        known = self._known.copy()
        rows, before = (
            [row for row, _ in self._read.values()],
            [was for _, was in self._read.values()],
        )
        return TableChange(rows, before, stored, mutations, known, self._changed)

    def would_repeat(self, change: TableChange) -> bool:
        """Return whether the rows of a change, taken here, would make the same of this table."""
        view = self._key_rows.view
        return (
            view.get(self._size_row) == change.size and view.get_many(change.rows) == change.before
        )

    def repeat(self, change: TableChange) -> None:
        """Take the rows of a change, as the interval did that it is of."""
        self._known, self._changed = change.known.copy(), change.changed
        self._key_rows.mutations.update(change.mutations)

    def _take_back(self, history: _History, row: Any, at_us: int) -> None:
        """Take a row out; if it does not stand any more, that is done already."""
        unpack = self.forms[1]
        here = [n for n, (row, at) in enumerate(history) if row is not None and at == at_us]
        for n in (*here, *reversed(range(len(history)))):
            if history[n][0] is not None and unpack(history[n][0]) == row:
                del history[n]
                return

    def _wanted(self, history: _History) -> _History:
        """Return the rows that may still be asked for: from the one that stands on."""
        if not self.waits:
            history = history[-1:]
        elif (n := bisect.bisect_left(history, self.fired_watermark_us, key=_time)) > 1:
            history = history[n - 1 :]
        gone = history and history[0][0] is None
        return history[1:] if gone else history

    # -- the interval ------------------------------------------------------------------------------

    def _history(self, entry: bytes) -> _History:
        history = self._known.get(entry)
        if history is None:
            if (read := self._read.get(entry)) is None:
                row = self._row_of(entry)
                stored = self._key_rows.view.get(row)
            else:
                row, stored = read
            data = b"" if stored is None else unpack_entry(row[len(self._prefix) :], stored)[1]
            self._lengths[entry] = len(data)
            history = self._known[entry] = self.coder.decode(data) if data else []
        return history

    def _row_of(self, entry: bytes) -> bytes:
        return self._prefix + (
            entry if len(entry) <= row_codec.WHOLE else row_codec.last_part(entry)
        )

    def _now(self) -> int:
        """Return how many bytes the table has."""
        if self._size is None:
            stored = self._key_rows.view.get(self._size_row)
            self._size = 0 if stored is None else _decode(stored)
        return self._size

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys of the table as of the last commit, in order but for very long ones."""
        for row, data in row_codec.scan(self._key_rows.view, self._prefix):
            yield unpack_entry(row[len(self._prefix) :], data)[0], b""


def _time(entry: tuple[Any, int]) -> int:
    return entry[1]
