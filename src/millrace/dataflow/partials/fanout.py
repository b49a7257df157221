"""Fan-out: a hot key's values are combined in several places before they meet in one.

A key is processed in one place at a time, so one that has most of the records holds everyone up.
With ``fanout=n`` each key is first split into n parts, by what a record is; each part combines what
it gets in a bundle, and sends partials on to the key itself.

Source: Dataflow patent, "combiner lifting" and hot keys; MillWheel 4.2: processing is serialised
per key.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.dataflow.aggregations import CombineFn
from millrace.dataflow.element_types import field_type, picker, plain_format
from millrace.dataflow.grouping.window_state import blame
from millrace.dataflow.operator import Operator
from millrace.dataflow.partials.partial import Partial, PartialCoder
from millrace.dataflow.partials.plan import by_first_element, leaves
from millrace.dataflow.triggers import AfterBytes, AfterCount
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.value import text
from millrace.dataflow.windowing import Windowing
from millrace.dataflow.windows.window_fn import assignment, end_us, joins_overlapping
from millrace.model.coder import Coder, coder_for
from millrace.model.computation import Computation
from millrace.model.declarations import DerivedFormat
from millrace.model.errors import RAISED, PipelineError
from millrace.model.pane import PanedCoder, Window
from millrace.model.record import WALL_TIME, Record, Timer
from millrace.model.state import ValueState
from millrace.model.stream import Spread
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, UNBOUNDED_PAST

#: The most parts of a key.
LARGEST = 1_000

#: A partial, and the time of the first of its elements.
_Timed = tuple[int, Partial]


class CombineByPart(Computation):
    """Combines the values of one part of a key, window by window, and sends partials on.

    Nothing stays in its state: what a bundle brings leaves with it.

    Args:
        inputs: Input stream -> how keys are split.
        windowing: Of the grouping that the partials go to.
        combine: Of that grouping.
        value: What to aggregate of an element.
        output: Stream of the partials.
    """

    may_produce_late = UNBOUNDED_PAST

    def __init__(
        self,
        inputs: Mapping[str, Spread],
        windowing: Windowing,
        combine: CombineFn,
        value: str | Callable[[Any], Any] | None,
        output: str,
    ) -> None:
        self.inputs = inputs  # type: ignore[misc]  # of this instance
        self.windowing = windowing
        self.combine = combine
        self.value = value
        self.output = output
        self._assign = assignment(windowing.window_fn)
        self._pick = picker(value)
        self._sized = windowing.trigger.needs_bytes
        self._coder = PartialCoder()
        self._joins = joins_overlapping(
            getattr(windowing.window_fn, "earlier", windowing.window_fn)
        ) and not any(by_first_element(trigger) for trigger in leaves(windowing.trigger))
        self.partials: ValueState[dict[tuple[Any, ...], _Timed]] = ValueState(dict)
        self.outputs = {output: DerivedFormat(tuple(inputs), self._derive)}  # type: ignore[misc]

    def _derive(self, *formats: Any) -> PartialCoder:
        kind = field_type(plain_format(formats[0]), self.value)
        return PartialCoder(self.combine.accumulator_type(kind), kind)

    def typed(self, coders: Sequence[Coder]) -> CombineByPart:
        """Return the same with a picker for its input's format."""
        typed = copy.copy(self)
        typed._pick = picker(self.value, plain_format(coders[0]))
        typed._coder = typed._derive(*coders)
        typed.outputs = {self.output: typed._coder}  # type: ignore[misc]
        return typed

    def renamed(self, output: str) -> CombineByPart:
        """Return the same with another name for its output."""
        return CombineByPart(self.inputs, self.windowing, self.combine, self.value, output)  # type: ignore[arg-type]

    def process_record(self, record: Record) -> None:
        """Add an element to the partials of its windows."""
        value, at_us, pane = self._pick(record.value), record.timestamp, record.pane
        retraction = pane is not None and pane.retraction
        partials = self.partials.get({})
        if not partials:
            # A wall-clock timer of the past is due in this same bundle, after the records.
            self.set_timer("send", 0, WALL_TIME)
        size = len(_encode(value)) if self._sized else 0
        _, record.key = self.key  # windows are those of the key itself
        for window in self._assign(record):
            alone = record.late or end_us(window) <= self.low_watermark
            place = window.start, window.end, record.late, alone
            try:
                of_us, partial = partials.get(place) or (
                    at_us, Partial(window, self.combine.create(), 0, 0, at_us, at_us),
                )  # fmt: skip
                partials[place] = of_us, self._more(partial, value, at_us, size, retraction)
            except RAISED as error:
                blame(error, window)
                raise
        self.partials.set(partials)

    def _more(
        self, partial: Partial, value: Any, at_us: int, size: int, retraction: bool
    ) -> Partial:
        change = self.combine.uncombine if retraction else self.combine.add
        return Partial(
            partial.window,
            change(partial.accumulator, value),
            partial.elements + 1,
            partial.bytes + size,
            min(partial.earliest, at_us),
            max(partial.latest, at_us),
            partial.retracted + retraction,
        )

    def process_timer(self, timer: Timer) -> None:
        """Send what the bundle has brought, under the key itself."""
        _, key = self.key
        partials = self.partials.get({})
        sent = [timed for (*_, alone), timed in partials.items() if alone or not self._joins]
        if self._joins:
            sent += self._joined([timed for (*_, alone), timed in partials.items() if not alone])
        for at_us, partial in sent:
            self.produce(self.output, partial, at_us, key)
        self.partials.clear()

    def _joined(self, partials: list[_Timed]) -> list[_Timed]:
        """Return partials with those whose windows overlap as one, in a window of them all.

        None of the windows has expired: one that has may belong to a session that is gone.
        """
        groups: list[list[_Timed]] = []
        reach_us = MIN_TIMESTAMP
        for timed in sorted(partials, key=_start_us):
            if _start_us(timed) < reach_us:
                groups[-1].append(timed)
            else:
                groups.append([timed])
            reach_us = max(reach_us, _end_us(timed))
        return [timed for group in groups for timed in self._as_one(group)]

    def _as_one(self, group: list[_Timed]) -> list[_Timed]:
        """Return partials as one; or as they are, if they do not merge or cannot be sent so."""
        if len(group) == 1:
            return group
        partials = [partial for _, partial in group]
        try:
            accumulator = self.combine.create()
            for partial in partials:
                accumulator = self.combine.merge(accumulator, partial.accumulator)
            whole = Partial(
                Window(_start_us(group[0]), max(map(_end_us, group))),
                accumulator,
                sum(partial.elements for partial in partials),
                sum(partial.bytes for partial in partials),
                min(partial.earliest for partial in partials),
                max(partial.latest for partial in partials),
                sum(partial.retracted for partial in partials),
            )
            self._coder.encode(whole)
        except RAISED:  # the grouping meets it too, and can say at which element
            return group
        return [(group[0][0], whole)]


