"""The drawing of panes: what stands where, and in which colour.

Labels: where on a picture a text can stand so that it covers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from millrace.dataflow.windowing import ACCUMULATING, DISCARDING, AccumulationMode
from millrace.model.pane import EARLY, LATE, ON_TIME, Window
from millrace.plots.two_clocks import Scale, ends_of
from millrace.testing.output import Output

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
        points: Size of the text.
    """

    def __init__(
        self, axes: Axes, across: tuple[int, int], upwards: tuple[int, int], points: float
    ) -> None:
        self.points = points
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
        self,
        text: str,
        across_us: tuple[int, int],
        wall_us: int,
        *,
        above: bool,
        may_cover: bool = True,
    ) -> tuple[int, int] | None:
        """Return (event time, processing time) of the middle of a text, and keep it clear.

        Args:
            text: To be written.
            across_us: The event times between which it may stand.
            wall_us: The line that it belongs to.
            above: Whether it stands above that line, or below.
            may_cover: Whether it is written though it covers something; if not, None is returned.
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
        if not may_cover and best[0] > 0:
            return None
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


if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's colours, which colour-blind people tell apart too.
_COLOURS = {EARLY: "#e69f00", ON_TIME: "#0072b2", LATE: "#009e73"}
#: Of what is written: the first of them is too light for letters.
_INKS = {EARLY: "#a86800", ON_TIME: "#005a8e", LATE: "#007553"}
_RETRACTION = "#c1272d"

#: More panes than these: fainter, and a value only where there is room.
MANY_PANES = 20

#: To look for room takes as long as the square of how many values there are.
_TRIED_MAX = 300

#: More records than these are dots without a value.
_VALUES_MAX = 40


@dataclass(frozen=True)
class _Box:
    """A rectangle of time."""

    left: int
    right: int
    bottom: int
    top: int


@dataclass(frozen=True)
class _Value:
    """What is written at a pane, or at a retraction."""

    text: str
    window: Window
    box: _Box
    colour: str
    above: bool


class Drawing:
    """Draws one picture, from the back to the front."""

    def __init__(
        self,
        axes: Axes,
        panes: list[Output],
        points: list[tuple[Any, ...]],
        line: list[tuple[int, int]],
    ) -> None:
        self._axes = axes
        self._panes = panes
        self._points = points
        self._line = line
        self._many = len(panes) > MANY_PANES
        windows = [output.pane.window for output in panes]
        events = [
            *(point[1] for point in points),
            *(us for w in windows for us in (w.start, w.end) if us is not None),
        ]
        walls = [*(point[0] for point in points), *(o.pane.production_time for o in panes)]
        if not events:  # a global window, and no records: all there is to see is the low watermark
            events = [us for _, us in line if abs(us) < 1 << 62] or walls
        (left, right), (bottom, top) = ends_of(events, walls)
        wide, high = right - left, top - bottom
        # What the low watermark does soon after the last pane belongs to the story.
        soon = [wall for wall, _ in line if wall <= max(walls) + high // 8]
        self._limits = _Box(
            left - wide // 25 - 1,
            right + wide // 25 + 1,
            bottom - high // 12 - 1,
            max([top, *soon]) + high // 12 + 1,
        )
        limits = self._limits
        self._scale = Scale([(max(limits.bottom, min(walls)), min(events))])
        axes.set_xlim(*self._scale.of([limits.left, limits.right]))
        axes.set_ylim(*self._scale.of([limits.bottom, limits.top]))
        across, upwards = (limits.left, limits.right), (limits.bottom, limits.top)
        self._labels = Labels(axes, across, upwards, 8 if self._many else 9)

    def low_watermark(self) -> None:
        """Draw it, up to the edges where it is at an end of time; and the ideal one."""
        limits, scale = self._limits, self._scale
        if self._line:
            clamped = [
                (wall, min(max(us, limits.left), limits.right))
                for wall, us in [(limits.bottom, self._line[0][1]), *self._line]
            ]
            clamped.append((limits.top, clamped[-1][1]))
            self._labels.keep_clear_of_steps(clamped)
            self._axes.plot(
                scale.of(us for _, us in clamped),
                scale.of(wall for wall, _ in clamped),
                drawstyle="steps-pre",  # it stands until the epoch that moves it
                color="0.25",
                linewidth=1.8,
                label="low watermark",
            )
        low, high = max(limits.left, limits.bottom), min(limits.right, limits.top)
        if low < high:
            ends = scale.of([low, high])
            self._axes.plot(
                ends, ends, linestyle="--", color="0.45", linewidth=1.0, label="ideal watermark"
            )

    def panes(self, mode: AccumulationMode) -> None:
        """Draw a rectangle for each pane, and a line for each retraction, with their values."""
        for point in self._points:
            if len(self._points) <= _VALUES_MAX:
                self._labels.keep_clear(point[1], point[0])
        before: list[tuple[Window, int]] = []
        values: list[_Value] = []
        # Many lie one upon another, and the lowest of them must be seen.
        faint = min(1.0, MANY_PANES / len(self._panes))
        for output in self._panes:
            pane = output.pane
            if pane.retraction:
                values.append(self._retraction(output))
                continue
            box = self._box(pane.window, pane.production_time, before, mode)
            before.append((pane.window, pane.production_time))
            colour = _COLOURS[pane.timing]
            self._axes.fill(
                self._scale.of([box.left, box.right, box.right, box.left]),
                self._scale.of([box.bottom, box.bottom, box.top, box.top]),
                facecolor=(colour, 0.14 * faint),
                edgecolor=(colour, 0.9),
                linewidth=0.7 if self._many else 1.4,
                label=_words(pane.timing),
            )
            text = _text(output.value)
            values.append(_Value(text, pane.window, box, _INKS[pane.timing], above=False))
        self._write_all(values)

    def _write_all(self, values: list[_Value]) -> None:
        """Write the values; of many the last of each window first, and only where there is room."""
        if not self._many:
            for value in values:
                self._write(value, may_cover=True)
            return
        last = {value.window: value for value in values if not value.above}
        for value in list(last.values())[:: 1 + len(last) // _TRIED_MAX]:
            self._write(value, may_cover=False)
        for value in values[:: 1 + len(values) // _TRIED_MAX]:
            if last.get(value.window) is not value:
                self._write(value, may_cover=False)

    def _retraction(self, output: Output) -> _Value:
        box = self._box(output.pane.window, output.pane.production_time, [], ACCUMULATING)
        self._axes.plot(
            self._scale.of([box.left, box.right]),
            self._scale.of([box.top, box.top]),
            color=_RETRACTION,
            linewidth=2.2,
            linestyle=(0, (3, 1.5)),
            zorder=3,
            label="retraction",
        )
        text = f"−{_text(output.value)}"
        return _Value(text, output.pane.window, box, _RETRACTION, above=True)

    def _box(
        self, window: Window, top: int, before: list[tuple[Window, int]], mode: AccumulationMode
    ) -> _Box:
        """Return what a pane covers."""
        limits = self._limits
        left = limits.left if window.start is None else window.start
        right = limits.right if window.end is None else window.end
        came = [at[0] for at in self._points if left <= at[1] < right and at[0] <= top]
        bottom = min(came, default=limits.bottom)
        if mode is DISCARDING:
            earlier = [us for other, us in before if _within(other, window)]
            bottom = max([bottom, *earlier])
        return _Box(left, right, bottom, top)

    def _write(self, value: _Value, *, may_cover: bool) -> None:
        from matplotlib.patheffects import withStroke

        across = value.box.left, value.box.right
        at = self._labels.place(
            value.text, across, value.box.top, above=value.above, may_cover=may_cover
        )
        if at is None:
            return
        self._axes.text(
            self._scale.at(at[0]),
            self._scale.at(at[1]),
            value.text,
            color=value.colour,
            weight="bold",
            size=self._labels.points,
            horizontalalignment="center",
            verticalalignment="center",
            zorder=6,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )

    def records(self) -> None:
        """Draw a point for each record; its value is in it, if they are not too many."""
        xs = self._scale.of(point[1] for point in self._points)
        ys = self._scale.of(point[0] for point in self._points)
        if not xs:
            return
        few = self._writes_values()
        self._axes.scatter(
            xs,
            ys,
            s=190 if few else 12,
            facecolor="white" if few else "0.35",
            edgecolor="0.3",
            linewidths=0.9 if few else 0,
            zorder=4,
            label="records",
        )
        for x, y, point in zip(xs, ys, self._points, strict=True):
            if few:
                self._axes.text(
                    x, y, _text(point[2]), size=8, color="0.1", zorder=5,
                    horizontalalignment="center", verticalalignment="center_baseline",
                )  # fmt: skip

    def _writes_values(self) -> bool:
        """Return whether there is a value in each record's point."""
        return len(self._points) <= _VALUES_MAX and all(len(point) > 2 for point in self._points)

    def finish(self, title: str) -> None:
        """Write what is what. Nothing is right of the ideal watermark, so the legend is there."""
        self._scale.finish(self._axes, title)
        handles, names = self._axes.get_legend_handles_labels()
        one_each = dict(zip(names, handles, strict=True))
        if "records" in one_each and self._writes_values():
            # Its circles are as large as what is written in them.
            (dots,) = self._axes.plot([], [], linestyle="", marker="o", markersize=6)
            dots.set(markerfacecolor="white", markeredgecolor="0.3")
            one_each["records"] = dots
        order = ["records", *map(_words, _COLOURS), "retraction", "low watermark"]
        names = [n for n in [*order, "ideal watermark"] if n in one_each]
        self._axes.legend(
            [one_each[name] for name in names],
            names,
            loc="lower right",
            fontsize="small",
            framealpha=0.9,
        )


def _within(other: Window, window: Window) -> bool:
    if window.start is None or window.end is None:
        return True
    if other.start is None or other.end is None:
        return False
    return window.start <= other.start and other.end <= window.end


def _words(timing: Any) -> str:
    return f"{str(timing).lower().replace('_', ' ')} pane"


def _text(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 16 else f"{text[:15]}…"
