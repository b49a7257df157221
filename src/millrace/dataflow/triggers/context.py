"""What a trigger's callback sees and can do: state, timers and clocks of one window.

Every context belongs to one trigger of the tree, in one window, during one callback.

Source: Dataflow patent, "Implementation of the triggers API": OnDatumContext, OnMergeContext,
OnTimerContext, and their composite forms.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError, brief
from millrace.model.pane import Window
from millrace.model.record import LOW_WATERMARK, WALL_TIME, TimeDomain, Timer
from millrace.model.time import MAX_TIMESTAMP, Instant, timestamp_us

if TYPE_CHECKING:
    from millrace.dataflow.grouping.window_state import WindowRow
    from millrace.dataflow.triggers.tree import Callback
    from millrace.dataflow.triggers.trigger import Trigger


class FireMode(enum.IntEnum):
    """What a trigger asks to become of the window's contents after a pane."""

    #: As the accumulation mode of the grouping says.
    DEFAULT = 0
    #: Keep them, also in DISCARDING mode.
    ACCUMULATE = 1
    #: Clear them, also in the accumulating modes.
    CLEAR = 2


def _check_clock(call: str, domain: TimeDomain) -> None:
    if domain not in (LOW_WATERMARK, WALL_TIME):
        raise PipelineError(
            f"ctx.{call}(..., domain={brief(domain, 120)}): expected mr.LOW_WATERMARK or "
            "mr.WALL_TIME."
        )


@dataclass(frozen=True)
class TriggerEvent:
    """A child that triggered during a callback."""

    child: int
    trigger: Trigger
    mode: FireMode


class TriggerHistory:
    """The children that triggered so far during a callback, in order; grandchildren never show."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[TriggerEvent] = []

    def add(self, event: TriggerEvent) -> None:
        """Append an event."""
        self._events.append(event)

    @property
    def mode(self) -> FireMode:
        """What the children ask for together: CLEAR if all do, ACCUMULATE if one does."""
        modes = {event.mode for event in self._events}
        if modes == {FireMode.CLEAR}:
            return FireMode.CLEAR
        return FireMode.ACCUMULATE if FireMode.ACCUMULATE in modes else FireMode.DEFAULT

    def __iter__(self) -> Iterator[TriggerEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)


class TriggerContext:
    """What all callbacks share.

    Attributes:
        triggered: Whether ``trigger`` was called.
        mode: With which mode.
    """

    __slots__ = ("_call", "_history", "_node", "finished", "mode", "triggered")

    def __init__(self, call: Callback, node: int) -> None:
        self._call = call
        self._node = node
        self._history: TriggerHistory | None = None
        self.triggered = False
        self.finished = False
        self.mode = FireMode.DEFAULT

    # -- looking -----------------------------------------------------------------------------------

    @property
    def window(self) -> Window:
        """The window; when windows merge, the merged one."""
        return self._call.row.window

    def now(self, domain: TimeDomain = LOW_WATERMARK) -> int:
        """Return where a clock stands, in microseconds."""
        _check_clock("now", domain)
        return self._call.clocks.now(domain)

    def peek(self) -> Any:
        """Return the aggregate of the window as a pane would have it now."""
        return self._call.clocks.peek(self._call.row)

    # -- state -------------------------------------------------------------------------------------

    def get(self, tag: str, default: Any = None) -> Any:
        """Return this trigger's state in this window under a tag."""
        return self._call.row.state.get(self._node, {}).get(tag, default)

    def set(self, tag: str, value: Any) -> None:
        """Keep something under a tag: whatever msgpack carries; None forgets it."""
        state = self._call.row.state.setdefault(self._node, {})
        if value is None:
            state.pop(tag, None)
            if not state:
                del self._call.row.state[self._node]
        else:
            state[tag] = value

    # -- timers ------------------------------------------------------------------------------------

    def set_timer(
        self, tag: str, at: Instant, domain: TimeDomain = LOW_WATERMARK, *, percentile: int = 100
    ) -> None:
        """Have ``on_timer`` called when a clock reaches ``at``; setting a tag again moves it.

        A percentile of the low watermark must be among the trigger's ``percentiles``.
        """
        _check_clock("set_timer", domain)
        trigger = self._call.tree.triggers[self._node]
        if percentile != 100 and (domain == WALL_TIME or percentile not in trigger.percentiles):
            raise PipelineError(
                f"ctx.set_timer({brief(tag, 120)}, ..., percentile={brief(percentile, 120)}): "
                f"nothing of {trigger!r} waits for that of the low watermark. Declare it in its "
                "class: percentiles = frozenset({90})."
            )
        clock = self._call.clocks.number(domain, percentile)
        self._call.row.set_timer(self._node, tag, min(timestamp_us(at), MAX_TIMESTAMP), clock)

    def get_timer(self, tag: str) -> Timer | None:
        """Return this trigger's pending timer under a tag."""
        timer = self._call.row.timer(self._node, tag)
        return None if timer is None else self._call.clocks.timer(tag, timer)

    def delete_timer(self, tag: str) -> None:
        """Cancel a timer; nothing happens if there is none."""
        self._call.row.delete_timer(self._node, tag)

    # -- answering ---------------------------------------------------------------------------------

    def trigger(self, mode: FireMode = FireMode.DEFAULT) -> None:
        """Emit a pane when this callback is over; of a child, tell the parent."""
        if not isinstance(mode, FireMode):
            raise PipelineError(
                f"ctx.trigger({brief(mode, 120)}): expected mr.FireMode.ACCUMULATE, CLEAR or "
                "DEFAULT."
            )
        self.triggered = True
        self.mode = mode

    def done(self) -> None:
        """Finish this trigger in this window: it is not called again unless it is started over.

        When the outermost trigger has finished, its window takes no more elements; those that
        come are counted as ``dropped_after_finish``.
        """
        trigger = self._call.tree.triggers[self._node]
        if not trigger.finishes:
            raise PipelineError(
                f"{trigger!r} called ctx.done(), and its class says finishes = False. Set "
                "finishes = True there, so that a pipeline that may lose data by it is refused."
            )
        self.finished = True

    # -- of composites -----------------------------------------------------------------------------

    @property
    def trigger_history(self) -> TriggerHistory:
        """The children that triggered so far during this callback."""
        if self._history is None:
            self._history = TriggerHistory()
        return self._history

    def invoke_child(self, child: int | Trigger) -> None:
        """Run the current callback on a child, given by position (or itself, if it is unique).

        Nothing happens if the child has finished.
        """
        position, node = self._call.tree.child(self._node, child)
        fire = self._call.invoke(node)
        if fire is not None and fire.triggered:
            event = TriggerEvent(position, self._call.tree.triggers[node], fire.mode)
            self.trigger_history.add(event)

    def reset_child(self, child: int | Trigger) -> None:
        """Start a child over: without state, timers and tombstone, and those below it."""
        self._call.reset(self._call.tree.child(self._node, child)[1])

    def child_finished(self, child: int | Trigger) -> bool:
        """Return whether a child has finished."""
        return self._call.tree.child(self._node, child)[1] in self._call.row.finished


