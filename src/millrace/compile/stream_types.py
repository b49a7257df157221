"""The record format of each stream: declared, inherited through steps, or derived.

And who feeds it: injectors, computations and stateless steps, as a pipeline declares them.
Expressions are checked, and bound to the types of their streams' fields.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from millrace.compile.topology import injector_name
from millrace.model.coder import Coder, MsgpackCoder, coder_for, type_name
from millrace.model.computation import Computation
from millrace.model.declarations import Declarations, DerivedFormat
from millrace.model.errors import CoderError
from millrace.model.expression import Expression
from millrace.model.pane import PanedCoder, with_retractions
from millrace.model.plain_stream import fields_of_stream
from millrace.model.record import DeadLetter, LateRecord
from millrace.model.stream import ByFunction, KeyExtractor, Spread, TimeSetter

#: The format of a step's stream that is not declared, where the step leaves values as they are.
INHERITED: Any = object()


@dataclass(frozen=True)
class StreamProducer:
    """Who feeds a stream: an injector, a computation, a step, or the declaration of one of letters.

    Letters are dead letters and late records: they come from everywhere in the pipeline.
    """

    kind: str
    name: str
    format: Any = None
    backwards_us: int = 0


def publishers_of(pipeline: Declarations) -> dict[str, list[StreamProducer]]:
    """Return stream -> all that feed it."""
    producers: dict[str, list[StreamProducer]] = {}
    for stream, injection in pipeline.injections.items():
        producers.setdefault(stream, []).append(
            StreamProducer("injector", stream, injection.format)
        )
    for name, computation in pipeline.computations.items():
        if isinstance(computation.outputs, Mapping):
            for stream, format in computation.outputs.items():
                producer = StreamProducer("computation", name, _made(computation, format))
                producers.setdefault(stream, []).append(producer)
    for step in pipeline.steps:
        format = pipeline.formats.get(step.target, Any)
        if format is Any and step.keeps_values:
            format = INHERITED
        producers.setdefault(step.target, []).append(
            StreamProducer("step", step.source, format, step.backwards_us or 0)
        )
    for kind, letters, format in (
        ("dead letters", pipeline.dead_letters, DeadLetter),
        ("late records", pipeline.late, LateRecord),
    ):
        if letters is not None:
            producers.setdefault(letters, []).append(StreamProducer(kind, letters, format))
    return producers


def _made(computation: Computation, format: Any) -> DerivedFormat:
    """Return the format of what a computation makes of its inputs, for the one it declares."""
    if isinstance(format, DerivedFormat):
        return format
    inputs = computation.inputs if isinstance(computation.inputs, Mapping) else ()
    return DerivedFormat(tuple(inputs), partial(with_retractions, format))


def upstream(stream: str, publishers: Mapping[str, list[StreamProducer]]) -> list[str]:
    """Return a stream and those that stateless steps lead from to it."""
    streams, pending = [], [stream]
    while pending:
        name = pending.pop()
        if name not in streams:
            streams.append(name)
            pending += [who.name for who in publishers.get(name, ()) if who.kind == "step"]
    return streams


def roots(stream: str, publishers: Mapping[str, list[StreamProducer]]) -> Iterable[str]:
    """Yield the computations and injected streams that feed a stream, through steps."""
    for name in upstream(stream, publishers):
        for who in publishers[name]:
            if who.kind == "injector":
                yield injector_name(name)
            elif who.kind == "computation":
                yield who.name


def letters_on(stream: str, publishers: Mapping[str, list[StreamProducer]]) -> str:
    """Return what kind of letters a stream carries; empty if none."""
    return next(
        (
            who.kind
            for name in upstream(stream, publishers)
            for who in publishers[name]
            if who.kind in ("dead letters", "late records")
        ),
        "",
    )


def slacks_of(
    pipeline: Declarations, stream: str, publishers: Mapping[str, list[StreamProducer]]
) -> dict[int, int]:
    """Return the slacks of the injectors with ids that feed a stream, through steps."""
    numbers = {name: number for number, name in enumerate(sorted(pipeline.injections))}
    return {
        numbers[name]: pipeline.injections[name].slack_us
        for name in upstream(stream, publishers)
        if name in numbers and pipeline.injections[name].id is not None
    }


def backwards_of(
    inputs: Iterable[str], publishers: Mapping[str, list[StreamProducer]]
) -> dict[str, int]:
    """Return sender -> how far back steps on the way to these streams move timestamps."""
    slacks: dict[str, int] = {}

    def walk(stream: str, backwards_us: int) -> None:
        for who in publishers.get(stream, ()):
            if who.kind == "step":
                walk(who.name, backwards_us + who.backwards_us)
            elif who.kind in ("injector", "computation") and backwards_us:
                name = injector_name(stream) if who.kind == "injector" else who.name
                slacks[name] = max(slacks.get(name, 0), backwards_us)

    for stream in inputs:
        walk(stream, 0)
    return slacks


def formats_of(
    publishers: Mapping[str, list[StreamProducer]], problems: list[str]
) -> dict[str, tuple[Any, Coder]]:
    """Return each stream's format and coder; add to ``problems`` where publishers disagree."""
    formats: dict[str, tuple[Any, Coder]] = {}
    known = _Known(publishers)
    for stream, whos in publishers.items():
        declared: list[tuple[StreamProducer, Any, Coder]] = []
        for who in whos:
            try:
                format = known.of(who)
                declared.append((who, format, coder_for(format)))
            except CoderError as refused:
                problems.append(f"stream {stream!r}: {refused}")
        # Where values of one publisher carry panes, those of the others may stand beside them.
        common = known.common(stream)
        if isinstance(common, PanedCoder):
            formats[stream] = (common, common)
            declared = [(who, *_plain(coder)) for who, _, coder in declared]
        typed = [entry for entry in declared if entry[1] is not Any]
        for who, _, coder in typed[1:]:
            if coder != typed[0][2]:
                problems.append(
                    f"stream {stream!r} has publishers whose formats disagree: "
                    f"{typed[0][0].kind} {typed[0][0].name!r} says {typed[0][2]!r}, "
                    f"{who.kind} {who.name!r} says {coder!r}. A stream has one record format."
                )
        for _, format, coder in typed[:1] or declared[:1]:
            formats.setdefault(stream, (format, coder))
    return formats


