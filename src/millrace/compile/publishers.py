"""Who feeds a stream: injectors, computations and stateless steps, as a pipeline declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from millrace.compile.topology import injector_name
from millrace.model.computation import Computation
from millrace.model.declarations import Declarations, DerivedFormat
from millrace.model.pane import with_retractions
from millrace.model.record import DeadLetter, LateRecord

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
    found: dict[str, list[StreamProducer]] = {}
    for stream, injection in pipeline.injections.items():
        found.setdefault(stream, []).append(StreamProducer("injector", stream, injection.format))
    for name, computation in pipeline.computations.items():
        if isinstance(computation.outputs, Mapping):
            for stream, format in computation.outputs.items():
                made = StreamProducer("computation", name, _made(computation, format))
                found.setdefault(stream, []).append(made)
    for step in pipeline.steps:
        format = pipeline.formats.get(step.target, Any)
        if format is Any and step.keeps_values:
            format = INHERITED
        found.setdefault(step.target, []).append(
            StreamProducer("step", step.source, format, step.backwards_us or 0)
        )
    for kind, letters, format in (
        ("dead letters", pipeline.dead_letters, DeadLetter),
        ("late records", pipeline.late, LateRecord),
    ):
        if letters is not None:
            found.setdefault(letters, []).append(StreamProducer(kind, letters, format))
    return found


def _made(computation: Computation, format: Any) -> DerivedFormat:
    """Return the format of what a computation makes of its inputs, for the one it declares."""
    if isinstance(format, DerivedFormat):
        return format
    inputs = computation.inputs if isinstance(computation.inputs, Mapping) else ()
    return DerivedFormat(tuple(inputs), partial(with_retractions, format))


def upstream(stream: str, publishers: Mapping[str, list[StreamProducer]]) -> list[str]:
    """Return a stream and those that stateless steps lead from to it."""
    found, pending = [], [stream]
    while pending:
        name = pending.pop()
        if name not in found:
            found.append(name)
            pending += [who.name for who in publishers.get(name, ()) if who.kind == "step"]
    return found


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
    found: dict[str, int] = {}

    def walk(stream: str, backwards_us: int) -> None:
        for who in publishers.get(stream, ()):
            if who.kind == "step":
                walk(who.name, backwards_us + who.backwards_us)
            elif who.kind in ("injector", "computation") and backwards_us:
                name = injector_name(stream) if who.kind == "injector" else who.name
                found[name] = max(found.get(name, 0), backwards_us)

    for stream in inputs:
        walk(stream, 0)
    return found
