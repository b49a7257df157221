"""The operator of groupings: how they are compiled, explained, and known to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.dataflow.aggregations import Recomputed
from millrace.dataflow.columnar import columns_of
from millrace.dataflow.columnar.chunks import Columnar
from millrace.dataflow.element_types import Picks
from millrace.dataflow.grouping.computation import GroupByKeyAndWindow
from millrace.dataflow.grouping.updates import updates_with_each
from millrace.dataflow.operator import Operator
from millrace.dataflow.partials import Lift, lift_of
from millrace.dataflow.side_stream import SideStream
from millrace.dataflow.value import text
from millrace.dataflow.windowing import AccumulationMode, OutputTime
from millrace.model.coder import Coder
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.record import Timer
from millrace.model.time import format_duration


class GroupingOperator(Operator):
    """The operator of :class:`~millrace.dataflow.grouping.GroupByKeyAndWindow`."""

    def __init__(self, grouping: GroupByKeyAndWindow) -> None:
        super().__init__(grouping)
        self._grouping = grouping
        self.windowing = grouping.windowing

    def settings(self) -> dict[str, str]:
        """Return what rows of windows depend on: lateness and output time may change."""
        how = self._grouping.windowing
        rows = ", keys=True" if self._grouping.key_fields is not None else ""
        return {
            "aggregation": repr(self._grouping.combine) + rows,
            "of": self._what() or "the element itself",
            "windows": repr(how.window_fn),
            "trigger": repr(how.trigger),
            "mode": repr(how.mode),
        }

    def described(self) -> list[str]:
        """Return what, where, when and how."""
        how, combine = self._grouping.windowing, self._grouping.combine
        recomputed = isinstance(combine, Recomputed)
        aggregate = repr(combine.plain if isinstance(combine, Recomputed) else combine)
        aggregate += f" of {self._what()}" if self._what() else ""
        aggregate += ", values kept for retractions" if recomputed else ""
        if self._grouping.key_fields is not None:
            aggregate += f", as rows of {', '.join(self._grouping.key_fields.names)}"
        late = how.allowed_lateness_us
        lateness = f", allowed lateness {format_duration(late)}" if late else ""
        at_end = how.output_time is OutputTime.END_OF_WINDOW
        at = "" if at_end else f", output time {how.output_time!r}"
        return [
            f"what   {aggregate}",
            f"where  {how.window_fn!r}",
            f"when   {how.trigger!r}{lateness}{at}",
            f"how    {how.mode!r}",
        ]

    def side_streams(self) -> Mapping[str, SideStream]:
        """Return the streams of signals that its trigger fires by."""
        return self._grouping.windowing.trigger.signals

    def _what(self) -> str:
        """Return which part of an element is aggregated, as text; empty for all of it."""
        value = self._grouping.value
        return "" if value is None or isinstance(value, Picks) else text(value)

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> GroupByKeyAndWindow:
        """Return the grouping with state of the right types for its input."""
        grouping, how = self._grouping, self._grouping.windowing
        must_end = unbounded and not how.trigger.fires_before_end_of_input
        if must_end and not how.window_fn.ends:
            raise PipelineError(
                f"the grouping {grouping.output!r} has {how.window_fn!r}, which has no end, over a "
                f"stream, which has none either: {how.trigger!r} would never fire. Choose windows "
                "that end, such as mr.FixedWindows, or a trigger that does not wait for the end, "
                'such as mr.Repeat(mr.AtPeriod("1 min")).'
            )
        coders = [formats[stream] for stream in grouping.inputs]
        combine = grouping.combine
        if any(isinstance(coder, PanedCoder) and coder.retracts for coder in coders):
            if how.mode is AccumulationMode.DISCARDING and not combine.inverts:
                raise PipelineError(
                    f"the grouping {grouping.output!r} gets retractions, and with DISCARDING what "
                    f"they take back is gone: {combine!r} cannot take out what it does not have. "
                    "Use mr.ACCUMULATING or mr.ACCUMULATING_AND_RETRACTING."
                )
            combine = combine.for_retractions()
        return grouping.typed(coders, combine, ends=must_end)

    def lifting(self, stream: str, coder: Coder) -> Lift | str:
        """Return how senders combine values, or why they do not."""
        return lift_of(self._grouping, coder)

    def columnar(self, formats: Mapping[str, Coder]) -> Columnar | None:
        """Return how windows are kept as columns, if each emits one pane and is then over."""
        return columns_of(self._grouping, list(formats.values()))

    def in_blocks(self, formats: Mapping[str, Coder]) -> bool:
        """Return whether each element is answered with a pane, and nothing else ever happens."""
        return updates_with_each(self._grouping, list(formats.values()))

    def display_tag(self, tag: Any) -> Any:
        """Return whose timer it is: the window, if there still is one."""
        window = self._grouping.window_of(tag)
        return tag if window is None else window

    def pass_timer(self, timer: Timer) -> None:
        """Have the window go on: its next pane has what the failed one would have had."""
        self._grouping.pass_timer(timer)