class _Known:
    """The formats of streams as far as they are known, each looked for once."""

    def __init__(self, publishers: Mapping[str, list[StreamProducer]]) -> None:
        self._publishers = publishers
        self._found: dict[str, Any] = {}

    def common(self, stream: str) -> Any:
        """Return a stream's format by those of its publishers: the one that says most."""
        if stream not in self._found:
            # A cycle, which is refused later, comes back here and finds this.
            self._found[stream] = Any
            self._found[stream] = _most([*self._declared(stream)])
        return self._found[stream]

    def _declared(self, stream: str) -> Iterator[Any]:
        """Yield the formats of a stream's publishers; one that cannot be is told elsewhere."""
        for who in self._publishers.get(stream, ()):
            with suppress(CoderError):
                yield self.of(who)

    def of(self, who: StreamProducer) -> Any:
        """Return a publisher's format; a step that keeps values has that of the stream it reads.

        Raises:
            CoderError: It is no format.
        """
        format = who.format
        if isinstance(format, DerivedFormat):
            format = format.derive(*map(self.common, format.streams))
        if who.kind != "step":
            return format
        source = self.common(who.name)
        if format is INHERITED:
            return source
        # A step makes new values, but each keeps the pane of the one that it was made from.
        if isinstance(source, PanedCoder) and not isinstance(format, PanedCoder):
            return PanedCoder(format, retracts=source.retracts)
        return format


def _most(formats: list[Any]) -> Any:
    """Return the one of a stream's formats that says most; that of its panes, if it has any."""
    paned = [format for format in formats if isinstance(format, PanedCoder)]
    if paned:
        plain = next((format.format for format in paned if format.format is not Any), Any)
        return PanedCoder(plain, retracts=any(format.retracts for format in paned))
    return next((format for format in formats if format is not Any), Any)


