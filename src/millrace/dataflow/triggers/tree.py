"""TriggerTree: runs the callbacks of a trigger and those that it is made of, in one window.

Each trigger of the tree has a number, from the outermost down: its namespace in the window's state
and timers. Two equal triggers in two places have two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from millrace.dataflow.grouping.window_state import RowTimer, WindowRow
from millrace.dataflow.triggers.context import (
    ElementContext,
    FireMode,
    MergeContext,
    TimerContext,
    TriggerContext,
)
from millrace.dataflow.triggers.data import AfterCount
from millrace.dataflow.triggers.repeat import Repeat
from millrace.dataflow.triggers.signal import OnSignal
from millrace.dataflow.triggers.trigger import CompositeTrigger, Trigger
from millrace.model.coroutines import truth
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK, TimeDomain, Timer


class TriggerClocks(Protocol):
    """What the tree asks of the grouping that it is part of."""

    def now(self, domain: TimeDomain) -> int:
        """Return where a clock stands."""

    def number(self, domain: TimeDomain, percentile: int) -> int:
        """Return the number under which a row keeps a clock's timers."""

    def timer(self, tag: str, timer: RowTimer) -> Timer:
        """Return a timer as its trigger knows it."""

    def peek(self, row: WindowRow) -> Any:
        """Return the aggregate of a window."""


class Fire:
    """A pane is to be emitted.

    Attributes:
        mode: What becomes of the contents.
        trigger: The innermost trigger that asked for it.
    """

    __slots__ = ("mode", "trigger")

    def __init__(self, mode: FireMode, trigger: str) -> None:
        self.mode = mode
        self.trigger = trigger


class TriggerTree:
    """A trigger and all below it, numbered.

    Attributes:
        triggers: By number; 0 is the outermost.
        signals: Stream of signals -> numbers of the triggers that fire by it.
        with_each: What each element's callback comes to, if that is always the same; else None.
    """

    def __init__(self, trigger: Trigger) -> None:
        self.triggers: list[Trigger] = []
        self._children: list[list[int]] = []
        self._parents: list[int] = []
        self._number(trigger, -1)
        self.names = [repr(each) for each in self.triggers]
        self.signals: dict[str, list[int]] = {}
        for node, each in enumerate(self.triggers):
            if isinstance(each, OnSignal):
                for stream in each.signals:
                    self.signals.setdefault(stream, []).append(node)
        self.per_element = trigger.per_element
        self.needs_bytes = trigger.needs_bytes
        self.with_each = self._fires_with_each()

    def _fires_with_each(self) -> Fire | None:
        """Return what each element's callback comes to where it is always the same; else None.

        ``Repeat(AfterCount(1))`` keeps no state from one element to the next.
        """
        if [*map(type, self.triggers)] != [Repeat, AfterCount]:
            return None
        counts = self.triggers[1]
        assert isinstance(counts, AfterCount)
        return Fire(FireMode.DEFAULT, self.names[1]) if counts.threshold == 1 else None

    def _number(self, trigger: Trigger, parent: int) -> int:
        node = len(self.triggers)
        self.triggers.append(trigger)
        self._parents.append(parent)
        self._children.append([])
        self._children[node] = [self._number(child, node) for child in trigger.children]
        return node

    def child(self, node: int, child: int | Trigger) -> tuple[int, int]:
        """Return position and number of a child of a trigger."""
        children = self._children[node]
        if isinstance(child, int):
            if 0 <= child < len(children):
                return child, children[child]
        else:
            found = [
                (position, number)
                for position, number in enumerate(children)
                if self.triggers[number] is child
            ]
            if len(found) == 1:
                return found[0]
        raise PipelineError(
            f"{self.triggers[node]!r} has no child {child!r}, or has it twice. Name a child by its "
            f"position in its children: 0 to {len(children) - 1}."
        )

    def path(self, node: int) -> dict[int, int]:
        """Return, for each trigger above a node, the child that leads to it."""
        path = {}
        while (parent := self._parents[node]) >= 0:
            path[parent] = node
            node = parent
        return path

    def position(self, parent: int, node: int) -> int:
        """Return the position of a node among its parent's children."""
        return self._children[parent].index(node)

    def below(self, node: int) -> list[int]:
        """Return a node and all below it."""
        nodes = [node]
        for child in self._children[node]:
            nodes += self.below(child)
        return nodes

    # -- the callbacks -----------------------------------------------------------------------------

    def on_element(
        self,
        clocks: TriggerClocks,
        row: WindowRow,
        merged: Sequence[WindowRow],
        element: Any,
        timestamp_us: int,
        elements: int,
        size: int,
    ) -> Fire | None:
        """Tell the triggers of an element that has been added, and ask them.

        Args:
            clocks: Of the grouping.
            row: The window, which has no state yet if it was merged for the element.
            merged: Those that merged into it for the element: triggers hear of that first.
            element: What is aggregated.
            timestamp_us: Its event time.
            elements: How many elements it stands for.
            size: Their encoded size.
        """
        if self.with_each is not None and not merged:
            row.primed = True
            return self.with_each
        call = Callback(self, clocks, row, "element")
        if merged:
            call.put_together(merged)
        call.element, call.timestamp_us = element, timestamp_us
        call.elements, call.bytes = elements, size
        fire = call.run()
        row.primed = True
        return fire

    def on_merge(
        self, clocks: TriggerClocks, row: WindowRow, sources: Sequence[WindowRow]
    ) -> Fire | None:
        """Tell the triggers that windows have merged into this one, and ask them.

        The row has no state yet. Only for windows that merge besides that of an element.
        """
        call = Callback(self, clocks, row, "merge")
        call.sources = sources
        return call.run()

    def on_signal(self, clocks: TriggerClocks, row: WindowRow, stream: str) -> Iterator[Fire]:
        """Tell the triggers that wait for a signal of a stream that one is here.

        Yields:
            What is to be emitted before the next is told.
        """
        for node in self.signals[stream]:
            if row.state.get(node, {}).get("waits"):
                now_us = clocks.now(LOW_WATERMARK)
                fire = self.on_timer(clocks, row, RowTimer(now_us, node, "signal", 0))
                if fire is not None:
                    yield fire

    def on_timer(self, clocks: TriggerClocks, row: WindowRow, timer: RowTimer) -> Fire | None:
        """Tell the trigger that set it, through those above it, of a timer."""
        row.primed = False
        call = Callback(self, clocks, row, "timer")
        call.tag, call.at_us, call.target = timer.tag, timer.at, timer.node
        call.domain = clocks.timer(timer.tag, timer).domain
        call.path = self.path(timer.node)
        return call.run()