class ElementContext(TriggerContext):
    """The context of ``on_element``."""

    __slots__ = ()

    @property
    def element(self) -> Any:
        """The element: what is aggregated, before it was."""
        return self._call.element

    @property
    def timestamp(self) -> int:
        """The element's event time."""
        return self._call.timestamp_us

    @property
    def elements(self) -> int:
        """How many elements it stands for: 1, or more for values combined before."""
        return self._call.elements

    @property
    def bytes(self) -> int:
        """The encoded size of the element; 0 unless the trigger says ``needs_bytes``."""
        return self._call.bytes


class TimerContext(TriggerContext):
    """The context of ``on_timer`` and ``on_child_timer``."""

    __slots__ = ()

    @property
    def tag(self) -> str:
        """The timer's tag."""
        return self._call.tag

    @property
    def at(self) -> int:
        """The time that it was set for."""
        return self._call.at_us

    @property
    def domain(self) -> TimeDomain:
        """Its clock."""
        return self._call.domain

    @property
    def child(self) -> int:
        """In ``on_child_timer``: the position of the child that it belongs to."""
        return self._call.child_on_path(self._node)


class MergeSource:
    """One of the windows that merge, as one trigger sees it."""

    __slots__ = ("_clocks", "_node", "_row")

    def __init__(self, clocks: Any, row: WindowRow, node: int) -> None:
        self._clocks, self._row, self._node = clocks, row, node

    @property
    def window(self) -> Window:
        """The window."""
        return self._row.window

    def get(self, tag: str, default: Any = None) -> Any:
        """Return the trigger's state in that window."""
        return self._row.state.get(self._node, {}).get(tag, default)

    def get_timer(self, tag: str) -> Timer | None:
        """Return the trigger's pending timer in that window."""
        timer = self._row.timer(self._node, tag)
        return None if timer is None else self._clocks.timer(tag, timer)


class MergeContext(TriggerContext):
    """The context of ``on_merge``."""

    __slots__ = ()

    @property
    def sources(self) -> Sequence[MergeSource]:
        """The windows that merge, by start, but those in which this trigger had finished."""
        return [
            MergeSource(self._call.clocks, row, self._node)
            for row in self._call.sources
            if self._node not in row.finished
        ]