def _plain(coder: Coder) -> tuple[Any, Coder]:
    """Return format and coder of the values, without their panes."""
    plain = coder.inner if isinstance(coder, PanedCoder) else coder
    return (Any if plain == MsgpackCoder(Any) else plain), plain


#: Kind of a step -> what messages call it, where they are not the same.
_CALLS = {"key_by_record": "key_by", "with_timestamps": "with_timestamps"}


class ExpressionBinder:
    """Binds the expressions of a pipeline.

    Args:
        pipeline: As it is declared.
        formats: Stream -> format and coder.
        problems: Gets what is wrong with them.
    """

    def __init__(
        self,
        pipeline: Declarations,
        formats: Mapping[str, tuple[Any, Coder]],
        problems: list[str],
    ) -> None:
        self._pipeline = pipeline
        self._formats = formats
        self._problems = problems

    def steps(self) -> Declarations:
        """Return the pipeline with the expressions of its steps bound."""
        steps = [
            step
            if (bound := self._bound(step.function, step.source, _who(step.kind, step.function)))
            is step.function
            else replace(step, function=bound)
            for step in self._pipeline.steps
        ]
        if all(new is old for new, old in zip(steps, self._pipeline.steps, strict=True)):
            return self._pipeline
        changed = copy.copy(self._pipeline)
        changed.steps = steps
        return changed

    def inputs(
        self, inputs: Mapping[str, Mapping[str, KeyExtractor]]
    ) -> dict[str, dict[str, KeyExtractor]]:
        """Return the same key extractors of computations, with expressions bound."""
        return {
            name: {
                stream: self._bound(extractor, stream, f"the key of computation {name!r}")
                for stream, extractor in streams.items()
            }
            for name, streams in inputs.items()
        }

    def _bound(self, function: Any, stream: str, who: str) -> Any:
        """Return a function or extractor with its expression bound; the same if it has none."""
        if isinstance(function, Expression):
            return self._expression(function, stream, who)
        if isinstance(function, ByFunction):
            bound = self._bound(function.function, stream, who)
            return function if bound is function.function else ByFunction(bound)
        if isinstance(function, Spread):
            plain = self._bound(function.plain, stream, who)
            return function if plain is function.plain else Spread(plain, function.parts)
        if isinstance(function, TimeSetter):
            choose = self._bound(function.choose, stream, who)
            return function if choose is function.choose else TimeSetter(choose, function.unit)
        return function

    def _expression(self, expression: Expression, stream: str, who: str) -> Expression:
        format, _ = self._formats[stream]
        where = f"{who} on stream {stream!r}, {expression!r}"
        fields = fields_of_stream(self._pipeline, stream, format)
        plain = format.format if isinstance(format, PanedCoder) else format
        if fields is None:
            self._problems.append(
                f"{where}: nobody says what fields the values of the stream have, as its format "
                f"is {_format_text(plain)}. Declare one with fields, a msgspec.Struct or a "
                "dataclass: inject(..., format=Bid) or to(name, Bid). Or use a function."
            )
            return expression
        for name in expression.reads:
            if name not in fields:
                close = get_close_matches(name, fields, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                self._problems.append(
                    f"{where} names field {name!r}, which its format {_format_text(plain)} does "
                    f"not have.{hint} It has: {', '.join(fields)}."
                )
        if expression.reads and not set(expression.reads) <= fields.keys():
            return expression
        if (wrong := expression.problem(fields)) is not None:
            self._problems.append(f"{where}: {wrong}")
            return expression
        return expression.bound(fields)


def _who(kind: str, function: Callable[..., Any]) -> str:
    if kind == "map" and isinstance(function, Expression):
        kind = function.step
    return f"a {_CALLS.get(kind, kind)} step"


def _format_text(format: Any) -> str:
    kind = getattr(format, "type", format) if isinstance(format, Coder) else format
    return type_name(kind)
