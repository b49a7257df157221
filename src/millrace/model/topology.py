"""Topology: a pipeline checked, numbered and levelled, as every executor uses it.

Levels are longest paths: a computation stands one level below the deepest that feeds it, and the
computations of a level run side by side in one Spark stage.

Source: MillWheel, "Streams" (4.3), figure 3; design.md, "How a pipeline runs on Spark".
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from millrace.model.coder import Coder, MsgpackCoder, coder_for
from millrace.model.computation import Computation, state_cells
from millrace.model.derived import DerivedFormat
from millrace.model.errors import CoderError, PipelineError
from millrace.model.guarantees import EXACTLY_ONCE, Guarantees
from millrace.model.pane import PanedCoder, PanedExtractor, with_panes
from millrace.model.pipeline import Injection, Pipeline
from millrace.model.record import DeadLetter, LateRecord
from millrace.model.state import StateCell
from millrace.model.stream import KeyExtractor, Spread, Step
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, duration_us

#: Before the name of a stream, it names the stream's injector.
INJECTOR = "injector:"


@dataclass(frozen=True)
class Edge:
    """One subscription: the wire tags each record with the number of the edge it travels.

    Attributes:
        number: Position in ``Topology.edges``.
        stream: The stream subscribed to.
        computation: The subscriber, or None if it is a sink.
        sink: Number of the sink, or None.
        extractor: The subscriber's key extractor; None for a sink.
        identified: Whether records travel it with their source ids: those that were injected with
            one, for a sink or for a computation that filters duplicates.
        lift: How senders combine records for the subscriber before the shuffle, a
            :class:`~millrace.dataflow.lifting.Lift`; None if they do not.
        unlifted: Why they do not.
    """

    number: int
    stream: str
    computation: str | None
    sink: int | None
    extractor: KeyExtractor | None
    identified: bool = False
    lift: Any = None
    unlifted: str = ""


@dataclass(frozen=True)
class StreamSpec:
    """One stream: its format, who feeds it and who reads it.

    Attributes:
        slacks: Number of an injector with ids whose records it carries, straight or by stateless
            steps -> for how long past a record's timestamp its id is kept, in microseconds.
    """

    name: str
    format: Any
    coder: Coder
    injection: Injection | None
    publishers: tuple[str, ...]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    slacks: Mapping[int, int]


@dataclass(frozen=True)
class ComputationSpec:
    """One computation: its number, level, senders and state.

    Attributes:
        number: Position in ``Topology.computations``; part of the ids of its productions.
        level: 1 for computations fed by injectors only.
        senders: Names of computations, and of injected streams, that feed it, steps included.
        guarantees: Of its productions and deliveries. They are no part of what a checkpoint depends
            on: every commit says whether it holds productions.
        slacks: Input stream -> its slacks, of the streams whose duplicates it filters.
        may_produce_late_us: How far behind what it has shown its consumers it may produce.
        percentiles: Percentile low watermarks that its timers may wait for.
        backwards: Sender -> how far back steps between it and here move timestamps, at most.
        paned: Whether values of its inputs may carry panes.
        columns: How it works on whole bundles, :class:`~millrace.model.bundle.Columns`; None if it
            works key by key.
    """

    name: str
    number: int
    level: int
    instance: Computation
    inputs: Mapping[str, KeyExtractor]
    outputs: tuple[str, ...]
    senders: frozenset[str]
    cells: Mapping[str, StateCell]
    guarantees: Guarantees
    slacks: Mapping[str, Mapping[int, int]]
    may_produce_late_us: int = 0
    percentiles: frozenset[int] = frozenset()
    backwards: Mapping[str, int] = field(default_factory=dict)

    def input_us(self, shown: Mapping[str, int]) -> int:
        """Return the low watermark of the input: the minimum over the senders.

        Args:
            shown: Sender -> low watermark that it shows.
        """
        if not self.backwards:
            return min((shown[sender] for sender in self.senders), default=MAX_TIMESTAMP)
        return min(
            # Before time and at its end, there is nothing that could be moved.
            shown[sender] - self.backwards.get(sender, 0)
            if MIN_TIMESTAMP < shown[sender] < MAX_TIMESTAMP
            else shown[sender]
            for sender in self.senders
        )

    paned: bool = False
    columns: Any = None


@dataclass(frozen=True)
class Topology:
    """A checked pipeline. ``computations`` are ordered by level, then by name."""

    name: str
    streams: Mapping[str, StreamSpec]
    computations: tuple[ComputationSpec, ...]
    edges: tuple[Edge, ...]
    sinks: tuple[Any, ...]
    dead_letters: str | None
    late_records: str | None = None
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        deepest = max((spec.level for spec in self.computations), default=1)
        object.__setattr__(self, "depth", deepest)

    def computation(self, name: str) -> ComputationSpec:
        """Return a computation by name."""
        return next(spec for spec in self.computations if spec.name == name)

    @cached_property
    def percentiles(self) -> tuple[int, ...]:
        """The percentile low watermarks that any computation waits for, ascending."""
        return tuple(sorted({p for spec in self.computations for p in spec.percentiles}))

    def injected(self) -> tuple[StreamSpec, ...]:
        """Return the injected streams, by name: their numbers and Spark's offsets go by it."""
        found = [spec for spec in self.streams.values() if spec.injection is not None]
        return tuple(sorted(found, key=lambda spec: spec.name))

    def edge_names(self) -> list[str]:
        """Return the subscriptions by number, as text."""
        return [
            f"{edge.stream} -> "
            + (edge.computation if edge.computation is not None else f"sink {edge.sink}")
            for edge in self.edges
        ]

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint depends on, as plain data: two equal ones can share state."""
        return {
            "computations": {
                spec.name: {
                    "inputs": {stream: repr(by) for stream, by in sorted(spec.inputs.items())},
                    "outputs": sorted(spec.outputs),
                    "state": {name: repr(cell) for name, cell in sorted(spec.cells.items())},
                    **({"settings": settings} if (settings := spec.instance.settings()) else {}),
                    **({"kept as": repr(spec.columns)} if spec.columns is not None else {}),
                }
                for spec in self.computations
            },
            "streams": {name: repr(spec.coder) for name, spec in sorted(self.streams.items())},
            "injected": sorted(spec.name for spec in self.injected()),
        }


def build(pipeline: Pipeline) -> Topology:
    """Return the topology of a pipeline, or say everything that is wrong with it at once."""
    problems: list[str] = []
    pipeline = _without_idle_steps(pipeline)
    publishers = _publishers(pipeline)
    _check_subscriptions(pipeline, publishers, problems)
    formats = _formats(publishers, problems)
    if problems:
        raise PipelineError(_together(pipeline, problems))

    _check_steps(pipeline)
    senders = {
        name: frozenset(
            sender for stream in computation.inputs for sender in _roots(stream, publishers)
        )
        for name, computation in pipeline.computations.items()
    }
    levels = _levels(pipeline, senders)
    # Numbers are part of the ids of records, so they must not depend on the order of lines.
    order = sorted(pipeline.computations, key=lambda name: (levels[name], name))

    slacks = {name: _slacks(pipeline, name, publishers) for name in publishers}
    filtered = {
        name: {stream: slacks[stream] for stream in computation.inputs if slacks[stream]}
        if pipeline.guarantees[name].delivery is EXACTLY_ONCE
        else {}
        for name, computation in pipeline.computations.items()
    }
    paned = {name for name, (_, coder) in formats.items() if isinstance(coder, PanedCoder)}
    bound = {
        name: computation.bound(
            {stream: formats[stream][1] for stream in computation.inputs},
            unbounded=_unbounded(pipeline, name, senders),
        )
        for name, computation in pipeline.computations.items()
    }
    edges: list[Edge] = []
    for name in order:
        for stream, extractor in sorted(pipeline.computations[name].inputs.items()):
            seeing = _seeing(extractor) if stream in paned else extractor
            identified = stream in filtered[name]
            lift = bound[name].lifting(stream, formats[stream][1])
            if identified and not isinstance(lift, str):
                lift = "duplicates are filtered by id first"
            edges.append(
                Edge(len(edges), stream, name, None, seeing, identified, unlifted=lift)
                if isinstance(lift, str)
                else Edge(len(edges), stream, name, None, seeing, identified, lift)
            )
    for number, declaration in enumerate(pipeline.sinks):
        identified = bool(slacks[declaration.stream])
        edges.append(Edge(len(edges), declaration.stream, None, number, None, identified))

    streams = {
        name: StreamSpec(
            name=name,
            format=formats[name][0],
            coder=formats[name][1],
            injection=pipeline.injections.get(name),
            publishers=tuple(who.name for who in whos if who.kind == "computation"),
            steps=tuple(
                with_panes(step) if name in paned else step
                for step in pipeline.steps
                if step.source == name
            ),
            edges=tuple(edge for edge in edges if edge.stream == name),
            slacks=slacks[name],
        )
        for name, whos in publishers.items()
    }
    computations = tuple(
        ComputationSpec(
            name=name,
            number=number,
            level=levels[name],
            instance=bound[name],
            inputs=dict(pipeline.computations[name].inputs),
            outputs=tuple(pipeline.computations[name].outputs),
            senders=senders[name],
            cells=state_cells(bound[name]),
            guarantees=pipeline.guarantees[name],
            slacks=filtered[name],
            may_produce_late_us=_late_bound_us(name, bound[name]),
            percentiles=_percentiles(name, bound[name]),
            backwards=_backwards(bound[name].inputs, publishers),
            paned=any(stream in paned for stream in bound[name].inputs),
            # To tell how much work is behind a time, the kernel must see the timers of all keys.
            columns=None
            if any(_percentiles(other, computation) for other, computation in bound.items())
            else bound[name].columnar(
                {stream: formats[stream][1] for stream in bound[name].inputs}
            ),
        )
        for number, name in enumerate(order)
    )
    return Topology(
        name=pipeline.name,
        streams=streams,
        computations=computations,
        edges=tuple(edges),
        sinks=tuple(declaration.sink for declaration in pipeline.sinks),
        dead_letters=pipeline.dead_letters,
        late_records=pipeline.late,
    )


def _seeing(extractor: KeyExtractor) -> KeyExtractor:
    """Return an extractor as it is on a stream whose values carry panes."""
    if isinstance(extractor, Spread):
        return Spread(PanedExtractor(extractor.plain), extractor.parts)
    return PanedExtractor(extractor)


def _without_idle_steps(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline without ``key_by`` steps whose stream nobody named and nobody reads.

    A grouping takes the key from the stream before (it is the consumer that chooses keys), so that
    Spark can extract it where it is a column.
    """
    read = {step.source for step in pipeline.steps}
    read.update(
        stream
        for computation in pipeline.computations.values()
        if isinstance(computation.inputs, Mapping)
        for stream in computation.inputs
    )
    read.update(declaration.stream for declaration in pipeline.sinks)
    kept = [
        step
        for step in pipeline.steps
        if step.kind != "key_by" or step.target in read or step.target in pipeline.formats
    ]
    if len(kept) == len(pipeline.steps):
        return pipeline
    changed = copy.copy(pipeline)
    changed.steps = kept
    return changed


