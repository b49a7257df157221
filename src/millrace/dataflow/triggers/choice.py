"""FirstOf and AllOf: any of some triggers, or all of them."""

from __future__ import annotations

from typing import Any

from millrace.dataflow.triggers.trigger import AskAll


class FirstOf(AskAll):
    """Fires when the first of its triggers does, and is done.

    Source: Dataflow patent, "FirstOf", appendix A: "at most one of the provided triggers will be
    allowed to fire".
    """

    finishes = True

    def after(self, ctx: Any) -> None:
        """Fire as the first child that did."""
        for event in ctx.trigger_history:
            ctx.trigger(event.mode)
            ctx.done()
            return

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """If any child may fire while elements can come."""
        return self.may_fire_early(complete_at_end=complete_at_end)


class AllOf(AskAll):
    """Fires when each of its triggers has fired, and is done.

    >>> from millrace.dataflow.triggers import AfterCount, AtWatermark
    >>> AllOf(AtWatermark(), AfterCount(2))
    AllOf(AtWatermark(), AfterCount(2))
    """

    finishes = True

    def on_merge(self, ctx: Any) -> None:
        """Ask all; what has fired in every source has fired."""
        fired = [set(source.get("fired", [])) for source in ctx.sources]
        self._keep(ctx, set.intersection(*fired) if fired else set())
        self.on_element(ctx)

    def after(self, ctx: Any) -> None:
        """Fire when the last child has."""
        fired = set(ctx.get("fired", ()))
        fired.update(event.child for event in ctx.trigger_history)
        self._keep(ctx, fired)
        if len(fired) == len(self.children):
            ctx.trigger(ctx.trigger_history.mode)
            ctx.done()

    def _keep(self, ctx: Any, fired: set[int]) -> None:
        ctx.set("fired", sorted(fired) or None)

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """If all children may fire while elements can come."""
        return self.may_fire_early(complete_at_end=complete_at_end)

    def may_fire_early(self, *, complete_at_end: bool) -> bool:
        """If all children may."""
        return all(child.may_fire_early(complete_at_end=complete_at_end) for child in self.children)

    @property
    def fires_before_end_of_input(self) -> bool:
        """Whether all children can."""
        return all(child.fires_before_end_of_input for child in self.children)
