"""State of a window of a key: one row, the windows that it merges with, and its name in errors.

The row is read and written once a bundle, however many elements the bundle has: the map cell that
holds rows notices that they changed in place. Where windows merge, a key has a list of those that
still count, or, where they are many, an entry of a map for each. The kernel tells computation, key
and element of an error; of windows it knows nothing.

Source: Dataflow patent, "On-disk state": user state, timers, the last emitted value, tombstones;
FIG. 5, "MergeWindows".
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from millrace.dataflow.windows.window_fn import WindowFn, checked_merge, end_us, joins_overlapping
from millrace.model.coder import Coder, MsgpackCoder, type_name
from millrace.model.errors import AccumulatorRefused, CoderError, PipelineError, brief
from millrace.model.pane import Pane, Window
from millrace.model.state import MapState, ValueState
from millrace.model.time import MAX_TIMESTAMP, format_timestamp


def named(window: Window) -> str:
    """Return a window as errors name it.

    >>> named(Window(0, 60_000_000)), named(Window())
    ('window [1970-01-01T00:00:00Z, 1970-01-01T00:01:00Z)', 'the global window')
    """
    if window.start is None:
        return "the global window"
    return f"window [{format_timestamp(window.start)}, {format_timestamp(end_us(window))})"


def blame(error: BaseException, window: Window) -> None:
    """Note in which window an error was raised: it stays the user's own, and its traceback too."""
    error.add_note(f"in {named(window)}")


#: What is raised of a row that cannot be encoded.
_REFUSED = (msgspec.ValidationError, TypeError, OverflowError, UnicodeError, RecursionError)


class RowTimer(msgspec.Struct, array_like=True):
    """A pending timer of a trigger.

    Attributes:
        at: When, in microseconds.
        node: Number of the trigger in its tree.
        tag: Its name within the trigger.
        clock: Number of the clock.
    """

    at: int
    node: int
    tag: str
    clock: int


class Retractable(msgspec.Struct, array_like=True):
    """A pane that would have to be taken back: the value as it was encoded."""

    value: bytes
    pane: Pane
    timestamp: int


class Armed(msgspec.Struct, array_like=True, frozen=True):
    """The timer that the kernel has for a window on one clock: the earliest of the row's."""

    at: int
    hold: int | None = None


class WindowRow(msgspec.Struct, array_like=True):
    """One window of one key.

    Attributes:
        window: The window.
        size: Elements in the accumulator, retracted ones taken off.
        pending: Elements since the last pane, retractions included.
        late: Those of them that came when the low watermark had passed the window's end.
        earliest: The earliest timestamp among the pending elements.
        latest: The latest timestamp of all elements.
        panes: How many panes were emitted.
        on_time: Whether one of them was ON_TIME or LATE.
        primed: Whether triggers that need not see every element have seen one.
        timers: Pending timers of the triggers.
        state: Trigger's number -> tag -> what it keeps.
        finished: Numbers of triggers that have finished.
        emitted: Panes to take back before the next.
        armed: Clock's number -> the kernel's timer.
        accumulator: Of the values, encoded by :class:`WindowRowCodec`.
    """

    window: Window
    size: int = 0
    pending: int = 0
    late: int = 0
    earliest: int = MAX_TIMESTAMP
    latest: int = 0
    panes: int = 0
    on_time: bool = False
    primed: bool = False
    timers: list[RowTimer] = []
    state: dict[int, dict[str, Any]] = {}
    finished: list[int] = []
    emitted: list[Retractable] = []
    armed: dict[int, Armed] = {}
    accumulator: Any = None

    def set_timer(self, node: int, tag: str, at: int, clock: int) -> None:
        """Set or move a trigger's timer."""
        self.delete_timer(node, tag)
        self.timers.append(RowTimer(at, node, tag, clock))

    def timer(self, node: int, tag: str) -> RowTimer | None:
        """Return a trigger's pending timer."""
        for timer in self.timers:
            if timer.node == node and timer.tag == tag:
                return timer
        return None

    def delete_timer(self, node: int, tag: str) -> None:
        """Cancel a trigger's timer."""
        timer = self.timer(node, tag)
        if timer is not None:
            self.timers.remove(timer)

    def forget(self, node: int) -> None:
        """Delete state and timers of a trigger."""
        self.state.pop(node, None)
        if self.timers:
            self.timers = [timer for timer in self.timers if timer.node != node]


