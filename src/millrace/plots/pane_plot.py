"""A picture of panes: what was computed, over which event time, and when.

Source: Dataflow patent, FIG. 6B to 6J: event time against processing time, records as points with
their values, each pane a rectangle whose area covers what its value is made of, and whose top is
when it was emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.dataflow.windowing import ACCUMULATING, AccumulationMode
from millrace.model.errors import PipelineError
from millrace.model.stream import Element, KeyExtractor, by
from millrace.plots.pane_drawing import MANY_PANES, Drawing
from millrace.plots.two_clocks import new_axes
from millrace.plots.watermark_plot import HasHistory, moments_of
from millrace.testing.harness import Harness
from millrace.testing.output import Output, outputs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from millrace.epochlog.history import Moment


def plot_panes(
    panes: Harness | Any,
    stream: str | None = None,
    *,
    records: str | Iterable[tuple[int, int] | tuple[int, int, Any]] = (),
    value: str | Callable[[Any], Any] | None = None,
    label: str | Callable[[Any], Any] | None = None,
    key: Any = None,
    by_key: str | Callable[[Any], Any] | None = None,
    watermark: HasHistory | str | Path | None = None,
    computation: str | None = None,
    mode: AccumulationMode | None = None,
    axes: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Return a picture of one key's panes: event time to the right, processing time upwards.

    A pane is a rectangle, as wide as its window. It begins when its first record came, or, if panes
    discard, at the pane before, and ends when it was emitted; there stands its value. Its colour
    says whether it was early, on time or late. A retraction is a dashed line over the window that
    it takes back, with the value crossed out by a minus. The low watermark is a line that climbs to
    the left of the ideal one, the dashed diagonal.

    Args:
        panes: A Harness; or the rows that a sink got, in order: an Arrow table, a Spark or pandas
            DataFrame, mappings, or Outputs.
        stream: The stream of panes; of rows, it may be left out.
        records: What came in, as points: the name of a Harness's stream, or (processing time, event
            time, what to write there), microseconds; the third may be missing.
        value: What to write at a record of a Harness's stream: a column, or a function of it; by
            default itself.
        label: What to write at a pane: a field of its value, ``label="cents"``, or a function of
            it; by default itself. Of more than twenty panes a value is written where there is room,
            the last of each window first.
        key: Whose panes; it may be left out if there is only one.
        by_key: The key of a record of a Harness's stream: a column, or a function of it. By default
            that by which the grouping reads the stream; where it does not, all records are drawn.
        watermark: Whose low watermark: a run, a Harness, or the path or URL of a checkpoint; by
            default that of the Harness, or none.
        computation: The grouping whose input low watermark it is; by default the one with the
            stream's name, or the only computation.
        mode: How the panes of a window relate; by default what the grouping says in the Harness,
            and else ``ACCUMULATING``.
        axes: Draw here instead of on a new figure.
        title: Above the picture.

    Returns:
        A matplotlib Figure: a notebook shows it, ``figure.savefig("panes.svg")`` keeps it.

    Raises:
        PipelineError: There are no panes, panes of several keys, no such stream or computation, or
            matplotlib is not installed (``pip install 'millrace-spark[plots]'``).

    >>> import millrace as mr
    >>> p = mr.Pipeline("totals")
    >>> keyed = p.inject("points", format=int).key_by(lambda points: "all")
    >>> keyed.window(mr.FixedWindows("1 min")).sum().to("totals")
    WindowedStream('totals')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("points", [(5, 10 * mr.SECOND), (7, 50 * mr.SECOND)])
    ...     h.advance_clock(2 * mr.MINUTE)
    ...     h.advance_watermark("points", mr.MINUTE)
    ...     mr.plot.panes(h, "totals", records="points").axes[0].get_title()
    'Panes of totals'
    """
    if isinstance(panes, Harness):
        if stream is None:
            raise PipelineError(
                'plot.panes(harness): which stream? Expected plot.panes(h, "totals").'
            )
        watermark = panes if watermark is None else watermark
        if mode is None:
            windowing = panes.windowing(computation or stream)
            mode = None if windowing is None else windowing.mode
        if isinstance(records, str):
            key_of = panes.key_of(computation or stream, records) if by_key is None else by(by_key)
            records = _arrived(panes.outputs(records), value, key, key_of)
        outputs = panes.outputs(stream)
    elif isinstance(records, str):
        raise PipelineError(
            f"records={records!r} names a stream of a Harness, and there is none. Expected "
            "(processing time, event time, value) of each record."
        )
    else:
        outputs = outputs_of(panes)
    shown = _labelled(_of_key(outputs, key), label)
    points = [(at[0], at[1], *at[2:]) for at in records]
    line = _line(watermark, computation or stream)
    if axes is None:
        axes = new_axes(large=len(shown) > MANY_PANES)
    drawing = Drawing(axes, shown, points, line)
    drawing.low_watermark()
    drawing.panes(mode or ACCUMULATING)
    drawing.records()
    drawing.finish(title or (f"Panes of {stream}" if stream else "Panes"))
    return axes.figure  # type: ignore[return-value]  # a SubFigure has no axes of its own here


