"""A picture of low watermarks: event time against processing time.

Source: Dataflow patent, FIG. 4 (event time and processing time skew: the ideal and the actual
watermark) and FIG. 6A (records as points).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from millrace.compile.topology import INJECTOR
from millrace.epochlog.history import Moment, WatermarkHistory
from millrace.inspect import open_checkpoint
from millrace.model.errors import PipelineError
from millrace.model.record import LateRecord
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD
from millrace.plots.two_clocks import Scale, ends_of, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@runtime_checkable
class HasHistory(Protocol):
    """A run, or a Harness."""

    @property
    def history(self) -> WatermarkHistory:
        """Where the low watermarks stood after each epoch."""
        ...


def plot_watermarks(
    source: HasHistory | str | Path,
    *,
    computations: Collection[str] | None = None,
    percentiles: Collection[int] = (),
    records: Iterable[tuple[int, int]] = (),
    late: Iterable[LateRecord] | None = None,
    axes: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Return a picture of a run: event time to the right, processing time upwards.

    The low watermark of each computation's input is a line that climbs. How far it is to the left
    of the ideal one, the diagonal on which event time is processing time, is its lag. Late records
    are crosses: to the left of the line that they were behind.

    Args:
        source: A run's handle; a Harness; or the path or URL of a checkpoint. Its epoch log has the
            last hundred epochs or so.
        computations: Whose low watermarks; by default everybody's.
        percentiles: Draw these low watermarks of the computations too, as thin lines.
        records: (processing time, event time) of records to show as points, microseconds.
        late: Late records, as a stream of ``p.late_records`` has them. By default those of a
            Harness's stream; and else the first of each computation, which is always remembered.
        axes: Draw here instead of on a new figure.
        title: Above the picture.

    Returns:
        A matplotlib Figure: a notebook shows it, ``figure.savefig("lag.svg")`` keeps it.

    Raises:
        PipelineError: No epoch has completed yet, no low watermark was at any time, there is no
            such computation, or matplotlib is missing (``pip install 'millrace-spark[plots]'``).
    """
    moments = moments_of(source)
    known = list(moments[-1].inputs)
    shown = known if computations is None else list(computations)
    unknown = [name for name in shown if name not in known]
    if unknown:
        raise PipelineError(f"no computations {unknown}; there are {known}.")
    if axes is None:
        axes = new_axes()
    points = list(records)
    crosses = _late(source, moments, late, shown)
    scale = Scale([*_everything(moments), *points, *crosses])
    injectors = sorted(name for name in moments[-1].outputs if name.startswith(INJECTOR))
    drawn = [*points, *crosses]
    for name in injectors:
        line = _line(moments, [moment.outputs.get(name) for moment in moments])
        drawn += line
        label = f"injector of {name.removeprefix(INJECTOR)}"
        _draw(axes, scale, line, label=label, color="0.55", linewidth=1.0, linestyle=":")
    for n, name in enumerate(shown):
        line = _line(moments, [moment.inputs.get(name) for moment in moments])
        drawn += line
        # Lines that are the same are told apart by their width.
        _draw(axes, scale, line, label=name, linewidth=1.2 + 1.6 * (len(shown) - 1 - n))
        for percentile in percentiles:
            if percentile not in moments[-1].percentiles:
                raise PipelineError(
                    f"percentile {percentile}: the pipeline declares "
                    f"{sorted(moments[-1].percentiles)}."
                )
            values = [moment.percentiles.get(percentile, {}).get(name) for moment in moments]
            label = f"{name}, {percentile} %"
            _draw(axes, scale, _line(moments, values), label=label, linewidth=1.0)
    if points:
        axes.scatter(
            scale.of([event for _, event in points]),
            scale.of([wall for wall, _ in points]),
            s=10,
            color="0.35",
            alpha=0.6,
            linewidths=0,
            label="records",
        )
    if crosses:
        axes.scatter(
            scale.of([event for _, event in crosses]),
            scale.of([wall for wall, _ in crosses]),
            marker="x",
            color="crimson",
            zorder=4,
            label="late records",
        )
    if not drawn:
        raise PipelineError(
            f"there is nothing to draw: in {len(moments)} epochs each low watermark was before "
            "time or at the end of time. A run that goes on, or one with more epochs, has some."
        )
    _ideal(axes, scale)
    _widen(axes, scale, drawn)
    scale.finish(axes, title or "Low watermarks")
    axes.legend(loc="best", fontsize="small", framealpha=0.9)
    return axes.figure  # type: ignore[return-value]  # a SubFigure has no axes of its own here


