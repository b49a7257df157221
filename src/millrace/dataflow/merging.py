"""The windows of a key that still count, where windows merge: which become one with a new one.

Source: Dataflow patent, FIG. 5, "MergeWindows".
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from millrace.dataflow.windows.window_fn import (
    WindowFn,
    checked_merge,
    end_us,
    joins_overlapping,
)
from millrace.model.errors import PipelineError
from millrace.model.pane import Window


class Active(NamedTuple):
    """A window of a key, and the address under which its row is kept.

    The address stays while the window grows, so that a session which is extended is the same row.
    """

    start: int
    end: int
    address: int


class Merge(NamedTuple):
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
        # Then only the neighbours of a new one need be looked at.
        self._overlapping = joins_overlapping(earlier)

    def with_window(self, active: list[Active], window: Window) -> list[Merge]:
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
        if self._overlapping:
            old = [known for known in active if known.start < end and start < known.end]
            if not old:
                return [Merge(window, old)]
            first, last = min(old[0].start, start), max(old[-1].end, end)
            return [Merge(Window(first, last), old)]
        for known in active:
            if known.start == start and known.end == end:
                return [Merge(window, [known])]
        by_window = {Window(known.start, known.end): known for known in active}
        windows = sorted([*by_window, window], key=lambda w: (w.start, w.end))
        merges, last_merge = [], None
        for whole, sources in checked_merge(self._window_fn, windows):
            merge = Merge(whole, [by_window[source] for source in sources if source != window])
            if window in sources:
                last_merge = merge
            elif len(merge.old) > 1:
                merges.append(merge)
        assert last_merge is not None, "checked_merge loses no window"
        return [*merges, last_merge]


_ENTRY = struct.Struct(">qqq")


class ActiveCoder:
    """Encodes the windows of a key, 24 bytes each."""

    type = tuple
    immutable = True

    def encode(self, value: tuple[Active, ...]) -> bytes:
        """Return the windows one after the other."""
        return b"".join(_ENTRY.pack(*active) for active in value)

    def decode(self, data: bytes) -> tuple[Active, ...]:
        """Return the windows."""
        return tuple(map(Active._make, _ENTRY.iter_unpack(data)))

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "windows"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActiveCoder)

    def __hash__(self) -> int:
        return hash(ActiveCoder)

    def __repr__(self) -> str:
        return "ActiveCoder()"