class WindowRowCodec:
    """Encodes rows, with the accumulator by its own type.

    Args:
        accumulator: Type of the accumulator, or its coder.
        checked: Read what is written: a user's accumulator that is not of its type would otherwise
            be found by the next bundle, far from the line at fault.
    """

    type = WindowRow

    def __init__(self, accumulator: Any, *, checked: bool = False) -> None:
        self.accumulator = accumulator
        self.checked = checked
        self._opaque = accumulator if isinstance(accumulator, Coder) else None
        kind = bytes if self._opaque is not None else accumulator
        self._plain = MsgpackCoder(kind)
        typed: Any = msgspec.defstruct(
            "_TypedRow", [("accumulator", kind, None)], bases=(WindowRow,), array_like=True
        )
        self._decode = msgspec.msgpack.Decoder(typed).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, value: Any) -> bytes:
        """Return a row as msgpack."""
        try:
            if self._opaque is None:
                data = self._encode(value)
                if self.checked:
                    self._decode(data)
                    if self._plain.loses and type(value.accumulator) is not self._plain.exact:
                        self._plain.encode(value.accumulator)  # refuses fields that would be lost
                return data
            accumulator = value.accumulator
            value.accumulator = self._opaque.encode(accumulator)
            data = self._encode(value)
            value.accumulator = accumulator
            return data
        except (*_REFUSED, CoderError) as refused:
            raise AccumulatorRefused(self._refusal(value, str(refused))) from None

    def _refusal(self, row: WindowRow, refused: str) -> str:
        """Return what to say of a row that cannot be stored, for which it has one reason only."""
        why, _, _ = refused.partition(" - at `$")  # where in the row is nobody's affair
        return (
            f"the accumulator of {named(row.window)} is {brief(row.accumulator, 120)} "
            f"({type(row.accumulator).__name__}), which cannot be stored: {why}. What create, add, "
            "merge and uncombine return must be of the type that the class says: accumulator = "
            f"{type_name(self.accumulator)}."
        )

    def decode(self, data: bytes) -> Any:
        """Return the row."""
        row = self._decode(data)
        if self._opaque is not None:
            row.accumulator = self._opaque.decode(row.accumulator)
        return row

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "window", "accumulator": self.accumulator}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WindowRowCodec) and other.accumulator == self.accumulator

    def __hash__(self) -> int:
        return hash((WindowRowCodec, repr(self.accumulator)))

    def __repr__(self) -> str:
        return f"RowCoder({self.accumulator!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _row_coder, (self.accumulator, self.checked)


def _row_coder(accumulator: Any, checked: bool) -> WindowRowCodec:
    return WindowRowCodec(accumulator, checked=checked)


class Active(NamedTuple):
    """A window of a key, and the address under which its row is kept.

    The address stays while the window grows, so that a session which is extended is the same row.
    """

    start: int
    end: int
    address: int


class ActiveWindows(list[Active]):
    """The windows of a key that still count, by start: changed in place, as there may be many.

    >>> active = ActiveWindows([Active(0, 10, 3), Active(20, 30, 7)])
    >>> active.next_address()
    8
    >>> active.discard(Active(20, 30, 7)), active.next_address()
    (None, 4)
    """

    __slots__ = ("_addresses",)

    def __init__(self, windows: Iterable[Active] = ()) -> None:
        super().__init__(windows)
        #: In order; None until they are asked for.
        self._addresses: list[int] | None = None

    def add(self, window: Active) -> None:
        """Add a window."""
        insort(self, window)
        if self._addresses is not None:
            insort(self._addresses, window.address)

    def discard(self, window: Active) -> None:
        """Remove a window, if it is one of these."""
        place = bisect_left(self, window)
        if self[place : place + 1] == [window]:
            del self[place]
            if self._addresses is not None:
                del self._addresses[bisect_left(self._addresses, window.address)]

    def overlapping(self, start: int, end: int) -> list[Active]:
        """Return those that have a part of an interval, where no two of them overlap."""
        first, stop = bisect_left(self, (start,)), bisect_left(self, (end,))
        if first and self[first - 1].end > start:
            first -= 1
        return self[first:stop]

    def next_address(self) -> int:
        """Return an address above all others."""
        if self._addresses is None:
            self._addresses = sorted(map(_address, self))
        return self._addresses[-1] + 1 if self._addresses else 0


_address = attrgetter("address")


class SpreadHead(NamedTuple):
    """What is kept in one place of the windows of a key that are too many for a list."""

    size: int
    next_address: int


class SpreadWindows:
    """The windows of a key that still count, each in an entry of its own, by its end.

    So a window costs what it meets, and not what the key has. No two of them overlap.

    Args:
        head: What is kept of them in one place.
        places: End of each -> its start and address.
    """

    def __init__(self, head: SpreadHead, places: MapState[tuple[int, int]]) -> None:
        self.size, self._next_address = head
        self._places = places

    def __iter__(self) -> Iterator[Active]:
        for end in self._places:
            start, address = self._places[end]
            yield Active(start, end, address)

    def add(self, window: Active) -> None:
        """Add a window."""
        self._places[window.end] = window.start, window.address
        self.size += 1
        self._next_address = max(self._next_address, window.address + 1)

    def discard(self, window: Active) -> None:
        """Remove a window, if it is one of these."""
        if self._places.get(window.end) == (window.start, window.address):
            del self._places[window.end]
            self.size -= 1

    def overlapping(self, start: int, end: int) -> list[Active]:
        """Return those that have a part of an interval."""
        windows: list[Active] = []
        places = self._places
        for known_end in places.between(start + 1):
            known_start, address = places[known_end]
            if known_start >= end:
                break
            windows.append(Active(known_start, known_end, address))
        return windows

    def next_address(self) -> int:
        """Return an address that none has."""
        return self._next_address

    @property
    def head(self) -> SpreadHead:
        """What is to be kept of them in one place."""
        return SpreadHead(self.size, self._next_address)


