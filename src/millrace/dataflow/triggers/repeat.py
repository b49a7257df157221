"""Repeat, RepeatUntil and RepeatCount: the same trigger again and again."""

from __future__ import annotations

from typing import Any

from millrace.dataflow.triggers.trigger import AskAll, Trigger
from millrace.model.errors import PipelineError


class Repeat(AskAll):
    """Fires whenever its trigger does, and starts that over when it is done, forever.

    Source: Dataflow patent, "Repeat".

    >>> from millrace.dataflow.triggers import AfterCount
    >>> Repeat(AfterCount(100))
    Repeat(AfterCount(100))
    """

    def __init__(self, trigger: Trigger) -> None:
        super().__init__(trigger)

    def after(self, ctx: Any) -> None:
        """Fire as the trigger; start it over when it is done."""
        if len(ctx.trigger_history):
            ctx.trigger(ctx.trigger_history.mode)
        if ctx.child_finished(0):
            ctx.reset_child(0)


class RepeatUntil(AskAll):
    """As ``Repeat``, until another trigger fires: then it fires once more and is done.

    ``RepeatUntil(AtPeriod("1 min"), AtWatermark())`` gives a pane a minute, and one when the low
    watermark reaches the end of the window.

    Source: Dataflow patent, "RepeatUntil", FIG. 6I.
    """

    finishes = True

    def __init__(self, trigger: Trigger, until: Trigger) -> None:
        super().__init__(trigger, until)

    def after(self, ctx: Any) -> None:
        """Fire as either; end when the second fires, else start the first over when it is done."""
        if len(ctx.trigger_history):
            ctx.trigger(ctx.trigger_history.mode)
        if any(event.child == 1 for event in ctx.trigger_history) or ctx.child_finished(1):
            ctx.done()
        elif ctx.child_finished(0):
            ctx.reset_child(0)

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """If the second may."""
        return self.children[1].may_lose_data(complete_at_end=complete_at_end)


class RepeatCount(AskAll):
    """As ``Repeat``, until it has fired so many times; then it is done.

    Source: Dataflow patent, "RepeatCount". When windows merge, they have fired as often as the one
    that has least.
    """

    finishes = True

    def __init__(self, trigger: Trigger, count: int) -> None:
        super().__init__(trigger)
        if type(count) is not int or count < 1:
            raise PipelineError(f"RepeatCount(count={count!r}): expected an int above zero.")
        self.count = count

    def on_merge(self, ctx: Any) -> None:
        """Ask the trigger."""
        fired = min((source.get("fired", 0) for source in ctx.sources), default=0)
        ctx.set("fired", fired or None)
        self.on_element(ctx)

    def after(self, ctx: Any) -> None:
        """Fire as the trigger, and count."""
        if len(ctx.trigger_history):
            ctx.trigger(ctx.trigger_history.mode)
            fired = ctx.get("fired", 0) + 1
            if fired == self.count:
                ctx.done()
                return
            ctx.set("fired", fired)
        if ctx.child_finished(0):
            ctx.reset_child(0)

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """If the trigger may when it fires for the last time."""
        return self.children[0].may_lose_data(complete_at_end=complete_at_end)

    def __repr__(self) -> str:
        return f"RepeatCount({self.children[0]!r}, {self.count})"
