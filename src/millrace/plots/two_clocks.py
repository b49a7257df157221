"""The axes of a picture: event time to the right, processing time upwards.

Source: Dataflow patent, FIG. 4 and FIG. 6A.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError
from millrace.model.time import DAY, HOUR, SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A test may count from zero. It is shown in seconds; or, if it plays at some hour of the first
#: day, in hours and minutes.
_DATES_FROM_US = 365 * DAY
_HOURS_FROM_US = HOUR

_UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Scale:
    """Instants as an axis shows them.

    Args:
        points: (processing time, event time) of all that will be drawn, microseconds.
    """

    def __init__(self, points: Sequence[tuple[int, int]]) -> None:
        self.walls = [wall for wall, _ in points]
        self.events = [event for _, event in points]
        earliest = min([*self.walls, *self.events], default=0)
        self._dates = earliest >= _HOURS_FROM_US
        self._era = earliest >= _DATES_FROM_US
        self.unit = " (UTC)" if self._era else "" if self._dates else " (s)"

    def of(self, instants: Iterable[int]) -> list[Any]:
        """Return instants, in microseconds, as coordinates."""
        return [self.at(us) for us in instants]

    def at(self, us: int) -> Any:
        """Return an instant as a coordinate."""
        return _UNIX_EPOCH + dt.timedelta(microseconds=us) if self._dates else us / 1e6

    def finish(self, axes: Axes, title: str) -> None:
        """Write what the axes are."""
        axes.set_xlabel(f"event time{self.unit}")
        axes.set_ylabel(f"processing time{self.unit}")
        axes.set_title(title)
        axes.grid(visible=True, color="0.92")
        axes.set_axisbelow(True)
        if not self._dates:
            return
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        for axis in (axes.xaxis, axes.yaxis):
            locator = AutoDateLocator()  # type: ignore[no-untyped-call]
            # The date once, beside the axis, and not at every tick; of a test, not at all.
            formatter = ConciseDateFormatter(locator, show_offset=self._era)  # type: ignore[no-untyped-call]
            axis.set_major_locator(locator)
            axis.set_major_formatter(formatter)


def ends_of(events: Sequence[int], walls: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return from when to when a picture of these instants goes, in event and processing time.

    An axis of one instant has no span of its own, and its ticks would be parts of a microsecond. It
    gets that of the other axis, or a second, around the instant.

    >>> ends_of([50, 50], [0, 30]), ends_of([SECOND], [2 * SECOND])
    (((35, 65), (0, 30)), ((500000, 1500000), (1500000, 2500000)))
    """
    wide, high = max(events) - min(events), max(walls) - min(walls)
    return _ends(events, wide or high or SECOND), _ends(walls, high or wide or SECOND)


def _ends(instants: Sequence[int], span: int) -> tuple[int, int]:
    low, high = min(instants), max(instants)
    missing = span - (high - low)
    return low - missing // 2, high + missing - missing // 2


def new_axes(*, large: bool = False) -> Axes:
    """Return the axes of a new figure.

    Args:
        large: Whether there is much to see.

    Raises:
        PipelineError: matplotlib is not installed.
    """
    try:
        from millrace.plots.notebook_figure import NotebookFigure
    except ImportError:
        raise PipelineError(
            "a picture needs matplotlib: pip install 'millrace-spark[plots]'"
        ) from None
    # Not by pyplot, which would choose a backend and keep every figure alive.
    axes: Axes = NotebookFigure(
        figsize=(12, 9) if large else (8, 6), layout="constrained"
    ).add_subplot()
    return axes