#: A list with more windows is spread, and of fewer a list is made again: it costs less to read.
LISTED_MOST = 128
SPREAD_LEAST = 32


class KeptWindows:
    """The windows of the current key that still count, as its cells have them.

    Args:
        listed: A list of them, or, where there are many, what is kept of them in one place.
        places: Those of a key that has many; None if windows may overlap, and each has to be
            compared with all.
    """

    def __init__(
        self,
        listed: ValueState[ActiveWindows | SpreadHead],
        places: MapState[tuple[int, int]] | None,
    ) -> None:
        self._listed = listed
        self._places = places

    def get(self) -> ActiveWindows | SpreadWindows:
        """Return the windows; :meth:`set` them when they have changed."""
        value = self._listed.get()
        if isinstance(value, SpreadHead):
            assert self._places is not None, "a list was spread"
            return SpreadWindows(value, self._places)
        return ActiveWindows() if value is None else value

    def set(self, windows: ActiveWindows | SpreadWindows) -> None:
        """Keep the windows."""
        if isinstance(windows, SpreadWindows):
            if windows.size >= SPREAD_LEAST:
                self._listed.set(windows.head)
                return
            together = ActiveWindows(windows)
            for window in together:
                windows.discard(window)
            windows = together
        elif self._places is not None and len(windows) > LISTED_MOST:
            apart = SpreadWindows(SpreadHead(0, 0), self._places)
            for window in windows:
                apart.add(window)
            self._listed.set(apart.head)
            return
        self._listed.set(windows or None)


class WindowMerge(NamedTuple):
    """Windows that become one: what it is, and those there were."""

    whole: Window
    old: list[Active]


class Merging:
    """Merges windows as a WindowFn says.

    Args:
        window_fn: One whose windows merge.
    """

    def __init__(self, window_fn: WindowFn) -> None:
        self._window_fn = window_fn
        earlier = getattr(window_fn, "earlier", window_fn)
        #: Then only the neighbours of a new one need be looked at.
        self.overlapping = joins_overlapping(earlier)

    def with_window(
        self, active: ActiveWindows | SpreadWindows, window: Window
    ) -> list[WindowMerge]:
        """Return the merges that a new window makes; that of the window itself comes last.

        Args:
            active: The key's windows, by start.
            window: The new one.

        Raises:
            PipelineError: A user's merge function invents or loses windows.
        """
        start, end = window.start, end_us(window)
        if start is None:
            raise PipelineError(f"{self._window_fn!r}: the global window cannot merge with others.")
        if self.overlapping:
            # They do not overlap, so those that this one does stand together.
            old = active.overlapping(start, end)
            if not old:
                return [WindowMerge(window, old)]
            whole = Window(min(old[0].start, start), max(old[-1].end, end))
            return [WindowMerge(whole, old)]
        for known in active:
            if known.start == start and known.end == end:
                return [WindowMerge(window, [known])]
        by_window = {Window(known.start, known.end): known for known in active}
        windows = sorted([*by_window, window], key=lambda w: (w.start, w.end))
        merges, last_merge = [], None
        for whole, sources in checked_merge(self._window_fn, windows):
            merge = WindowMerge(
                whole, [by_window[source] for source in sources if source != window]
            )
            if window in sources:
                last_merge = merge
            elif len(merge.old) > 1:
                merges.append(merge)
        assert last_merge is not None, "checked_merge loses no window"
        return [*merges, last_merge]


_ENTRY = struct.Struct(">qqq")


_SPREAD = struct.Struct(">qq")


class ActiveCoder:
    """Encodes the windows of a key, 24 bytes each, or what is kept of many in one place, in 16."""

    type = ActiveWindows
    #: Who changes them in place sets them, too: most bundles would compare them in vain.
    immutable = True

    def encode(self, value: ActiveWindows | SpreadHead) -> bytes:
        """Return the windows one after the other."""
        if isinstance(value, SpreadHead):
            return _SPREAD.pack(*value)
        return b"".join(_ENTRY.pack(*active) for active in value)

    def decode(self, data: bytes) -> ActiveWindows | SpreadHead:
        """Return the windows."""
        if len(data) == _SPREAD.size:
            return SpreadHead(*_SPREAD.unpack(data))
        return ActiveWindows(map(Active._make, _ENTRY.iter_unpack(data)))

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "windows"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActiveCoder)

    def __hash__(self) -> int:
        return hash(ActiveCoder)

    def __repr__(self) -> str:
        return "ActiveCoder()"


class PlaceCoder:
    """Encodes start and address of a window, in 16 bytes."""

    type = tuple
    immutable = True

    def encode(self, value: tuple[int, int]) -> bytes:
        """Return both, one after the other."""
        return _SPREAD.pack(*value)

    def decode(self, data: bytes) -> tuple[int, int]:
        """Return start and address."""
        start, address = _SPREAD.unpack(data)
        return start, address

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "place of a window"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceCoder)

    def __hash__(self) -> int:
        return hash(PlaceCoder)

    def __repr__(self) -> str:
        return "PlaceCoder()"
