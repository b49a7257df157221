"""Trigger: when the result of a window is emitted; CompositeTrigger: one made of others.

Source: Dataflow patent, "Triggers API 400", "Implementation of the triggers API", appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from millrace.dataflow.side_stream import SideStream
from millrace.dataflow.value import Value
from millrace.model.coroutines import truth
from millrace.model.errors import PipelineError, brief

if TYPE_CHECKING:
    from millrace.dataflow.triggers.context import (
        ElementContext,
        MergeContext,
        TimerContext,
        TriggerContext,
    )


class Trigger(Value):
    """Says when a window emits a pane.

    A value: equal by what it was made with, and it must pickle. One object serves all windows, so
    nothing of a window may be kept in an attribute. State and timers of a window are in the context
    that each callback gets, and calls on it are how a trigger answers::

        class OnMultiples(mr.Trigger):
            def __init__(self, of):
                self.of = of

            def on_element(self, ctx):
                if ctx.peek() % self.of == 0:
                    ctx.trigger()

    For a trigger that looks at elements only there is a shorter form: define ``should_emit(self,
    element, state)`` instead. It is called for every element after it has been added, with the
    state that it returned for the last one (None at first). It returns whether to emit and the new
    state::

        class OnRise(mr.Trigger):
            def should_emit(self, element, state):
                return state is not None and element > state, element
    """

    #: Whether ``on_element`` must see every element. If not, a second call before any other
    #: callback of the window would change nothing, and is left out.
    per_element = True
    #: Whether the trigger calls ``ctx.done()``, after which its window takes no more elements.
    finishes = False
    #: Whether it needs ``ctx.bytes``, the encoded size of elements.
    needs_bytes = False
    #: Percentile low watermarks that its timers wait for, from 1 to 99.
    percentiles: frozenset[int] = frozenset()
    #: Streams of signals that it fires by, and how a grouping takes them.
    signals: Mapping[str, SideStream] = MappingProxyType({})

    @property
    def children(self) -> tuple[Trigger, ...]:
        """The triggers that this one is made of."""
        return ()

    def on_element(self, ctx: ElementContext) -> None:
        """React to an element that has just been added to the window.

        Called once for every element, in order of arrival. By default calls ``should_emit``.
        """
        should_emit = getattr(self, "should_emit", None)
        if should_emit is None:
            raise NotImplementedError(
                f"{type(self).__name__} has neither on_element nor should_emit"
            )
        answer = should_emit(ctx.element, ctx.get("state"))
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise PipelineError(
                f"{self!r}.should_emit returned {brief(answer)}. Expected two things: whether to "
                "emit, and the new state."
            )
        emit, state = answer
        ctx.set("state", state)
        if truth(emit, f"{type(self).__name__}.should_emit"):
            ctx.trigger()

    def on_merge(self, ctx: MergeContext) -> None:
        """Put together what windows that merge, or one that grows, had of this trigger.

        The merged window begins without state and timers of this trigger; what the sources had is
        in ``ctx.sources``, those in which this trigger had finished left out. Called only if the
        windows of the pipeline can merge. By default refused.

        Merge and element are one step. The element for which they merge is in the window already,
        and ``on_element`` is called next. Only then is the trigger asked whether to fire. What it
        answers here counts then too, and children show in ``ctx.trigger_history`` then. (A user's
        windows may merge besides that of the element: then it is asked at once.)
        """
        raise PipelineError(
            f"{self!r} does not say what becomes of its state when windows merge. Define "
            "on_merge(self, ctx), which reads ctx.sources and writes with ctx.set and "
            "ctx.set_timer."
        )

    def on_timer(self, ctx: TimerContext) -> None:
        """React to a timer that this trigger set: ``ctx.tag``, ``ctx.at``, ``ctx.domain``."""

    def should_fire(self, ctx: TriggerContext) -> bool:
        """Return whether to emit after the callback that just ran on this trigger.

        By default: whether it called ``ctx.trigger()``. A trigger may answer here instead.
        """
        return ctx.triggered

    def reset(self, ctx: TriggerContext) -> None:
        """React to being started over (by ``Repeat``). State and timers are deleted afterwards."""

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """Return whether this trigger may finish while its window can still get elements.

        Args:
            complete_at_end: Whether the window takes no elements once the low watermark has
                reached its end: there is no allowed lateness.
        """
        return self.finishes

    def may_fire_early(self, *, complete_at_end: bool) -> bool:
        """Return whether this trigger may fire while its window can still get elements."""
        return True

    @property
    def fires_before_end_of_input(self) -> bool:
        """Whether it can fire for a window without end before the input has ended."""
        return True


class CompositeTrigger(Trigger):
    """A trigger made of others.

    Callbacks reach children only through ``ctx.invoke_child(n)``, which runs the current callback
    on the n-th child, in a namespace of its own: state and timers of two children never meet. A
    child that has finished is not called. What children triggered during this callback is in
    ``ctx.trigger_history``; nothing is emitted unless this trigger calls ``ctx.trigger()`` too.

    Derive from it, and define ``on_element``, ``on_merge``, and ``on_child_timer`` where the
    default will not do.
    """

    def __init__(self, *triggers: Trigger) -> None:
        if not triggers:
            raise PipelineError(f"{type(self).__name__}() is made of no triggers. Give it some.")
        for trigger in triggers:
            _check_trigger(trigger, type(self).__name__)
        self.triggers = triggers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.children))})"

    @property
    def children(self) -> tuple[Trigger, ...]:
        """The triggers that this one is made of."""
        return self.triggers

    @property
    def per_element(self) -> bool:  # type: ignore[override]  # a child may say otherwise
        """Whether a child must see every element."""
        return any(child.per_element for child in self.children)

    @property
    def needs_bytes(self) -> bool:  # type: ignore[override]
        """Whether a child needs the size of elements."""
        return any(child.needs_bytes for child in self.children)

    @property
    def percentiles(self) -> frozenset[int]:  # type: ignore[override]
        """Those of the children."""
        return frozenset().union(*(child.percentiles for child in self.children))

    @property
    def signals(self) -> Mapping[str, SideStream]:  # type: ignore[override]
        """Those of the children."""
        streams: dict[str, SideStream] = {}
        for child in self.children:
            for stream, taken in child.signals.items():
                if (other := streams.setdefault(stream, taken)) != taken:
                    raise PipelineError(
                        f"{self!r} takes signals of stream {stream!r} by two keys, "
                        f"{other.extractor!r} and {taken.extractor!r}. Give it a second name, "
                        "stream.to(...)."
                    )
        return streams

    @property
    def fires_before_end_of_input(self) -> bool:
        """Whether a child can fire for a window without end before the input has ended."""
        return any(child.fires_before_end_of_input for child in self.children)

    def on_child_timer(self, ctx: TimerContext) -> None:
        """React to a timer of the child ``ctx.child``, or of one below it.

        ``ctx.invoke_child(ctx.child)`` lets the child react. By default that, and what ``after``
        does.
        """
        ctx.invoke_child(ctx.child)
        self.after(ctx)

    def after(self, ctx: Any) -> None:
        """Draw conclusions from ``ctx.trigger_history``; called at the end of the callbacks."""

    def reset(self, ctx: TriggerContext) -> None:
        """Start all children over."""
        for n in range(len(self.children)):
            ctx.reset_child(n)


class AskAll(CompositeTrigger):
    """A trigger that asks all its children in order, and then draws its conclusions."""

    def on_element(self, ctx: Any) -> None:
        """Ask all, in order."""
        for child in range(len(self.children)):
            ctx.invoke_child(child)
        self.after(ctx)

    def on_merge(self, ctx: Any) -> None:
        """Ask all, in order."""
        self.on_element(ctx)

    def may_fire_early(self, *, complete_at_end: bool) -> bool:
        """If any child may."""
        return any(child.may_fire_early(complete_at_end=complete_at_end) for child in self.children)


def _check_trigger(trigger: object, where: str) -> None:
    if isinstance(trigger, type) and issubclass(trigger, Trigger):
        raise PipelineError(
            f"{where} was given the class {trigger.__name__}. Give it a trigger: "
            f"{trigger.__name__}(...)."
        )
    if not isinstance(trigger, Trigger):
        raise PipelineError(
            f"{where} was given {trigger!r}. Expected triggers, such as mr.AtWatermark()."
        )
