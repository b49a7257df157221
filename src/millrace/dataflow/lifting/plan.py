"""Which groupings are lifted, and why the others are not."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millrace.dataflow.aggregations import (
    ApproximateDistinct,
    ApproximateQuantiles,
    Count,
    Distinct,
    Group,
    Top,
)
from millrace.dataflow.formats import field_type, picker, plain_format
from millrace.dataflow.lifting.folds import fold_of
from millrace.dataflow.lifting.lift import Lift
from millrace.dataflow.partial import PartialCoder
from millrace.dataflow.triggers import AfterBytes, AfterCount
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.windows import FixedWindows, GlobalWindow, Sessions, SlidingWindows
from millrace.model.coder import Coder
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.record import LOW_WATERMARK, WALL_TIME

if TYPE_CHECKING:
    from millrace.dataflow.grouping import GroupByKeyAndWindow

_WINDOWS = (FixedWindows, SlidingWindows, Sessions, GlobalWindow)
_NUMBERS = {int, float, type(None), Any}


def lift_of(grouping: GroupByKeyAndWindow, coder: Coder) -> Lift | str:
    """Return how values are combined on their way to a grouping, or why they are not.

    Args:
        grouping: Bound to its inputs.
        coder: Of the input.

    Raises:
        PipelineError: The user asks for it, and it cannot be.
    """
    wanted = grouping.windowing.lift
    if wanted is False:
        return "window(lift=False)"
    reason = _hindrance(grouping, coder)
    if reason is None:
        combine = grouping.combine
        kind = field_type(plain_format(coder), grouping.value)
        value = grouping.value
        return Lift(
            grouping.windowing.window_fn,
            combine,
            value if isinstance(value, str) else None,
            picker(value, plain_format(coder)),
            PartialCoder(combine.accumulator_type(kind)),
            grouping.windowing.trigger.needs_bytes,
        )
    if wanted:
        raise PipelineError(
            f"the grouping {grouping.output!r} was given window(lift=True), and cannot be lifted: "
            f"{reason}. Leave lift out, and it is lifted where that changes nothing."
        )
    return reason


def _hindrance(grouping: GroupByKeyAndWindow, coder: Coder) -> str | None:
    combine, windowing = grouping.combine, grouping.windowing
    if isinstance(coder, PartialCoder):
        return "it gets partials already"
    if isinstance(coder, PanedCoder):
        return "its input is of panes, or has windows already"
    if type(windowing.window_fn) not in _WINDOWS:
        return f"{windowing.window_fn!r} assigns windows to one element at a time"
    if fold_of(combine) is None and not isinstance(combine, Distinct):
        return _unfolded(combine)
    kind = field_type(plain_format(coder), grouping.value)
    if not isinstance(combine, Count | Distinct) and not {kind, *typing.get_args(kind)} & _NUMBERS:
        return f"{combine!r} is lifted for numbers, and the values are {kind!r}"
    for trigger in _leaves(windowing.trigger):
        if windowing.window_fn.merges and getattr(trigger, "domain", WALL_TIME) == LOW_WATERMARK:
            # Until there is a low watermark, it goes by the element that began a session; which one
            # that was is lost when sessions are merged beforehand.
            return f"{trigger!r} may go by single elements of sessions"
        if not trigger.per_element and type(trigger).__module__.startswith("millrace."):
            continue
        if not isinstance(trigger, AfterCount | AfterBytes):
            return f"{trigger!r} must see every element"
        if not windowing.lift:
            return f"{trigger!r} counts elements one by one, but for window(lift=True)"
    return None


def _unfolded(combine: Any) -> str:
    if isinstance(combine, Group):
        return f"{combine!r} keeps every value, in order of arrival"
    if isinstance(combine, ApproximateDistinct | ApproximateQuantiles):
        return f"the estimate of {combine!r} depends on what was merged with what"
    if isinstance(combine, Top):
        return f"{combine!r} compares by a key"
    return f"{combine!r} is not one of Millrace's own aggregations"


def _leaves(trigger: Trigger) -> Iterator[Trigger]:
    if not trigger.children:
        yield trigger
        return
    if not type(trigger).__module__.startswith("millrace."):
        # What it makes of its children, and when, nobody knows.
        yield trigger
    for child in trigger.children:
        yield from _leaves(child)
