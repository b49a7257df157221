"""PlainGrouping: what groupings that are kept as columns have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.columnar import Done
from millrace.dataflow.windows.vector import Ints
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.pane import Pane, Window


@dataclass(frozen=True)
class PlainGrouping:
    """What is computed, and how its panes are called.

    Attributes:
        fold: Of the grouping.
        pick: Chooses the value to aggregate of an element.
        trigger: The trigger that fires, as text.
        output: Output stream.
        window_fn: Of the grouping; one that assigns columns.
    """

    fold: VectorFold
    pick: Callable[[Any], Any]
    trigger: str
    output: str
    window_fn: WindowFn

    def __repr__(self) -> str:
        return "columns"

    def _count(self, done: Done, dropped: Ints, lifted: Ints) -> None:
        """Count elements that are dropped, and those that came combined."""
        counts = {"dropped_late": dropped.sum(), "lifted": lifted.sum()}
        done.counted.update({name: int(count) for name, count in counts.items() if count})

    def _pane(self, window: Window, wall_time_us: int) -> Pane:
        """Return the only pane of a window: on time, first and last."""
        return Pane(window, production_time=wall_time_us, percentile=100, trigger=self.trigger)
