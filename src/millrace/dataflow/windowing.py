"""Windowing: where, when and how a grouping gives results, as one value.

Source: Dataflow patent, "TriggerStrategy": trigger, accumulation mode, incremental mode; and
"output timestamp" of the windowing API.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from millrace.dataflow.triggers import AtWatermark, Repeat
from millrace.dataflow.triggers.trigger import Trigger
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


def windowing(
    window_fn: WindowFn,
    trigger: Trigger | None,
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
