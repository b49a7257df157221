"""SequenceOf: one trigger after another."""

from __future__ import annotations

from typing import Any

from millrace.dataflow.triggers.trigger import CompositeTrigger


class SequenceOf(CompositeTrigger):
    """Fires as the first of its triggers until that is done, then as the second, and so on.

    When windows merge, the merged one continues with the earliest trigger that any of them is at.
    Source: Dataflow patent, "SequenceOf", appendix A.

    >>> from millrace.dataflow.triggers import AfterCount, AtWatermark, Repeat
    >>> SequenceOf(AfterCount(1), Repeat(AtWatermark()))
    SequenceOf(AfterCount(1), Repeat(AtWatermark()))
    """

    finishes = True

    def on_element(self, ctx: Any) -> None:
        """Ask the trigger whose turn it is."""
        ctx.invoke_child(ctx.get("index", 0))
        self.after(ctx)

    def on_merge(self, ctx: Any) -> None:
        """Ask the triggers from the least index on, as long as they fire and are done."""
        index = min((source.get("index", 0) for source in ctx.sources), default=0)
        while index < len(self.children):
            before = len(ctx.trigger_history)
            ctx.invoke_child(index)
            if len(ctx.trigger_history) > before:
                ctx.trigger(ctx.trigger_history.mode)
            if not ctx.child_finished(index):
                break
            index += 1
        self._stand(ctx, index)

    def after(self, ctx: Any) -> None:
        """Fire as the child; go on to the next when it is done."""
        if len(ctx.trigger_history):
            ctx.trigger(ctx.trigger_history.mode)
        index = ctx.get("index", 0)
        if ctx.child_finished(index):
            self._stand(ctx, index + 1)

    def _stand(self, ctx: Any, index: int) -> None:
        if index == len(self.children):
            ctx.done()
        elif index:
            ctx.set("index", index)

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """If each child may: one that waits for the last element is enough."""
        return all(child.may_lose_data(complete_at_end=complete_at_end) for child in self.children)

    @property
    def fires_before_end_of_input(self) -> bool:
        """Whether the first can: the others wait for it."""
        return self.children[0].fires_before_end_of_input

    def may_fire_early(self, *, complete_at_end: bool) -> bool:
        """If the first may."""
        return self.children[0].may_fire_early(complete_at_end=complete_at_end)
