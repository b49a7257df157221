"""What a grouping declares: what, where, when and how, and the state that follows from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from millrace.dataflow.aggregations import CombineFn
from millrace.dataflow.aggregations.fields import KeyFields
from millrace.dataflow.element_types import field_type, key_types, picker, plain_format
from millrace.dataflow.grouping.window_state import (
    ActiveCoder,
    ActiveWindows,
    KeptWindows,
    Merging,
    PlaceCoder,
    SpreadHead,
    WindowRow,
    WindowRowCodec,
)
from millrace.dataflow.triggers.tree import Fire
from millrace.dataflow.triggers.watermark import runner
from millrace.dataflow.windowing import AccumulationMode, OutputTime, Windowing
from millrace.dataflow.windows.window_fn import assignment, last_instant_us
from millrace.model.coder import Coder, coder_for
from millrace.model.computation import Computation
from millrace.model.declarations import DerivedFormat
from millrace.model.pane import PanedCoder
from millrace.model.state import MapState, ValueState
from millrace.model.stream import KeyExtractor
from millrace.model.time import LATEST_RECORD, MAX_TIMESTAMP, UNBOUNDED_PAST


class DeclaredGrouping(Computation):
    """What is fixed about a grouping before the first element comes.

    Args:
        inputs: Input stream -> key extractor.
        windowing: Where, when and how.
        combine: What.
        value: The value to aggregate: a column name, a function of the element, or None: itself.
        output: Output stream.
        format: Its record format; by default as the aggregation says.
        key_fields: Makes rows of results, which have key and window; by default results are as
            they are.

    Attributes:
        pick: Chooses the value to aggregate of an element.
        result_coder: The coder of its results, without panes.
    """

    # A late pane is the answer to late records; a retraction is as old as what it takes back.
    may_produce_late = UNBOUNDED_PAST

    def __init__(
        self,
        inputs: Mapping[str, KeyExtractor],
        windowing: Windowing,
        combine: CombineFn,
        value: str | Callable[[Any], Any] | None,
        output: str,
        format: Any = Any,
        key_fields: KeyFields | None = None,
    ) -> None:
        self.inputs = inputs  # type: ignore[misc]  # of this instance
        self.output = output
        self.windowing = windowing
        self.combine = combine
        self.value = value
        self.format = format
        self.key_fields = key_fields
        self._retracting = windowing.mode is AccumulationMode.ACCUMULATING_AND_RETRACTING
        self._discarding = windowing.mode is AccumulationMode.DISCARDING
        self._lateness_us = windowing.allowed_lateness_us
        self._at_end = windowing.output_time is OutputTime.END_OF_WINDOW
        self._window_fn = windowing.window_fn
        self._tree = runner(windowing.trigger)
        self.percentiles = windowing.trigger.percentiles  # type: ignore[misc]
        self._assign = assignment(self._window_fn)
        self.pick = picker(value)
        self.result_coder: Coder = coder_for(Any)
        self.element_type: Any = Any
        self.outputs = {output: DerivedFormat(tuple(inputs), self._derive)}  # type: ignore[misc]
        self.windows: MapState[WindowRow] = MapState(WindowRowCodec(Any))
        if self._window_fn.merges:
            self.active: ValueState[ActiveWindows | SpreadHead] = ValueState(ActiveCoder())
            self._merging = Merging(self._window_fn)
            if self._merging.overlapping:
                self.places: MapState[tuple[int, int]] = MapState(PlaceCoder())

    @property
    def _kept(self) -> KeptWindows:
        """The windows of the current key that still count, where windows merge."""
        return KeptWindows(self.active, self.places if self._merging.overlapping else None)

    @property
    def with_each(self) -> Fire | None:
        """What each element comes to, if that is always the same; else None."""
        return self._tree.with_each

    def kind_of(self, formats: Sequence[Any]) -> Any:
        """Return the type of what is aggregated, for the inputs' formats."""
        return field_type(plain_format(formats[0]), self.value)

    def _derive(self, *formats: Any) -> PanedCoder:
        """Return the output's format for the inputs'."""
        kind = self.kind_of(formats)
        result = self.combine.result_type(kind) if self.format is Any else self.format
        if self.key_fields is not None and self.format is Any:
            (extractor, *_) = self.inputs.values()
            result = self.key_fields.result_type(key_types(extractor, formats[0]), result)
        return PanedCoder(result, retracts=self._retracting)

    def typed(self, coders: Sequence[Coder], combine: CombineFn, *, ends: bool) -> Self:
        """Return the same with state of the right types for its inputs.

        Args:
            coders: Of the inputs, in order.
            combine: What to fold by, for what the inputs carry.
            ends: Whether every window must end.
        """
        typed = copy.copy(self)
        if self.key_fields is None:
            typed.combine = combine.making(self.format)
        else:
            typed.combine = combine
            typed.key_fields = self.key_fields.making(self.format)
        typed._assign = assignment(self._window_fn, ends=ends)
        kind = self.kind_of(coders)
        typed.element_type = kind
        typed.pick = picker(self.value, plain_format(coders[0]))
        row = WindowRowCodec(combine.accumulator_type(kind), checked=self.combine.checked)
        typed.windows = MapState(row)
        output = typed._derive(*coders)
        typed.outputs = {self.output: output}  # type: ignore[misc]  # of this instance
        typed.result_coder = output.inner
        return typed

    def _is_over(self, row: WindowRow) -> bool:
        """Return whether a window takes no elements of a later bundle."""
        return self.low_watermark >= self._expiry_us(row)

    def _expiry_us(self, row: WindowRow) -> int:
        """Return when a window takes no more elements, and is forgotten."""
        end = row.window.end
        if end is None:
            return MAX_TIMESTAMP
        expiry_us = end + self._lateness_us
        return expiry_us if expiry_us < MAX_TIMESTAMP else MAX_TIMESTAMP

    def _timestamp_us(self, row: WindowRow) -> int:
        """Return the event time that a pane has now."""
        if self.windowing.output_time is OutputTime.EARLIEST:
            return row.earliest
        if self.windowing.output_time is OutputTime.LATEST:
            return row.latest
        if row.window.end is not None:
            return last_instant_us(row.window.end)
        # The global window has no last instant: its elements', or where the low watermark stands.
        low_watermark_us = self.low_watermark
        return max(row.latest, low_watermark_us if low_watermark_us <= LATEST_RECORD else 0)