def _unbounded(pipeline: Pipeline, name: str, senders: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a source that feeds a computation, over others or not, has no end."""
    return any(
        _unbounded(pipeline, sender, senders)
        if sender in senders
        else _streams(pipeline.injections[sender.removeprefix(INJECTOR)].source)
        for sender in senders[name]
    )


def _streams(source: Any) -> bool:
    """Return whether a source is a streaming DataFrame, or an injector: it is asked for ever."""
    return bool(getattr(source, "isStreaming", False)) or hasattr(source, "processes")


def _backwards(inputs: Iterable[str], publishers: Mapping[str, list[_Publisher]]) -> dict[str, int]:
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


def _percentiles(name: str, computation: Computation) -> frozenset[int]:
    for percentile in computation.percentiles:
        if type(percentile) is not int or not 1 <= percentile <= 99:
            raise PipelineError(
                f"computation {name!r}, percentiles = {computation.percentiles!r}: {percentile!r} "
                "is no percentile. Expected whole numbers from 1 to 99; 100, the low watermark "
                "itself, is always there."
            )
    return frozenset(computation.percentiles)


def _late_bound_us(name: str, computation: Computation) -> int:
    try:
        return duration_us(computation.may_produce_late)
    except PipelineError as refused:
        raise PipelineError(
            f"computation {name!r}, may_produce_late = {computation.may_produce_late!r}: {refused} "
            "mr.UNBOUNDED_PAST allows any lateness."
        ) from None


def _check_steps(pipeline: Pipeline) -> None:
    """Refuse steps that lead back to where they began."""
    following: dict[str, list[str]] = {}
    for step in pipeline.steps:
        following.setdefault(step.source, []).append(step.target)

    def visit(stream: str, path: tuple[str, ...]) -> None:
        if stream in path:
            circle = " -> ".join([*path[path.index(stream) :], stream])
            raise PipelineError(
                f"{pipeline!r} has a cycle of stateless steps: {circle}. A record would run around "
                "it forever. Give one of the streams another name."
            )
        for target in following.get(stream, ()):
            visit(target, (*path, stream))

    for stream in following:
        visit(stream, ())


#: The format of a step's stream that is not declared, where the step leaves values as they are.
_INHERITED: Any = object()


@dataclass(frozen=True)
class _Publisher:
    """Who feeds a stream: an injector, a computation, a step, or the declaration of one of letters.

    Letters are dead letters and late records: they come from everywhere in the pipeline.
    """

    kind: str
    name: str
    format: Any = None
    backwards_us: int = 0


def _publishers(pipeline: Pipeline) -> dict[str, list[_Publisher]]:
    found: dict[str, list[_Publisher]] = {}
    for stream, injection in pipeline.injections.items():
        found.setdefault(stream, []).append(_Publisher("injector", stream, injection.format))
    for name, computation in pipeline.computations.items():
        if isinstance(computation.outputs, Mapping):
            for stream, format in computation.outputs.items():
                found.setdefault(stream, []).append(_Publisher("computation", name, format))
    for step in pipeline.steps:
        format = pipeline.formats.get(step.target, Any)
        if format is Any and step.keeps_values:
            format = _INHERITED
        found.setdefault(step.target, []).append(
            _Publisher("step", step.source, format, step.backwards_us or 0)
        )
    for kind, letters, format in (
        ("dead letters", pipeline.dead_letters, DeadLetter),
        ("late records", pipeline.late, LateRecord),
    ):
        if letters is not None:
            found.setdefault(letters, []).append(_Publisher(kind, letters, format))
    return found


def _check_subscriptions(
    pipeline: Pipeline, publishers: Mapping[str, Any], problems: list[str]
) -> None:
    def known(stream: str, who: str) -> None:
        if stream not in publishers:
            close = get_close_matches(stream, publishers, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            problems.append(
                f"{who} subscribes to stream {stream!r}, which nobody injects or produces.{hint} "
                f"Known streams: {', '.join(sorted(publishers)) or 'none'}."
            )

    for name, computation in pipeline.computations.items():
        if not isinstance(computation.inputs, Mapping):
            problems.append(
                f"computation {name!r} declares inputs = {computation.inputs!r}. Each input needs "
                'a key extractor: inputs = {"searches": mr.by("query")}.'
            )
            continue
        if not isinstance(computation.outputs, Mapping):
            problems.append(
                f"computation {name!r} declares outputs = {computation.outputs!r}. Each output "
                'needs a record format: outputs = {"counts": Count}.'
            )
        if not computation.inputs:
            problems.append(
                f"computation {name!r} has no inputs, so it would never run. "
                'Declare inputs = {"stream": mr.by("field")}.'
            )
        for stream, extractor in computation.inputs.items():
            known(stream, f"computation {name!r}")
            if not isinstance(extractor, KeyExtractor):
                problems.append(
                    f"computation {name!r} has no key extractor for stream {stream!r} (it has "
                    f'{extractor!r}). Write {{"{stream}": mr.by("field")}}, '
                    "mr.by(lambda value: ...), or mr.by_key() to keep the producer's key."
                )
            elif stream in publishers and (letters := _letters_on(stream, publishers)):
                problems.append(
                    f"computation {name!r} subscribes to {stream!r}, which carries {letters}. "
                    f"Only stateless steps and sinks can: a computation's own {letters} would "
                    "come back to it."
                )
    for declaration in pipeline.sinks:
        known(declaration.stream, "a sink")
    for step in pipeline.steps:
        known(step.source, f"a {step.kind} step")
    fed = pipeline.injections or pipeline.steps
    if fed and not pipeline.computations and not pipeline.sinks:
        problems.append("it has neither computations nor sinks, so it would do nothing.")


def _inherited(
    who: _Publisher, publishers: Mapping[str, list[_Publisher]], seen: tuple[str, ...]
) -> Any:
    """Return a publisher's format; a step that keeps values has that of the stream it reads."""
    format = who.format
    if isinstance(format, DerivedFormat):
        format = format.derive(*(_common(name, publishers, seen) for name in format.streams))
    if who.kind != "step":
        return format
    source = _common(who.name, publishers, seen)
    if format is _INHERITED:
        return source
    # A step makes new values, but each keeps the pane of the one that it was made from.
    if isinstance(source, PanedCoder) and not isinstance(format, PanedCoder):
        return PanedCoder(format, retracts=source.retracts)
    return format


def _common(stream: str, publishers: Mapping[str, list[_Publisher]], seen: tuple[str, ...]) -> Any:
    """Return a stream's format by those of its publishers: the one that says most."""
    if stream in seen:
        return Any
    found = [_inherited(who, publishers, (*seen, stream)) for who in publishers.get(stream, ())]
    paned = [format for format in found if isinstance(format, PanedCoder)]
    if paned:
        plain = next((format.format for format in paned if format.format is not Any), Any)
        return PanedCoder(plain, retracts=any(format.retracts for format in paned))
    return next((format for format in found if format is not Any), Any)


def _letters_on(stream: str, publishers: Mapping[str, list[_Publisher]]) -> str:
    """Return what kind of letters a stream carries; empty if none."""
    return next(
        (
            who.kind
            for name in _upstream(stream, publishers)
            for who in publishers[name]
            if who.kind in ("dead letters", "late records")
        ),
        "",
    )


def _formats(
    publishers: Mapping[str, list[_Publisher]], problems: list[str]
) -> dict[str, tuple[Any, Coder]]:
    formats: dict[str, tuple[Any, Coder]] = {}
    for stream, whos in publishers.items():
        declared: list[tuple[_Publisher, Any, Coder]] = []
        for who in whos:
            try:
                format = _inherited(who, publishers, ())
                declared.append((who, format, coder_for(format)))
            except CoderError as refused:
                problems.append(f"stream {stream!r}: {refused}")
        # Where values of one publisher carry panes, those of the others may stand beside them.
        common = _common(stream, publishers, ())
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


def _plain(coder: Coder) -> tuple[Any, Coder]:
    """Return format and coder of the values, without their panes."""
    plain = coder.inner if isinstance(coder, PanedCoder) else coder
    return (Any if plain == MsgpackCoder(Any) else plain), plain


def _roots(stream: str, publishers: Mapping[str, list[_Publisher]]) -> Iterable[str]:
    """Yield the computations and injected streams that feed a stream, through steps."""
    for name in _upstream(stream, publishers):
        for who in publishers[name]:
            if who.kind == "injector":
                yield injector_name(name)
            elif who.kind == "computation":
                yield who.name


def _slacks(
    pipeline: Pipeline, stream: str, publishers: Mapping[str, list[_Publisher]]
) -> dict[int, int]:
    """Return the slacks of the injectors with ids that feed a stream, through steps."""
    numbers = {name: number for number, name in enumerate(sorted(pipeline.injections))}
    return {
        numbers[name]: pipeline.injections[name].slack_us
        for name in _upstream(stream, publishers)
        if name in numbers and pipeline.injections[name].id is not None
    }


def _upstream(stream: str, publishers: Mapping[str, list[_Publisher]]) -> list[str]:
    """Return a stream and those that stateless steps lead from to it."""
    found, pending = [], [stream]
    while pending:
        name = pending.pop()
        if name not in found:
            found.append(name)
            pending += [who.name for who in publishers.get(name, ()) if who.kind == "step"]
    return found


def injector_name(stream: str) -> str:
    """Return the name under which an injected stream publishes its low watermark.

    Apart from computations' names, so that a stream and a computation may be called the same.
    """
    return INJECTOR + stream


def _levels(pipeline: Pipeline, senders: Mapping[str, frozenset[str]]) -> dict[str, int]:
    levels: dict[str, int] = {}
    path: list[str] = []

    def level(name: str) -> int:
        if name in levels:
            return levels[name]
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise PipelineError(
                f"{pipeline!r} has a cycle: {circle}. A low watermark cannot advance around a "
                "cycle. Break it: feed the stream back through an external queue, or keep the "
                "state in one computation."
            )
        path.append(name)
        found = 1 + max(
            (level(sender) for sender in senders[name] if sender in pipeline.computations),
            default=0,
        )
        path.pop()
        levels[name] = found
        return found

    for name in pipeline.computations:
        level(name)
    return levels


def _together(pipeline: Pipeline, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{pipeline!r}: {problems[0]}"
    lines = "\n".join(f"  {n}. {problem}" for n, problem in enumerate(problems, 1))
    return f"{pipeline!r} has {len(problems)} problems:\n{lines}"
