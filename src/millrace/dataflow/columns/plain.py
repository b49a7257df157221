"""PlainGrouping: what groupings that are kept as columns have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.dataflow.aggregations import CombineFn
from millrace.dataflow.columns.numbers import Ints, Mask
from millrace.model.bundle import Done
from millrace.model.pane import Pane, Window


@dataclass(frozen=True)
class PlainGrouping:
    """What is computed, and how its panes are called.

    Attributes:
        combine: Of the grouping; :func:`~millrace.dataflow.columns.foldable`.
        pick: Chooses the value to aggregate of an element.
        trigger: The trigger that fires, as text.
        output: Output stream.
    """

    combine: CombineFn
    pick: Callable[[Any], Any]
    trigger: str
    output: str

    def __repr__(self) -> str:
        return "columns"

    def _count(self, done: Done, elements: Ints, kept: Mask, partials: list[int]) -> None:
        """Count the elements that are dropped, and those that came combined."""
        counts = {"dropped_late": elements[~kept].sum(), "lifted": elements[partials].sum()}
        done.counted.update({name: int(count) for name, count in counts.items() if count})

    def _pane(self, window: Window, wall_time_us: int) -> Pane:
        """Return the only pane of a window: on time, first and last."""
        return Pane(window, production_time=wall_time_us, percentile=100, trigger=self.trigger)