def _start_us(timed: _Timed) -> int:
    _, partial = timed
    return MIN_TIMESTAMP if partial.window is None else partial.window.start or 0


def _end_us(timed: _Timed) -> int:
    _, partial = timed
    return MAX_TIMESTAMP if partial.window is None else end_us(partial.window)


class PartOperator(Operator):
    """The operator of :class:`CombineByPart`."""

    def __init__(self, parts: CombineByPart) -> None:
        super().__init__(parts)
        self._parts = parts
        self.windowing = parts.windowing

    def described(self) -> list[str]:
        """Return what is combined."""
        parts = self._parts
        aggregated = f" of {text(parts.value)}" if parts.value is not None else ""
        return [f"what   {parts.combine!r}{aggregated}, of each part of a key"]

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> CombineByPart:
        """Return the same with a picker for its input's format."""
        parts, coders = self._parts, list(formats.values())
        retracts = any(isinstance(coder, PanedCoder) and coder.retracts for coder in coders)
        if retracts and not parts.combine.inverts:
            raise PipelineError(
                f"{parts.output!r}: with fanout, a retraction may come to another part of its key "
                f"than what it takes back, and {parts.combine!r} cannot take out what it does not "
                "have. Leave fanout out here."
            )
        return parts.typed(coders)

    def lifting(self, stream: str, coder: Coder) -> str:
        """Return why senders do not combine for it."""
        return "the parts of a key combine its values"


def check(windowing: Windowing, combine: CombineFn, fanout: int) -> None:
    """Refuse what cannot be combined in parts.

    Raises:
        PipelineError: It says what, and why.
    """
    if type(fanout) is not int or not 2 <= fanout <= LARGEST:
        raise PipelineError(
            f"fanout={fanout!r}: expected into how many parts to split each key, an int from 2 to "
            f"{LARGEST}."
        )
    if combine.whole is not None:
        raise PipelineError(f"{combine!r} with fanout: {combine.whole}. Leave fanout out.")
    _check_trigger(windowing.trigger)


def _check_trigger(trigger: Trigger) -> None:
    for child in trigger.children:
        _check_trigger(child)
    if trigger.children or not trigger.per_element or isinstance(trigger, AfterCount | AfterBytes):
        return
    raise PipelineError(
        f"fanout goes with triggers of time, AfterCount and AfterBytes: {trigger!r} must see every "
        "element, and gets only what many have become."
    )


_encode = coder_for(Any).encode
