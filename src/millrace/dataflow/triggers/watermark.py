"""AtWatermark: when the low watermark reaches the end of the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.windows.window_fn import end_us
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK


@dataclass(frozen=True)
class AtWatermark(Trigger):
    """Fires when the low watermark reaches the end of the window, and is done.

    For an element that comes after that it fires at once, so ``Repeat(AtWatermark())`` gives one
    pane at the watermark, and one more for each bundle of late elements.

    Args:
        percentile: Of the low watermark: ``AtWatermark(90)`` does not wait for the slowest tenth of
            the input. A whole number from 1; 100 is the low watermark itself.

    Source: Dataflow patent, "WatermarkPercentile", appendix A.
    """

    percentile: int = 100

    per_element = False
    finishes = True

    def __post_init__(self) -> None:
        if type(self.percentile) is not int or not 1 <= self.percentile <= 100:
            raise PipelineError(
                f"AtWatermark({self.percentile!r}): expected a whole number from 1 to 100."
            )

    def on_element(self, ctx: Any) -> None:
        """Wait for the end of the window."""
        if ctx.get_timer("end") is None:
            self._wait(ctx)

    def on_merge(self, ctx: Any) -> None:
        """Wait for the end of the merged window."""
        self._wait(ctx)

    def on_timer(self, ctx: Any) -> None:
        """Fire."""
        ctx.trigger()
        ctx.done()

    def _wait(self, ctx: Any) -> None:
        ctx.set_timer("end", end_us(ctx.window), LOW_WATERMARK, percentile=self.percentile)

    def may_lose_data(self, *, complete_at_end: bool) -> bool:
        """Not where the window takes nothing after its end."""
        return self.may_fire_early(complete_at_end=complete_at_end)

    def may_fire_early(self, *, complete_at_end: bool) -> bool:
        """Not where the window takes nothing after its end."""
        return not complete_at_end or self.percentile < 100

    @property
    def percentiles(self) -> frozenset[int]:  # type: ignore[override]  # it has a value
        """The percentile that it waits for, unless that is the low watermark itself."""
        return frozenset([self.percentile] if self.percentile < 100 else [])

    @property
    def fires_before_end_of_input(self) -> bool:
        """A window without end is complete only then."""
        return False

    def __repr__(self) -> str:
        return f"AtWatermark({'' if self.percentile == 100 else self.percentile})"
