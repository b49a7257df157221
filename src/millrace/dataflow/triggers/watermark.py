"""AtWatermark: when the low watermark reaches the end of the window.

WatermarkOnly: the trigger that most groupings have, without the walk through a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from millrace.dataflow.grouping.window_state import RowTimer, WindowRow
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.repeat import Repeat
from millrace.dataflow.triggers.tree import Fire, TriggerClocks, TriggerTree
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


_AT_WATERMARK = AtWatermark()


class WatermarkOnly:
    """Does for ``Repeat(AtWatermark())`` and ``AtWatermark()`` what a TriggerTree does.

    The rows are the same, so the two can take turns. Walking the tree costs about as much as all
    else that an element costs which is the first of its window.
    """

    per_element = False
    needs_bytes = False
    signals: Mapping[str, Sequence[int]] = MappingProxyType({})
    with_each = None

    def __init__(self, *, repeats: bool) -> None:
        self._repeats = repeats
        self._node = 1 if repeats else 0
        self._fire = Fire(FireMode.DEFAULT, repr(_AT_WATERMARK))

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
        """Wait for the end of the window."""
        if not row.timers:
            row.timers = [RowTimer(end_us(row.window), self._node, "end", 0)]
        row.primed = True
        return None

    def on_merge(
        self, clocks: TriggerClocks, row: WindowRow, sources: Sequence[WindowRow]
    ) -> Fire | None:
        """Wait for the end of the merged window, unless all sources are done."""
        if not row.finished:
            row.timers = [RowTimer(end_us(row.window), self._node, "end", 0)]
        return None

    def on_signal(self, clocks: TriggerClocks, row: WindowRow, stream: str) -> Iterator[Fire]:
        """Do nothing: there are no signals."""
        return iter(())

    def on_timer(self, clocks: TriggerClocks, row: WindowRow, timer: RowTimer) -> Fire | None:
        """Fire; be done, or begin again."""
        row.primed = False
        if not self._repeats:
            row.finished = [0]
        return self._fire


def runner(trigger: Trigger) -> TriggerTree | WatermarkOnly:
    """Return what runs a trigger's callbacks."""
    if trigger == _AT_WATERMARK:
        return WatermarkOnly(repeats=False)
    if trigger == Repeat(_AT_WATERMARK):
        return WatermarkOnly(repeats=True)
    return TriggerTree(trigger)
