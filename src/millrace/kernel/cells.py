"""State cells with a key under them: reads through the view, writes gathered for the commit.

One bound cell serves all keys of a computation: the machine points the shared
:class:`~millrace.kernel.timers.KeyRows` at a key, calls ``begin``, runs user code, and calls
``flush``. Nothing is encoded that did not change.

What a cell that expires keeps has a timer of the kernel's own, which each write moves on. So
forgetting costs by what expires, and what has expired is never seen: its timer fires among the
key's other timers, in order of time, before the next bundle.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, cast

import msgspec
from sortedcontainers import SortedDict

from millrace.dataflow.side_stream import SIZES
from millrace.kernel import families, row_codec, timer_families
from millrace.kernel.families import map_prefix, pack_entry
from millrace.kernel.side_tables import BoundSide
from millrace.kernel.timers import KeyRows, KeyTimers
from millrace.model.coder import MsgpackCoder
from millrace.model.errors import (
    AccumulatorRefused,
    CoderError,
    InvariantViolation,
    PipelineError,
    brief,
)
from millrace.model.keys import decode_key, encode_key, prefix_range
from millrace.model.state import (
    BagState,
    CombiningState,
    Expiry,
    MapState,
    SideInput,
    StateDescriptor,
    ValueState,
)


class Bound(StateDescriptor[Any]):
    """A cell bound to a machine: a copy of its declaration."""

    def _encoded(self, value: Any, entry: bytes | None = None) -> bytes:
        """Return a value's bytes, or say which cell, and which encoded entry of it, refuses it."""
        try:
            return self.coder.encode(value)
        except AccumulatorRefused:
            raise  # It says where; the cell and its entries are nothing that a user knows.
        except CoderError as refused:
            where = "" if entry is None else f"[{brief(decode_key(entry), 120)}]"
            raise CoderError(f"{self.owner}.{self.name}{where}: {refused}") from None


#: Class of bound cells -> that of which nothing is written.
_READING: dict[type[Bound], type[Bound]] = {}


def read_only(kind: type[Bound]) -> type[Bound]:
    """Return the class that a bound cell has while its hook must change nothing."""
    if (known := _READING.get(kind)) is not None:
        return known

    def refuse(self: Bound, *_arguments: Any, **_options: Any) -> NoReturn:
        raise PipelineError(
            f"{self.owner}.request changed {self.name}. It may be called again after a failure, so "
            "it must change nothing. Change state in process_response."
        )

    writes = ("add", "clear", "set", "__setitem__", "__delitem__")
    refused = {name: refuse for name in writes if hasattr(kind, name)}
    reading = type(f"ReadOnly{kind.__name__}", (kind,), {"__slots__": (), **refused})
    _READING[kind] = cast("type[Bound]", reading)
    return _READING[kind]


