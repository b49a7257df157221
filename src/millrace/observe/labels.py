"""Labels: where on a picture a text can stand so that it covers nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Where in its window a value may stand, the best first.
_PLACES = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.12, 0.88)

#: Half the diameter of a record's point, and its margin, in pixels.
_RECORD = 10.0

#: Half the width of a line, and its margin.
_LINE = 3.0


class Labels:
    """Keeps count of what stands where, in pixels.

    Args:
        axes: Where they are drawn.
        across: Event times at the left and right edge.
        upwards: Processing times at the lower and upper edge.

    Attributes:
        points: Size of the text.
    """

    points = 9

    def __init__(self, axes: Axes, across: tuple[int, int], upwards: tuple[int, int]) -> None:
        self._extent = axes.get_window_extent()
        self._across = across
        self._upwards = upwards
        # Pixels of a typographic point: 1/72 inch.
        figure = axes.get_figure()
        self._pixel = (figure.dpi if figure is not None else 100) / 72
        self._taken: list[tuple[float, float, float, float]] = []

    def keep_clear(self, event_us: int, wall_us: int) -> None:
        """Let no text cover a record."""
        x, y = self._pixels(event_us, wall_us)
        self._taken.append((x - _RECORD, x + _RECORD, y - _RECORD, y + _RECORD))

    def keep_clear_of_steps(self, line: list[tuple[int, int]]) -> None:
        """Let no text cover the line through (wall_us, event_us): upwards first, then right."""
        for (from_us, stands_us), (to_us, _) in pairwise(line):
            x, low = self._pixels(stands_us, from_us)
            _, high = self._pixels(stands_us, to_us)
            self._taken.append((x - _LINE, x + _LINE, low, high))

    def place(
        self, text: str, across_us: tuple[int, int], wall_us: int, *, above: bool
    ) -> tuple[int, int]:
        """Return (event time, processing time) of the middle of a text, and keep it clear.

        Args:
            text: To be written.
            across_us: The event times between which it may stand.
            wall_us: The line that it belongs to.
            above: Whether it stands above that line, or below.
        """
        high = self.points * self._pixel
        wide = 0.62 * high * len(text)
        left, right = across_us
        low, top = self._upwards
        per_pixel = (top - low) / self._extent.height
        middle_us = wall_us + int((1 if above else -1) * 0.72 * high * per_pixel)
        best: tuple[float, int, tuple[float, float, float, float]] | None = None
        for place in _PLACES:
            at_us = left + int((right - left) * place)
            x, y = self._pixels(at_us, middle_us)
            box = (x - wide / 2, x + wide / 2, y - high / 2, y + high / 2)
            covered = sum(_overlap(box, other) for other in self._taken)
            if best is None or covered < best[0]:
                best = covered, at_us, box
        assert best is not None, "there are places to try"
        self._taken.append(best[2])
        return best[1], middle_us

    def _pixels(self, event_us: int, wall_us: int) -> tuple[float, float]:
        (left, right), (low, top) = self._across, self._upwards
        return (
            (event_us - left) / (right - left) * self._extent.width,
            (wall_us - low) / (top - low) * self._extent.height,
        )


def _overlap(
    box: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> float:
    wide = min(box[1], other[1]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[2], other[2])
    return max(0.0, wide) * max(0.0, high)