def moments_of(source: HasHistory | str | Path) -> Sequence[Moment]:
    """Return the history of a run, a Harness, or a checkpoint.

    Raises:
        PipelineError: It has none.
    """
    if isinstance(source, HasHistory):
        moments = source.history.moments
    elif isinstance(source, str | Path):
        moments = open_checkpoint(source).history()
    else:
        raise PipelineError(
            f"{source!r} has no history. Expected a run, a Harness, or the path of a checkpoint."
        )
    if not moments:
        raise PipelineError("no epoch has completed yet, so there is nothing to draw.")
    return moments


def _late(
    source: Any,
    moments: Sequence[Moment],
    late: Iterable[LateRecord] | None,
    shown: Collection[str],
) -> list[tuple[int, int]]:
    """Return (processing time, event time) of late records."""
    if late is None and hasattr(source, "late_records"):
        late = source.late_records() or None
    if late is not None:
        return [
            (record.wall_time, record.timestamp) for record in late if record.computation in shown
        ]
    clocks = {moment.epoch: moment.wall_time_us for moment in moments}
    return [
        (clocks[first.epoch], first.timestamp_us)
        for name, first in moments[-1].first_late.items()
        if name in shown and first.epoch in clocks
    ]


def _line(moments: Sequence[Moment], values: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return (processing time, event time) of a line, without what is before or after all time."""
    return [
        (moment.wall_time_us, us)
        for moment, us in zip(moments, values, strict=True)
        if us is not None and EARLIEST_RECORD <= us <= LATEST_RECORD
    ]


def _widen(axes: Axes, scale: Scale, drawn: list[tuple[int, int]]) -> None:
    """Give an axis that shows a single instant a span."""
    walls, events = [wall for wall, _ in drawn], [event for _, event in drawn]
    across, upwards = ends_of(events, walls)
    if min(events) == max(events):
        axes.set_xlim(*scale.of(across))
    if min(walls) == max(walls):
        axes.set_ylim(*scale.of(upwards))


def _draw(axes: Axes, scale: Scale, line: list[tuple[int, int]], **style: Any) -> None:
    # A low watermark stands until the epoch that moves it: upwards first, then to the right.
    axes.plot(
        scale.of([event for _, event in line]),
        scale.of([wall for wall, _ in line]),
        drawstyle="steps-pre",
        marker="o" if len(line) == 1 else None,  # a line of one point would not be seen
        **style,
    )


def _ideal(axes: Axes, scale: Scale) -> None:
    """Draw the diagonal, where the two kinds of time are of one era."""
    if not scale.walls or not scale.events:
        return
    low = max(min(scale.walls), min(scale.events))
    high = min(max(scale.walls), max(scale.events))
    if low < high:
        ends = scale.of([min(scale.walls), max(scale.walls)])
        axes.plot(ends, ends, linestyle="--", color="0.3", linewidth=1.0, label="ideal", zorder=1)


def _everything(moments: Sequence[Moment]) -> list[tuple[int, int]]:
    """Return (processing time, event time) of all that the history has."""
    return [
        point
        for moment in moments
        for us in [
            *moment.inputs.values(),
            *moment.newest.values(),
            *(us for inputs in moment.percentiles.values() for us in inputs.values()),
        ]
        for point in _line([moment], [us])
    ]
