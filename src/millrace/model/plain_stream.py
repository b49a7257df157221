"""PlainStream: a named stream of a pipeline, to which stateless steps can be added.

What groups by windows stands above the model, and so does the class that users meet:
:class:`~millrace.dataflow.stream.Stream` adds ``window`` to this one.

Source: MillWheel, "Streams" (4.3).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self

from millrace.model.coroutines import refuse_parameters
from millrace.model.declarations import Before, Declarations, DerivedFormat, Since
from millrace.model.errors import PipelineError
from millrace.model.expression import (
    Condition,
    Expression,
    Result,
    alone,
    is_expression,
    known_fields,
)
from millrace.model.pane import PanedCoder
from millrace.model.stream import TimeSetter, by, of_record
from millrace.model.time import Duration, Instant, TimeUnit, duration_us, time_unit, timestamp_us

#: Steps whose function is called with the value; those of others, extractors look at themselves.
_OF_VALUES: Final = frozenset({"map", "flat_map", "filter"})


class PlainStream:
    """A stream by its name, and the steps that may follow it.

    Attributes:
        pipeline: Whose stream it is.
        name: In that pipeline.
    """

    def __init__(self, pipeline: Declarations, name: str) -> None:
        self.pipeline = pipeline
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Replace each value by ``function(value)``; key and timestamp stay.

        A function that is to see key, time and pane as well is given as
        :func:`~millrace.model.stream.of_record`; so it is for the other steps.

        Args:
            function: Of the value; or an expression of its fields, ``mr.col("cents") / 100``, whose
                result is the new value. For several fields see ``select``.
        """
        if is_expression(function):
            result = Result((alone(function),))
            made = self._step("map", result)
            derive = partial(_result_of, self.pipeline, self.name, result)
            self.pipeline.formats[made.name] = derived(self.name, derive)
            return made
        return self._step("map", function)

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> Self:
        """Replace each value by the values in ``function(value)``, none or many."""
        return self._step("flat_map", function)

    def filter(self, function: Callable[[Any], bool]) -> Self:
        """Keep the values for which ``function(value)`` is true.

        Args:
            function: Of the value; or an expression of its fields, ``mr.col("cents") > 400``. A
                value of which that is null is not kept.
        """
        if is_expression(function):
            return self._step("filter", Condition((alone(function),)))
        return self._step("filter", function)

    def key_by(self, chosen: str | Callable[[Any], Any], *more: str) -> Self:
        """Give each record the key in a field, several fields, or a function of the value.

        An expression of the value's fields, ``mr.col("item").str.to_lowercase()``, may be given
        instead of a function.

        Besides the fields of the value there is ``_key``, the key. The output of a grouping also
        has the fields of the pane, under the names that sinks give their columns:
        ``_window_start``, ``_window_end``, ``_pane_index``, ``_pane_timing``, ``_is_first``,
        ``_is_last``.
        """
        extractor = by(chosen, *more)
        return self._step("key_by_record" if extractor.sees else "key_by", extractor)

    def with_timestamps(
        self,
        chosen: str | Callable[[Any], Any],
        *,
        unit: TimeUnit | None = None,
        backwards: Duration = 0,
    ) -> Self:
        """Give each record the event time in a field, or what a function of the value returns.

        Args:
            chosen: A field or a function, giving an integer or a datetime with a time zone.
            unit: What an integer counts since 1970 (UTC): ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``;
                by default microseconds.
            backwards: How far before its present timestamp the new one may lie. Consumers' low
                watermark is held back by that much. Moving further back is an error at the record;
                moving forward is always allowed.

        Source: Dataflow patent, "timestamp setter function 322", option 1, ``lateDataHorizon``.
        """
        backwards_us = duration_us(backwards, "with_timestamps(backwards)")
        setter: Any = by(chosen)
        if time_unit(unit, "with_timestamps(unit)") is not None:
            setter = TimeSetter(setter, unit)
        return self._step("with_timestamps", setter, backwards_us)

    def flatten(self, *others: PlainStream) -> Self:
        """Return one stream of the records of this and the others, of one record format."""
        for other in others:
            if not isinstance(other, PlainStream) or other.pipeline is not self.pipeline:
                raise PipelineError(
                    f"{self!r}.flatten: {other!r} is no stream of {self.pipeline!r}."
                )
        return self._next(self.pipeline.flatten([self.name, *(other.name for other in others)]))

    def backfilled(self, past: str | PlainStream, *, until: Instant) -> Self:
        """Return the stream with its past before it: records of both, each once.

        Of the past come the records before an instant, however late they are there; of this stream
        those at it or after. The instant must not have come when the past is added to a pipeline
        that goes on with a checkpoint: a start is refused if records at it or after were read by
        then, as who is new would never get them. Both are read at the same time, each in its own
        order, and low watermarks wait for the slower. When the past is through, leave it out: what
        was ``bids.backfilled(...).to("all bids")`` is ``bids.to("all bids")`` then.

        Args:
            past: The stream of the past, or its name; of the same record format.
            until: Microseconds, a datetime, or text with a time zone.

        Raises:
            PipelineError: It is no stream of this pipeline, or no instant.

        >>> import millrace as mr
        >>> p = mr.Pipeline("shop")
        >>> bids, past = p.inject("bids", format=str), p.inject("past bids", format=str)
        >>> bids.backfilled(past, until=100).to("all bids", str)
        Stream('all bids')
        >>> p.sink("all bids", print)
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("past bids", [("tea", 98), ("rum", 99), ("in both", 100)])
        ...     h.inject("bids", [("in both", 99), ("in both", 100), ("gin", 101)])
        ...     [output.value for output in h.outputs("all bids")]
        ['tea', 'rum', 'in both', 'gin']

        Source: docs/how-to/backfill.md.
        """
        at_us = timestamp_us(until)
        before = type(self)(self.pipeline, past) if isinstance(past, str) else past
        if not isinstance(before, PlainStream) or before.pipeline is not self.pipeline:
            raise PipelineError(
                f"{self!r}.backfilled({past!r}): expected a stream of {self.pipeline!r}, or its "
                "name."
            )
        since = self._step("filter", of_record(Since(at_us, before.name)))
        return since.flatten(before.filter(of_record(Before(at_us))))

    def to(self, name: str, format: Any = Any) -> Self:
        """Name the stream, and declare its record format, so that consumers can subscribe.

        Raises:
            PipelineError: It has that name, as of a join or aggregation with ``name=``.
        """
        if name == self.name:
            raise PipelineError(
                f"{self!r}.to({name!r}): that is its name already; what join, enrich or an "
                f"aggregation makes with name= is called so. Leave to({name!r}) out, or give one "
                "of the two another name."
            )
        self.pipeline.name_stream(self.name, name, format)
        return self._next(name)

    def _step(
        self, kind: str, function: Callable[..., Any], backwards_us: int | None = None
    ) -> Self:
        if not callable(function):
            raise PipelineError(f"{self!r}.{kind}: {function!r} cannot be called with a value.")
        if kind in _OF_VALUES:
            refuse_parameters(function, f"{self!r}.{kind}(", "value")
        return self._next(self.pipeline.add_step(self.name, kind, function, backwards_us))

    def _next(self, name: str) -> Self:
        """Return the stream that follows this one, of the same kind."""
        following = copy.copy(self)
        following.name = name
        return following


