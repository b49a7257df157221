"""Windowing: where, when and how a grouping gives results, as one value.

Source: Dataflow patent, "TriggerStrategy": trigger, accumulation mode, incremental mode; and
"output timestamp" of the windowing API.

Emission: when and how alone, as :func:`early` says them in one word.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from millrace.dataflow.triggers import AtPeriod, AtWatermark, Repeat, RepeatUntil, SequenceOf
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.value import positive_us
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.errors import PipelineError
from millrace.model.time import Duration, duration_us


class AccumulationMode(enum.Enum):
    """How the panes of a window relate to each other."""

    #: Each pane has what came since the last: the results add up.
    DISCARDING = "DISCARDING"
    #: Each pane has all so far: a result replaces the one before.
    ACCUMULATING = "ACCUMULATING"
    #: As ACCUMULATING, and the result before is taken back first: for aggregations further down.
    ACCUMULATING_AND_RETRACTING = "ACCUMULATING_AND_RETRACTING"

    def __repr__(self) -> str:
        return self.name


DISCARDING = AccumulationMode.DISCARDING
ACCUMULATING = AccumulationMode.ACCUMULATING
ACCUMULATING_AND_RETRACTING = AccumulationMode.ACCUMULATING_AND_RETRACTING


class OutputTime(enum.Enum):
    """The event time of a pane. All but the last instant hold the low watermark until it is out."""

    #: The last instant of its window.
    END_OF_WINDOW = "END_OF_WINDOW"
    #: The earliest timestamp of the elements since the last pane.
    EARLIEST = "EARLIEST"
    #: The latest timestamp of the elements so far.
    LATEST = "LATEST"

    def __repr__(self) -> str:
        return self.name


END_OF_WINDOW = OutputTime.END_OF_WINDOW
EARLIEST = OutputTime.EARLIEST
LATEST = OutputTime.LATEST


@dataclass(frozen=True)
class Windowing:
    """Where in event time (windows), when in processing time (trigger), how (mode).

    Attributes:
        window_fn: Assigns and merges windows.
        trigger: Says when a window emits a pane.
        mode: How panes of one window relate.
        allowed_lateness_us: How long after its end a window still takes elements.
        output_time: The event time of panes.
        lift: Whether senders may combine values; None: where it changes no pane.
    """

    window_fn: WindowFn
    trigger: Trigger
    mode: AccumulationMode
    allowed_lateness_us: int
    output_time: OutputTime
    lift: bool | None = None

    def over(self, window_fn: WindowFn) -> Windowing:
        """Return the same over other windows, and without a word about lifting."""
        return replace(self, window_fn=window_fn, lift=None)


@dataclass(frozen=True)
class Emission:
    """When a window emits results, and how they relate: what :func:`early` returns.

    Attributes:
        trigger: Says when.
        accumulating: Whether each result has all so far.
        late: Whether late records have a trigger of their own.
    """

    trigger: Trigger
    accumulating: bool
    late: bool


def early(
    every: Duration | Trigger,
    *,
    late: Duration | Trigger | None = None,
    accumulating: bool = True,
) -> Emission:
    """Return when a window emits: early results, the result, and late ones.

    A window that gets records emits a result every so often, one when the low watermark reaches its
    end, and further ones for late records. Give it to ``window`` in the place of a trigger.

    Args:
        every: How far apart early results are, by the wall clock, counted from 1970 in UTC; or a
            trigger that says when the next comes, such as ``mr.AfterCount(100)``. A window without
            new records emits none.
        late: The same for records behind the low watermark; by default each bundle of them emits
            one. How long they count says ``window(..., allowed_lateness="1 h")``.
        accumulating: Whether a result has all records so far and replaces the one before. False:
            it has the records since, and results add up. For retractions give ``window(...,
            mode=mr.ACCUMULATING_AND_RETRACTING)``.

    Returns:
        For ``early("5 s")`` the trigger ``SequenceOf(RepeatUntil(AtPeriod("5 s"), AtWatermark()),
        Repeat(AtWatermark()))``, and the mode.

    Raises:
        PipelineError: An argument is neither a duration above zero nor a trigger.

    Source: Dataflow patent, FIG. 6I.

    >>> import millrace as mr
    >>> p = mr.Pipeline("shop")
    >>> sales = p.inject("sales", format=str).key_by(str)
    >>> sales.window(mr.FixedWindows("1 min"), mr.early("5 s")).count().to("counts")
    WindowedStream('counts')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("sales", [("tea", mr.SECOND)])
    ...     h.advance_clock(5 * mr.SECOND)
    ...     h.inject("sales", [("tea", 2 * mr.SECOND)])
    ...     h.advance_watermark("sales", mr.MINUTE)
    ...     [(output.value, str(output.pane.timing)) for output in h.outputs("counts")]
    [(1, 'EARLY'), (2, 'ON_TIME')]
    """
    before_end = RepeatUntil(_next_pane(every, "every"), AtWatermark())
    after_end = AtWatermark() if late is None else _next_pane(late, "late")
    return Emission(SequenceOf(before_end, Repeat(after_end)), accumulating, late is not None)


def _next_pane(every: Duration | Trigger, argument: str) -> Trigger:
    """Return when the next pane comes, by a duration or a trigger."""
    if isinstance(every, Trigger):
        return every
    return AtPeriod(positive_us(every, f"early({argument})"))


def windowing(
    window_fn: WindowFn,
    trigger: Trigger | Emission | None,
    mode: AccumulationMode,
    allowed_lateness: Duration,
    output_time: OutputTime,
    *,
    allow_data_loss: bool,
    lift: bool | None = None,
) -> Windowing:
    """Return a checked Windowing.

    Raises:
        PipelineError: An argument is of the wrong kind, or the choices do not go together.
    """
    _check_kind("window", window_fn, WindowFn, "mr.FixedWindows('1 h')")
    if isinstance(trigger, Emission):
        mode = _mode_of(trigger, mode, allowed_lateness)
        trigger = trigger.trigger
    trigger = Repeat(AtWatermark()) if trigger is None else trigger
    _check_kind("trigger", trigger, Trigger, "mr.Repeat(mr.AtWatermark())")
    _check_kind("mode", mode, AccumulationMode, "mr.ACCUMULATING")
    _check_kind("output_time", output_time, OutputTime, "mr.OutputTime.END_OF_WINDOW")
    if lift not in (None, True, False):
        raise PipelineError(f"window(lift={lift!r}): expected True, False, or None.")
    lateness_us = duration_us(allowed_lateness, "window(allowed_lateness)")
    if trigger.may_lose_data(complete_at_end=lateness_us == 0) and not allow_data_loss:
        raise PipelineError(
            f"{trigger!r} can be done while its window still takes elements, and those after it "
            f"would be lost. Repeat it, mr.Repeat({trigger!r}), let it end with "
            "mr.Repeat(mr.AtWatermark()) in an mr.SequenceOf, or say that this is meant: "
            "window(..., allow_data_loss=True)."
        )
    if window_fn.merges:
        _check_merging(trigger)
    return Windowing(window_fn, trigger, mode, lateness_us, output_time, lift)


def _mode_of(
    emission: Emission, mode: AccumulationMode, allowed_lateness: Duration
) -> AccumulationMode:
    """Return the mode, by what ``early`` and ``window`` say.

    Raises:
        PipelineError: They do not go together.
    """
    if emission.late and duration_us(allowed_lateness, "window(allowed_lateness)") == 0:
        raise PipelineError(
            "early(late=...) says when late records give a result, and window(allowed_lateness=0) "
            'that none counts. Say how long they count, window(..., allowed_lateness="1 h"), or '
            "leave late= out."
        )
    if emission.accumulating:
        return mode
    if mode is AccumulationMode.ACCUMULATING_AND_RETRACTING:
        raise PipelineError(
            f"early(accumulating=False) and window(mode={mode!r}) do not go together: a result "
            "of the newest records alone replaces no earlier one, so there is nothing to retract. "
            "Leave one of them out."
        )
    return DISCARDING


def _check_merging(trigger: Trigger) -> None:
    if type(trigger).on_merge is Trigger.on_merge:
        raise PipelineError(
            f"{trigger!r} does not say what becomes of its state when windows merge, and these "
            f"windows do. Give {type(trigger).__name__} an on_merge(self, ctx)."
        )
    for child in trigger.children:
        _check_merging(child)


def _check_kind(argument: str, given: object, kind: type, example: str) -> None:
    if isinstance(given, kind):
        return
    hint = f" Did you mean {given.__name__}(...)?" if isinstance(given, type) else ""
    raise PipelineError(f"window({argument}={given!r}): expected as in {example}.{hint}")
