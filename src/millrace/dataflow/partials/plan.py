"""Which groupings are lifted, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millrace.dataflow.aggregations.vector import Vector, vector_of
from millrace.dataflow.element_types import field_type, picker, plain_format
from millrace.dataflow.partials.lift import Lift
from millrace.dataflow.partials.partial import PartialCoder
from millrace.dataflow.triggers import AfterBytes, AfterCount
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.windowing import Windowing
from millrace.dataflow.windows.window_fn import has_columns
from millrace.model.coder import Coder
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.record import LOW_WATERMARK, WALL_TIME

if TYPE_CHECKING:
    from millrace.dataflow.grouping.computation import GroupByKeyAndWindow


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
    kind = field_type(plain_format(coder), grouping.value)
    vector = _vector(grouping, coder, kind)
    if not isinstance(vector, str):
        return Lift(
            grouping.windowing.window_fn,
            vector,
            grouping.value,
            picker(grouping.value, plain_format(coder)),
            PartialCoder(grouping.combine.accumulator_type(kind)),
            grouping.windowing.trigger.needs_bytes,
        )
    if wanted:
        raise PipelineError(
            f"the grouping {grouping.output!r} was given window(lift=True), and cannot be lifted: "
            f"{vector}. Leave lift out, and it is lifted where that changes nothing."
        )
    return vector


def _vector(grouping: GroupByKeyAndWindow, coder: Coder, kind: Any) -> Vector | str:
    """Return the vector form by which values are combined, or why they are not."""
    windowing = grouping.windowing
    if isinstance(coder, PartialCoder):
        return "it gets partials already"
    if isinstance(coder, PanedCoder):
        return "its input is of panes, or has windows already"
    if not has_columns(windowing.window_fn):
        return f"{windowing.window_fn!r} assigns windows to one element at a time"
    vector = vector_of(grouping.combine, kind)
    return vector if isinstance(vector, str) else _hindrance(windowing) or vector


def _hindrance(windowing: Windowing) -> str | None:
    """Return which trigger would fire otherwise."""
    for trigger in leaves(windowing.trigger):
        if windowing.window_fn.merges and by_first_element(trigger):
            return f"{trigger!r} may go by single elements of sessions"
        if not trigger.per_element and type(trigger).__module__.startswith("millrace."):
            continue
        if not isinstance(trigger, AfterCount | AfterBytes):
            return f"{trigger!r} must see every element"
        if not windowing.lift:
            return f"{trigger!r} counts elements one by one, but for window(lift=True)"
    return None


def by_first_element(trigger: Trigger) -> bool:
    """Return whether a trigger may go by the time of the element that began a session.

    Until there is a low watermark it does. Which element that was is lost when sessions are merged
    beforehand.
    """
    return bool(getattr(trigger, "domain", WALL_TIME) == LOW_WATERMARK)


def leaves(trigger: Trigger) -> Iterator[Trigger]:
    """Yield the triggers that a trigger is made of in the end, and users' own on the way."""
    if not trigger.children:
        yield trigger
        return
    if not type(trigger).__module__.startswith("millrace."):
        # What it makes of its children, and when, nobody knows.
        yield trigger
    for child in trigger.children:
        yield from leaves(child)