def derived(stream: str, derive: Callable[[Any], Any]) -> DerivedFormat:
    """Return a format that follows from that of another stream."""
    return DerivedFormat((stream,), derive)


def fields_of_stream(pipeline: Declarations, stream: str, format: Any) -> Mapping[str, Any] | None:
    """Return the fields that expressions may name of a stream; None if nobody says them.

    Args:
        pipeline: Whose stream it is.
        stream: Its name.
        format: Its format. One that says no fields may have those of the source's columns.
    """
    format = format.format if isinstance(format, PanedCoder) else format
    while (fields := known_fields(format)) is None:
        if format not in (Any, dict):
            return None
        injection = pipeline.injections.get(stream)
        if injection is not None:
            columns = {
                name: kind | None
                for name, kind in injection.columns.items()
                if name != injection.timestamp
            }
            return columns or None
        steps = [step for step in pipeline.steps if step.target == stream]
        if len(steps) != 1 or not steps[0].keeps_values:
            return None
        stream = steps[0].source
        injection = pipeline.injections.get(stream)
        format = pipeline.formats.get(stream, Any) if injection is None else injection.format
        if isinstance(format, DerivedFormat):
            return None
    return fields


def _result_of(pipeline: Declarations, stream: str, result: Expression, format: Any) -> Any:
    """Return the type of what an expression makes of values; Any if it is refused."""
    fields = fields_of_stream(pipeline, stream, format)
    if fields is None or result.problem(fields) is not None:
        return Any
    (kind,) = result.bound(fields).kinds().values()
    return kind
