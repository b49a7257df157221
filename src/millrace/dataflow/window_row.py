"""WindowRow: all that is kept of one window of one key, as one row of state.

It is read and written once a bundle, however many elements the bundle has: the map cell that holds
rows notices that they changed in place.

Source: Dataflow patent, "On-disk state": user state, timers, the last emitted value, tombstones.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.dataflow.blame import named
from millrace.model.brief import brief
from millrace.model.coder import Coder, type_name
from millrace.model.errors import AccumulatorRefused
from millrace.model.pane import Pane, Window
from millrace.model.time import MAX_TIMESTAMP

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
        accumulator: Of the values, encoded by :class:`RowCoder`.
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
        found = self.timer(node, tag)
        if found is not None:
            self.timers.remove(found)

    def forget(self, node: int) -> None:
        """Delete state and timers of a trigger."""
        self.state.pop(node, None)
        if self.timers:
            self.timers = [timer for timer in self.timers if timer.node != node]


class RowCoder:
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
                return data
            accumulator = value.accumulator
            value.accumulator = self._opaque.encode(accumulator)
            data = self._encode(value)
            value.accumulator = accumulator
            return data
        except _REFUSED as refused:
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
        return isinstance(other, RowCoder) and other.accumulator == self.accumulator

    def __hash__(self) -> int:
        return hash((RowCoder, repr(self.accumulator)))

    def __repr__(self) -> str:
        return f"RowCoder({self.accumulator!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _row_coder, (self.accumulator, self.checked)


def _row_coder(accumulator: Any, checked: bool) -> RowCoder:
    return RowCoder(accumulator, checked=checked)
