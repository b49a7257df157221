"""Map cells: a row an entry, read one by one or walked in order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from millrace.model.errors import CoderError, PipelineError
from millrace.model.keys import decode_key, encode_key, prefix_range
from millrace.model.state import MapState, StateDescriptor
from millrace.windmill import rows
from millrace.windmill.cells.bound import Bound
from millrace.windmill.rows import map_prefix, pack_entry
from millrace.windmill.timers import KeyRows

#: Stands for an entry that is not there.
GONE: Any = object()
_UNREAD: Any = object()

#: So many entries that were walked over are at hand when they are read next.
_SEEN_MAX = 64


class BoundMap(Bound, MapState[Any]):
    """A MapState with a key under it: entries read so far, and entries changed.

    Most maps are small, and walked to be read: what a walk passed lately is not looked up again.
    """

    def __init__(self, cell: StateDescriptor, index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = rows.BYTE[index]
        self._prefix = b""
        self._entries: dict[bytes, Any] = {}
        self._changed: set[bytes] = set()
        self._read: dict[bytes, bytes] = {}
        self._seen: dict[bytes, bytes] = {}
        self._cleared = False

    def begin(self) -> None:
        """Forget the last key's entries."""
        self._prefix = map_prefix(self._rows.key_row, self._cell)
        if self._seen:
            self._seen = {}
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
        return default if value is GONE else value

    def __getitem__(self, entry: Any) -> Any:
        value = self.get(entry, GONE)
        if value is GONE:
            raise KeyError(entry)
        return value

    def __contains__(self, entry: Any) -> bool:
        return self.get(entry, GONE) is not GONE

    def __setitem__(self, entry: Any, value: Any) -> None:
        encoded = encode_key(entry)
        if type(value) is not self.shape:
            self._encoded(value, encoded)
        self._entries[encoded] = value
        self._changed.add(encoded)

    def __delitem__(self, entry: Any) -> None:
        encoded = encode_key(entry)
        value = self._entries.get(encoded, _UNREAD)
        if value is GONE or (value is _UNREAD and self._stored_data(encoded) is None):
            raise KeyError(entry)
        self._entries[encoded] = GONE
        self._changed.add(encoded)

    def __iter__(self) -> Iterator[Any]:
        return self.between()

    def __len__(self) -> int:
        return sum(1 for _ in self._walk())

    def between(
        self, start: Any = None, stop: Any = None, *, prefix: tuple[Any, ...] | None = None
    ) -> Iterator[Any]:
        first = b"" if start is None else encode_key(start)
        end = None if stop is None else encode_key(stop)
        if prefix is not None:
            if type(prefix) is not tuple:
                raise PipelineError(
                    f"{self.owner}.{self.name}.between(prefix={prefix!r}): expected a tuple, the "
                    f"first items of the keys that are wanted, as ({prefix!r},)."
                )
            begin, after = prefix_range(prefix)
            first, end = max(first, begin), after if end is None else min(end, after)
        return (decode_key(entry) for entry in self._walk(first, end))

    def clear(self) -> None:
        self._entries = {}
        self._changed = set()
        self._read = {}
        self._seen = {}
        self._cleared = True

    def flush(self) -> None:
        """Write the entries that changed, and those changed in place."""
        if not self._entries and not self._cleared:
            return
        mutations, prefix, changed = self._rows.mutations, self._prefix, self._changed
        if self._cleared:
            for row, _ in rows.scan(self._rows.view, prefix):
                mutations[row] = None
        if self._read and not self.immutable:
            changed.update(self._read)
        for entry in sorted(changed) if len(changed) > 1 else changed:
            value = self._entries[entry]
            part = entry if len(entry) <= rows.WHOLE else rows.last_part(entry)
            if value is GONE:
                mutations[prefix + part] = None
                continue
            try:
                data = self.coder.encode(value)
            except CoderError:
                data = self._encoded(value, entry)
            if data != self._read.get(entry):
                mutations[prefix + part] = data if part is entry else pack_entry(entry, data)

    def verify(self) -> None:
        """Raise if an entry cannot be stored."""
        for entry in self._changed.union(self._read):
            if self._entries[entry] is not GONE:
                self._encoded(self._entries[entry], entry)

    def _load(self, entry: bytes) -> Any:
        """Read an entry that was not read before."""
        data = self._stored_data(entry)
        if data is None:
            self._entries[entry] = GONE
            return GONE
        return self._remember(entry, data)

    def _stored_data(self, entry: bytes) -> bytes | None:
        """Return an entry's value as it is stored; None if it is not there."""
        data = self._seen.get(entry)
        if data is not None or self._cleared:
            return data
        part = entry if len(entry) <= rows.WHOLE else rows.last_part(entry)
        found = self._rows.view.get(self._prefix + part)
        return None if found is None else rows.unpack_entry(part, found)[1]

    def _remember(self, entry: bytes, data: bytes) -> Any:
        value = self.coder.decode(data)
        self._entries[entry] = value
        if not self.immutable:
            self._read[entry] = data
        return value

    def _walk(self, first: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """Yield present entries in the order of their encoding, merging stored and changed ones.

        Of those that only pass by a few are kept, so a map larger than memory can be walked.
        """
        if not self._entries:
            for entry in self._stored(first, end):
                if self._entries.get(entry) is not GONE:
                    yield entry
            return
        changed = (
            (entry, 0)
            for entry in sorted(self._entries)
            if first <= entry and (end is None or entry < end)
        )
        last = None
        stored_ones = zip(self._stored(first, end), itertools.repeat(1))
        for entry, stored in heapq.merge(changed, stored_ones):
            if entry == last:
                continue
            last = entry
            if (stored and entry not in self._entries) or self._entries.get(
                entry, GONE
            ) is not GONE:
                yield entry

    def _stored(self, first: bytes, end: bytes | None) -> Iterator[bytes]:
        """Yield every stored entry of a range, in the order of the entries.

        Rows are in that order up to the first entry that is longer than what rows keep in order.
        """
        if self._cleared:
            return
        prefix, seen = self._prefix, self._seen
        length = len(prefix)
        in_order = length + rows.HEAD
        if end is None:
            stop = rows.after(prefix)
        else:
            stop = prefix + end if len(end) <= rows.HEAD else rows.after(prefix + rows.head(end))
        scanned = self._rows.view.scan(prefix + rows.head(first), stop)
        for row, data in scanned:
            if len(row) > in_order:
                yield from self._long(itertools.chain([(row, data)], scanned), first, end)
                return
            entry = row[length:]
            if entry >= first:
                if len(seen) < _SEEN_MAX:
                    seen[entry] = data
                yield entry

    def _long(
        self, scanned: Iterator[tuple[bytes, bytes]], first: bytes, end: bytes | None
    ) -> Iterator[bytes]:
        """Yield the entries of rows, of which some have a digest behind their head.

        Those with one head are sorted together.
        """
        length = len(self._prefix)
        for _, group in itertools.groupby(
            (rows.unpack_entry(row[length:], data)[0] for row, data in scanned), key=rows.head
        ):
            for entry in sorted(group):
                if first <= entry and (end is None or entry < end):
                    yield entry
