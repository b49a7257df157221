"""WatermarkOnly: the trigger that most groupings have, without the walk through a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from millrace.dataflow.grouping.window_state import RowTimer, WindowRow
from millrace.dataflow.triggers.context import FireMode
from millrace.dataflow.triggers.repeat import Repeat
from millrace.dataflow.triggers.tree import Clocks, Fire, TriggerTree
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.triggers.watermark import AtWatermark
from millrace.dataflow.windows.window_fn import end_us

_AT_WATERMARK = AtWatermark()


class WatermarkOnly:
    """Does for ``Repeat(AtWatermark())`` and ``AtWatermark()`` what a TriggerTree does.

    The rows are the same, so the two can take turns. Walking the tree costs about as much as all
    else that an element costs which is the first of its window.
    """

    per_element = False
    needs_bytes = False
    signals: Mapping[str, Sequence[int]] = MappingProxyType({})

    def __init__(self, *, repeats: bool) -> None:
        self._repeats = repeats
        self._node = 1 if repeats else 0
        self._fire = Fire(FireMode.DEFAULT, repr(_AT_WATERMARK))

    def on_element(
        self,
        clocks: Clocks,
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

    def on_merge(self, clocks: Clocks, row: WindowRow, sources: Sequence[WindowRow]) -> Fire | None:
        """Wait for the end of the merged window, unless all sources are done."""
        if not row.finished:
            row.timers = [RowTimer(end_us(row.window), self._node, "end", 0)]
        return None

    def on_signal(self, clocks: Clocks, row: WindowRow, stream: str) -> Iterator[Fire]:
        """Do nothing: there are no signals."""
        return iter(())

    def on_timer(self, clocks: Clocks, row: WindowRow, timer: RowTimer) -> Fire | None:
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