class Callback:
    """One callback on its way through the tree."""

    __slots__ = (
        "answers", "at_us", "bytes", "clocks", "domain", "element", "elements", "fired", "kind",
        "path", "row", "sources", "tag", "target", "timestamp_us", "tree",
    )  # fmt: skip

    def __init__(self, tree: TriggerTree, clocks: TriggerClocks, row: WindowRow, kind: str) -> None:
        self.tree = tree
        self.clocks = clocks
        self.row = row
        self.kind = kind
        self.fired = ""
        self.element: Any = None
        self.timestamp_us = 0
        self.elements = 1
        self.bytes = 0
        self.sources: Sequence[WindowRow] = ()
        self.tag = ""
        self.at_us = 0
        self.domain = LOW_WATERMARK
        self.target = -1
        self.path: dict[int, int] = {}
        self.answers: dict[int, TriggerContext] = {}

    def put_together(self, sources: Sequence[WindowRow]) -> None:
        """Tell the triggers of a merge that an element has made, before they hear of the element.

        What they answer counts when they have: a pane has the element that its window spans, and
        what they have counted by then is behind them.
        """
        self.kind, self.sources = "join", sources
        self.invoke(0)
        self.kind = "element"

    def run(self) -> Fire | None:
        """Run the callback on the outermost trigger."""
        fire = self.invoke(0)
        return Fire(fire.mode, self.fired) if fire is not None and fire.triggered else None

    def invoke(self, node: int) -> TriggerContext | None:
        """Run the callback on one trigger; None if it has finished, or the timer is not its."""
        row, trigger, kind = self.row, self.tree.triggers[node], self.kind
        if node in row.finished:
            return None
        ctx: TriggerContext
        if kind == "element":
            ctx = ElementContext(self, node)
            if (answer := self.answers.pop(node, None)) is not None:
                ctx.triggered, ctx.finished = answer.triggered, answer.finished
                ctx.mode = answer.mode
            trigger.on_element(ctx)
        elif kind == "join":
            self.answers[node] = ctx = MergeContext(self, node)
            trigger.on_merge(ctx)
            return None
        elif kind == "merge":
            ctx = MergeContext(self, node)
            trigger.on_merge(ctx)
        else:
            ctx = TimerContext(self, node)
            if node == self.target:
                trigger.on_timer(ctx)
            elif node in self.path and isinstance(trigger, CompositeTrigger):
                trigger.on_child_timer(ctx)
            else:
                return None
        fires = trigger.should_fire(ctx)
        if fires is not True and fires is not False:
            fires = truth(fires, f"{type(trigger).__name__}.should_fire")
        if fires:
            ctx.triggered = True
            if not self.fired:
                self.fired = self.tree.names[node]
        if ctx.finished:
            self.finish(node)
        return ctx

    def finish(self, node: int) -> None:
        """Leave a tombstone: of the trigger and all below it only that it has finished."""
        for below in self.tree.below(node):
            self.row.forget(below)
        self.row.finished = sorted({*self.row.finished, node})

    def reset(self, node: int) -> None:
        """Start a trigger over."""
        self.tree.triggers[node].reset(TriggerContext(self, node))
        for below in self.tree.below(node):
            self.row.forget(below)
            self.answers.pop(below, None)
            if below in self.row.finished:
                self.row.finished.remove(below)

    def child_on_path(self, node: int) -> int:
        """Return the position of the child through which the timer's trigger is reached."""
        return self.tree.position(node, self.path[node])