def _labelled(outputs: list[Output], label: str | Callable[[Any], Any] | None) -> list[Output]:
    """Return panes with what is written at them in the place of their values.

    Raises:
        PipelineError: A value has no such field.
    """
    if label is None:
        return outputs
    chosen = by(label)
    try:
        return [replace(output, value=chosen(output.value, None)) for output in outputs]
    except (KeyError, AttributeError) as error:
        raise PipelineError(
            f"plot.panes(..., label={label!r}): {error}. Expected a field of the panes' values, "
            f"such as {outputs[0].value!r}."
        ) from None


def _arrived(
    outputs: Iterable[Output],
    value: str | Callable[[Any], Any] | None,
    key: Any,
    key_of: KeyExtractor | None,
) -> list[tuple[int, int, Any]]:
    """Return (processing time, event time, value) of a stream's records."""
    chosen = None if value is None else by(value)
    return [
        (
            output.wall_time,
            output.timestamp,
            output.value if chosen is None else chosen(output.value, None),
        )
        for output in outputs
        if key_of is None
        or key is None
        or key_of.of(Element(output.value, output.key, output.timestamp, output.pane)) == key
    ]


def _of_key(outputs: Iterable[Output], key: Any) -> list[Output]:
    """Return one key's panes."""
    paned = [output for output in outputs if output.pane is not None]
    keys = list(dict.fromkeys(output.key for output in paned))
    if not paned or (key is not None and key not in keys):
        raise PipelineError(
            f"there are no panes of key {key!r} to draw; there are some of {keys[:10]}."
            if keys
            else "there are no panes to draw: nothing came out of a grouping yet, or these are "
            "rows without the columns of a pane (_window_start, _pane_index, ...)."
        )
    if key is None and len(keys) > 1:
        raise PipelineError(
            f"there are panes of {len(keys)} keys, such as {keys[:5]}, and a picture is of one. "
            f"Say which: plot.panes(..., key={keys[0]!r})."
        )
    return [output for output in paned if key is None or output.key == key]


def _line(source: HasHistory | str | Path | None, computation: str | None) -> list[tuple[int, int]]:
    """Return (processing time, event time) of an input low watermark; nothing if it never moved."""
    if source is None:
        return []
    moments: Sequence[Moment] = moments_of(source)
    known = list(moments[-1].inputs)
    if computation is None and len(known) == 1:
        computation = known[0]
    if computation not in known:
        raise PipelineError(
            f"whose low watermark? There is no computation {computation!r}; say one of {known}: "
            "plot.panes(..., computation=...)."
        )
    line = [(moment.wall_time_us, moment.inputs[computation]) for moment in moments]
    return line if len({us for _, us in line}) > 1 else []