class BoundBag(Bound, BagState[Any]):
    """A BagState with a key under it: each commit adds one block of items, reading none."""

    def __init__(self, cell: StateDescriptor[Any], index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = row_codec.BYTE[index]
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
            for _, block in row_codec.scan(self._rows.view, prefix):
                yield from map(decode, families.unpack_items(block))
        yield from map(decode, list(self._added))

    def clear(self) -> None:
        self._added = []
        self._cleared = True

    def flush(self) -> None:
        """Write the block of this commit."""
        prefix = self._prefix()
        if self._cleared:
            for row, _ in row_codec.scan(self._rows.view, prefix):
                self._rows.mutations[row] = None
        if self._added:
            block, items = families.block(prefix, self._rows.number), self._added
            if self._rows.goes_on and not self._cleared:
                earlier = self._rows.view.get(block)
                items = items if earlier is None else [*families.unpack_items(earlier), *items]
            self._rows.mutations[block] = families.pack_items(items)

    def _prefix(self) -> bytes:
        return families.bag_prefix(self._rows.key_row, self._cell)


#: Stands for an entry that is not there.
GONE: Any = object()
_UNREAD: Any = object()

#: So many entries that were walked over are at hand when they are read next.
_SEEN_MAX = 64
#: Up to so many entries are sorted when they are walked over.
_FEW = 64
#: Where so many entries are gone one after the other, nobody walks over them again.
_GAP = 16
#: No entry is behind it.
_LAST = b"\xff"


class Gaps:
    """Ranges without entries: where a map is emptied in order, what is gone is walked over once.

    >>> gaps = Gaps()
    >>> gaps.add(b"a", b"e"), gaps.behind(b"c"), gaps.behind(b"f")
    (None, b'e', b'f')
    >>> gaps.end_at(b"c"), gaps.behind(b"a"), gaps.behind(b"d")
    (None, b'c', b'd')
    """

    def __init__(self) -> None:
        #: The first entry of each -> the first one behind it. None overlaps another.
        self._stops: SortedDict[bytes, bytes] = SortedDict()

    def behind(self, first: bytes) -> bytes:
        """Return where entries begin that are not before ``first``, as far as that is known."""
        stops = self._stops
        place = stops.bisect_right(first)
        return max(first, stops.peekitem(place - 1)[1]) if place else first

    def add(self, first: bytes, stop: bytes) -> None:
        """Take it that nothing is there from ``first`` to before ``stop``."""
        stops = self._stops
        place = stops.bisect_right(first)
        if place:
            start, end = stops.peekitem(place - 1)
            if end >= first:
                first = start
        for inner in list(stops.irange(first, stop)):
            stop = max(stop, stops.pop(inner))
        stops[first] = stop

    def end_at(self, entry: bytes) -> None:
        """Take it that an entry is there again."""
        stops = self._stops
        place = stops.bisect_right(entry)
        if place:
            start, stop = stops.peekitem(place - 1)
            if start == entry:
                del stops[start]
            elif entry < stop:
                stops[start] = entry


class BoundMap(Bound, MapState[Any]):
    """A MapState with a key under it: entries read so far, and entries changed.

    Most maps are small, and walked to be read: what a walk passed lately is not looked up again.
    """

    def __init__(self, cell: StateDescriptor[Any], index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = row_codec.BYTE[index]
        self._prefix = b""
        self._entries: dict[bytes, Any] = {}
        self._changed: set[bytes] = set()
        self._read: dict[bytes, bytes] = {}
        self._seen: dict[bytes, bytes] = {}
        #: The entries read or changed, in order -> which one of them they are.
        self._ordered: SortedDict[bytes, int] | None = None
        self._gaps: Gaps | None = None
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
            self._ordered = self._gaps = None
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
        if self._gaps is not None:
            self._gaps.end_at(encoded)
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
        self._ordered = self._gaps = None
        self._cleared = True

    def flush(self) -> None:
        """Write the entries that changed, and those changed in place."""
        if not self._entries and not self._cleared:
            return
        mutations, prefix, changed = self._rows.mutations, self._prefix, self._changed
        if self._cleared:
            for row, _ in row_codec.scan(self._rows.view, prefix):
                mutations[row] = None
        if self._read and not self.immutable:
            changed.update(self._read)
        for entry in sorted(changed) if len(changed) > 1 else changed:
            value = self._entries[entry]
            part = entry if len(entry) <= row_codec.WHOLE else row_codec.last_part(entry)
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
        part = entry if len(entry) <= row_codec.WHOLE else row_codec.last_part(entry)
        stored = self._rows.view.get(self._prefix + part)
        return None if stored is None else families.unpack_entry(part, stored)[1]

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
        start = first if self._gaps is None else self._gaps.behind(first)
        merged = self._merged(start, end)
        gone = 0
        present: bytes | None = None
        for present in merged:
            if present is not None:
                break
            gone += 1
        if gone >= (_GAP if self._gaps is None else 1):
            if self._gaps is None:
                self._gaps = Gaps()
            self._gaps.add(first, present or end or _LAST)
        if present is not None:
            yield present
            yield from filter(None, merged)

    def _merged(self, first: bytes, end: bytes | None) -> Iterator[bytes | None]:
        """Yield the entries of a range, stored and changed ones; None in the place of one gone."""
        changed = ((entry, 0) for entry in self._touched(first, end))
        last = None
        stored_ones = zip(self._stored(first, end), itertools.repeat(1))
        for entry, stored in heapq.merge(changed, stored_ones):
            if entry == last:
                continue
            last = entry
            is_there = (stored and entry not in self._entries) or (
                self._entries.get(entry, GONE) is not GONE
            )
            yield entry if is_there else None

    def _touched(self, first: bytes, end: bytes | None) -> Iterable[bytes]:
        """Return the entries of a range that were read or changed, those that are gone too."""
        entries = self._entries
        if len(entries) <= _FEW:
            return [
                entry
                for entry in sorted(entries)
                if first <= entry and (end is None or entry < end)
            ]
        # Who looks at a map with each record would have all entries sorted each time.
        if self._ordered is None:
            self._ordered = SortedDict(zip(entries, itertools.count()))
        elif missing := len(entries) - len(self._ordered):
            last = itertools.islice(reversed(entries), missing)
            self._ordered.update(zip(last, itertools.count(len(entries) - 1, -1)))
        return _in_order(self._ordered, first, end)

    def _stored(self, first: bytes, end: bytes | None) -> Iterator[bytes]:
        """Yield every stored entry of a range, in the order of the entries.

        Rows are in that order up to the first entry that is longer than what rows keep in order.
        """
        if self._cleared:
            return
        prefix, seen = self._prefix, self._seen
        length = len(prefix)
        in_order = length + row_codec.HEAD
        if end is None:
            stop = row_codec.after(prefix)
        else:
            stop = (
                prefix + end
                if len(end) <= row_codec.HEAD
                else row_codec.after(prefix + row_codec.head(end))
            )
        scanned = self._rows.view.scan(prefix + row_codec.head(first), stop)
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
            (families.unpack_entry(row[length:], data)[0] for row, data in scanned),
            key=row_codec.head,
        ):
            for entry in sorted(group):
                if first <= entry and (end is None or entry < end):
                    yield entry


def _in_order(ordered: SortedDict[bytes, int], first: bytes, end: bytes | None) -> Iterator[bytes]:
    """Yield the entries of a range a few at a time, but none that comes while this goes on."""
    count, inclusive = len(ordered), True
    while few := [*itertools.islice(ordered.irange(first, end, (inclusive, False)), _FEW)]:
        yield from (entry for entry in few if ordered[entry] < count)
        first, inclusive = few[-1], False


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

    def _bind(self, cell: StateDescriptor[Any]) -> None:
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

    def __init__(self, cell: StateDescriptor[Any]) -> None:
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

    def __init__(self, cell: StateDescriptor[Any]) -> None:
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
                key_rows.mutations[families.VALUES + key_rows.key_row] = stored


class Scalars:
    """The value and combining cells of a computation: they share one row a key.

    Each is decoded on its own, when it is asked for.
    """

    def __init__(self, cells: list[BoundValue | BoundCombining]) -> None:
        self._cells = cells

    def begin(self, row: bytes | None) -> None:
        """Hand the cells their parts of a key's row."""
        parts = families.unpack_values(row, len(self._cells))
        for cell, part in zip(self._cells, parts, strict=True):
            cell.begin(part)

    def flush(self, key_rows: KeyRows) -> None:
        """Write the row if a cell changed."""
        if any(cell.dirty for cell in self._cells):
            parts = [cell.stored() for cell in self._cells]
            if parts != [cell.old for cell in self._cells]:
                key_rows.mutations[families.VALUES + key_rows.key_row] = families.pack_values(parts)


class CellExpiry:
    """How long a cell keeps what is written to it.

    Args:
        expires: As the cell declares it.
        number: What the cell's rows carry.
        timers: Of the key at hand.
        now_us: Clock -> the time of a write now, in microseconds.
    """

    def __init__(
        self, expires: Expiry, number: int, timers: KeyTimers, now_us: Callable[[int], int]
    ) -> None:
        self._after_us, self._domain = expires.after_us, int(expires.domain)
        self._cell = row_codec.BYTE[number]
        self._timers = timers
        self._now_us = now_us

    def written(self, entry: bytes = b"") -> None:
        """Keep it from now on for as long as the cell says, and for no less than it was to be."""
        at_us = self._now_us(self._domain) + self._after_us
        self._timers.prolong(timer_families.expiry_tag(self._cell, entry), self._domain, at_us)

    def gone(self, entry: bytes = b"") -> None:
        """Wait no more: there is nothing that could expire."""
        self._timers.delete(timer_families.expiry_tag(self._cell, entry), self._domain)


class ExpiringValue(BoundValue):
    """A ValueState that expires, with a key under it."""

    expiry: CellExpiry

    def get(self, default: Any = None) -> Any:
        value = super().get()
        if value is None:
            return default
        if not self.immutable:
            self.expiry.written()  # It may be changed in place, of which nobody would tell.
        return value

    def set(self, value: Any) -> None:
        super().set(value)
        if value is None:
            self.expiry.gone()
        else:
            self.expiry.written()

    def expire(self, entry: bytes) -> None:
        """Forget the value: its timer has fired."""
        super().set(None)


class ExpiringCombining(BoundCombining):
    """A CombiningState that expires, with a key under it."""

    expiry: CellExpiry

    def add(self, item: Any) -> None:
        super().add(item)
        self.expiry.written()

    def clear(self) -> None:
        super().clear()
        self.expiry.gone()

    def expire(self, entry: bytes) -> None:
        """Forget the accumulator: its timer has fired."""
        super().clear()


class ExpiringMap(BoundMap):
    """A MapState whose entries expire, with a key under it."""

    expiry: CellExpiry

    def get(self, entry: Any, default: Any = None) -> Any:
        value = super().get(entry, _NOTHING)
        if value is _NOTHING:
            return default
        if not self.immutable:
            self.expiry.written(encode_key(entry))
        return value

    def __contains__(self, entry: Any) -> bool:
        return super().get(entry, _NOTHING) is not _NOTHING

    def __setitem__(self, entry: Any, value: Any) -> None:
        super().__setitem__(entry, value)
        self.expiry.written(encode_key(entry))

    def __delitem__(self, entry: Any) -> None:
        super().__delitem__(entry)
        self.expiry.gone(encode_key(entry))

    def clear(self) -> None:
        for entry in self.between():
            self.expiry.gone(encode_key(entry))
        super().clear()

    def expire(self, entry: bytes) -> None:
        """Forget an entry: its timer has fired."""
        self._entries[entry] = GONE
        self._changed.add(entry)


_NOTHING: Any = object()


class Collection(Protocol):
    """What is begun with each key, and flushed after its part."""

    def begin(self) -> None:
        """Start a key."""
        ...

    def flush(self) -> None:
        """Write what its part changed."""
        ...


def assigned_to(owner: str, name: str, cell: StateDescriptor[Any]) -> PipelineError:
    """Return the error of an attribute that has replaced a cell on the user's instance.

    It would be one value for all keys, and in no commit.
    """
    write = f"Write self.{name}.{'set(value)' if isinstance(cell, ValueState) else 'add(item)'}."
    if isinstance(cell, SideInput):
        write = "A side input is read only: use another name."
    elif isinstance(cell, MapState):
        write = f"Write self.{name}[entry] = value."
    return PipelineError(
        f"{owner}.{name} was assigned to, and is a state cell: the value would not be kept, and "
        f"all keys would share it. {write}"
    )


class CellBinding:
    """The bound cells of a computation.

    Args:
        declared: Name -> cell.
        numbers: Name -> number, which rows of the cell carry.
        key_rows: Where the key at hand is read and written.
        timers: Of the key at hand.
        now_us: Clock -> the time of a write now; asked only where a cell expires.

    Attributes:
        by_name: Name -> bound cell, for the instance.
        scalars: The value and combining cells; None if there are none.
        collections: The others of a key.
        sides: The side inputs.
    """

    def __init__(
        self,
        declared: Mapping[str, StateDescriptor[Any]],
        numbers: Mapping[str, int],
        key_rows: KeyRows,
        timers: KeyTimers,
        now_us: Callable[[int], int],
    ) -> None:
        self.by_name: dict[str, Any] = {}
        self.scalars: Scalar | Scalars | None = None
        self.collections: list[Collection] = []
        self.sides: list[BoundSide] = []
        self._expiring: dict[int, ExpiringValue | ExpiringCombining | ExpiringMap] = {}
        self._verified: list[BoundValue | BoundCombining | BoundMap] = []
        scalars: list[BoundValue | BoundCombining] = []
        # By number, not by where the class declares them, so that moving a line does not move a
        # cell's state.
        for name, cell in sorted(declared.items(), key=lambda item: numbers[item[0]]):
            if isinstance(cell, SideInput):
                side = BoundSide(cell, numbers[name], numbers[SIZES], key_rows)
                self.sides.append(side)
                self.by_name[name] = side
                continue
            bound: BoundValue | BoundCombining | BoundMap | BoundBag
            expires = cell.expires is not None
            if isinstance(cell, CombiningState):
                bound = ExpiringCombining(cell) if expires else BoundCombining(cell)
                scalars.append(bound)
            elif isinstance(cell, ValueState):
                bound = ExpiringValue(cell) if expires else BoundValue(cell)
                scalars.append(bound)
            elif isinstance(cell, MapState):
                kind = ExpiringMap if expires else BoundMap
                self.collections.append(bound := kind(cell, numbers[name], key_rows))
            elif isinstance(cell, BagState):
                self.collections.append(bound := BoundBag(cell, numbers[name], key_rows))
            else:
                raise InvariantViolation(f"no binding for state cell {cell!r}")
            self.by_name[name] = bound
            if isinstance(bound, ExpiringValue | ExpiringCombining | ExpiringMap):
                assert cell.expires is not None
                bound.expiry = CellExpiry(cell.expires, numbers[name], timers, now_us)
                self._expiring[numbers[name]] = bound
            if not isinstance(bound, BoundBag):
                self._verified.append(bound)
        if scalars:
            self.scalars = Scalar(scalars[0]) if len(scalars) == 1 else Scalars(scalars)

    def expire(self, number: int, entry: bytes) -> None:
        """Forget what a cell keeps, or an entry of it, whose time has come."""
        # A cell that expired before the program was changed keeps what it has.
        if (cell := self._expiring.get(number)) is not None:
            cell.expire(entry)

    def verify(self) -> None:
        """Raise CoderError if something that user code left in a cell cannot be stored."""
        for cell in self._verified:
            cell.verify()
