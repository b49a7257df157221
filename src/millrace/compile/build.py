"""From what a user declares to the topology that every executor uses.

It says what each computation reads, its inputs and what it takes beside them, and what
stands before what: levels, the longest paths from an injector.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from millrace.compile.checks import (
    check_fields,
    check_steps,
    check_subscriptions,
    checked_percentiles,
    evolution_problems,
    late_bound_us,
    refused_field,
    reserved_problems,
    together,
)
from millrace.compile.sink_limits import limits_of
from millrace.compile.stream_types import (
    ExpressionBinder,
    StreamProducer,
    backwards_of,
    formats_of,
    publishers_of,
    roots,
    slacks_of,
)
from millrace.compile.topology import (
    INJECTOR,
    ComputationSpec,
    Edge,
    StreamSpec,
    Topology,
    id_scopes,
    sink_scope,
)
from millrace.dataflow.operators import operator_of
from millrace.dataflow.side_stream import SideStream
from millrace.dataflow.stream import parts_of
from millrace.model.coder import Coder
from millrace.model.computation import EXACTLY_ONCE, state_cells
from millrace.model.declarations import Declarations
from millrace.model.errors import PipelineError
from millrace.model.keys import decode_key
from millrace.model.pane import PanedCoder, PanedExtractor, with_panes
from millrace.model.stream import KeyExtractor, Spread, by


def levels_of(pipeline: Declarations, senders: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return computation -> level; 1 is fed by injectors only.

    Raises:
        PipelineError: Computations feed one another in a circle.
    """
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
        depth = 1 + max(
            (level(sender) for sender in senders[name] if sender in pipeline.computations),
            default=0,
        )
        path.pop()
        levels[name] = depth
        return depth

    for name in pipeline.computations:
        level(name)
    return levels


def upstream(senders: Mapping[str, frozenset[str]], names: Iterable[str]) -> set[str]:
    """Return the computations and injectors that feed some computations, over others or not.

    Args:
        senders: Computation -> computations and injectors that feed it.
        names: Computations; one is among the result if it feeds another.

    >>> sorted(upstream({"a": frozenset(), "b": frozenset("a"), "c": frozenset("b")}, ["c"]))
    ['a', 'b']
    """
    streams: set[str] = set()
    pending = [sender for name in names for sender in senders[name]]
    while pending:
        sender = pending.pop()
        if sender not in streams:
            streams.add(sender)
            pending += senders.get(sender, ())
    return streams


def side_streams_of(pipeline: Declarations) -> dict[str, dict[str, SideStream]]:
    """Return computation -> stream that it takes beside its inputs -> how."""
    side_streams = {
        name: dict(operator_of(computation).side_streams())
        for name, computation in pipeline.computations.items()
    }
    for name, stream in pipeline.starts.items():
        # The stream of keys ends at once, and what is before it has come holds the low watermark.
        side_streams[name][stream] = SideStream(by(decode_key), waits=True)
    return side_streams


def inputs_of(
    pipeline: Declarations,
    side_streams: Mapping[str, Mapping[str, SideStream]],
    problems: list[str],
) -> dict[str, dict[str, KeyExtractor]]:
    """Return computation -> stream that it reads -> key extractor, those beside included.

    Args:
        pipeline: As it is declared.
        side_streams: As :func:`side_streams_of` has it.
        problems: Gets what cannot be read both ways.
    """
    inputs: dict[str, dict[str, KeyExtractor]] = {}
    for name, computation in pipeline.computations.items():
        own = computation.inputs
        keys = inputs[name] = dict(own) if isinstance(own, Mapping) else {}
        for stream, taken in side_streams[name].items():
            if stream in keys:
                problems.append(
                    f"computation {name!r} takes stream {stream!r} as an input, and beside its "
                    "inputs. Give it a second name, and take it by that: "
                    f'p.stream({stream!r}).to("...").'
                )
            keys.setdefault(stream, taken.extractor)
    return inputs


def build(pipeline: Declarations) -> Topology:
    """Return the topology of a pipeline, or say everything that is wrong with it at once."""
    problems = _declaration_problems(pipeline)
    _check_history(pipeline)
    side_streams = side_streams_of(pipeline)
    inputs = inputs_of(pipeline, side_streams, problems)
    pipeline = _without_idle_steps(pipeline, inputs)
    publishers = publishers_of(pipeline)
    check_subscriptions(pipeline, inputs, publishers, problems)
    formats = formats_of(publishers, problems)
    if problems:
        raise PipelineError(together(pipeline, problems))

    check_steps(pipeline)
    check_fields(pipeline, inputs, publishers, formats, problems)
    binder = ExpressionBinder(pipeline, formats, problems)
    inputs = binder.inputs(inputs)
    pipeline = binder.steps()
    if problems:
        raise PipelineError(together(pipeline, problems))

    graph = _Graph(pipeline, side_streams, inputs, publishers, formats)
    edges = graph.edges()
    return Topology(
        name=pipeline.name,
        streams=graph.streams(edges),
        computations=graph.computations(),
        edges=edges,
        sinks=tuple(declaration.sink for declaration in pipeline.sinks),
        dead_letters=pipeline.dead_letters,
        dead_letter_limit=pipeline.dead_letter_limit,
        late_records=pipeline.late,
        dropped=frozenset(pipeline.dropped),
    )


def _declaration_problems(pipeline: Declarations) -> list[str]:
    """Return what is wrong with computations by themselves."""
    problems = [
        problem
        for name, computation in pipeline.computations.items()
        for problem in reserved_problems(name, computation)
    ]
    if problems:
        # Nothing else can be asked of computations whose members are not what they seem.
        raise PipelineError(together(pipeline, problems))
    return [
        problem
        for name, computation in pipeline.computations.items()
        for problem in evolution_problems(name, computation, pipeline.evolutions[name])
    ]


def _check_history(pipeline: Declarations) -> None:
    """Refuse a pipeline that contradicts itself in what it says of earlier versions."""
    if there := sorted(pipeline.dropped & pipeline.computations.keys()):
        raise PipelineError(
            f"{pipeline!r} both has and removes {there}. Leave p.remove(...) out to keep what "
            "they keep; a computation that begins empty needs another name."
        )
    if unknown := sorted(pipeline.drained - pipeline.computations.keys()):
        raise PipelineError(
            f"{pipeline!r} drains {unknown}, and has no computation of that name. What is drained "
            "stays in the pipeline until its timers have fired; it has "
            f"{', '.join(sorted(pipeline.computations)) or 'none'}."
        )
    earlier = [
        (name, was) for name, evolution in pipeline.evolutions.items() for was in evolution.was
    ]
    if there := sorted(was for _, was in earlier if was in pipeline.computations):
        raise PipelineError(
            f"{pipeline!r} both has and renames {there}. Leave was= out where it begins empty; or "
            "leave out what has the old name, or give that another."
        )
    if there := sorted(was for _, was in earlier if was in pipeline.dropped):
        raise PipelineError(
            f"{pipeline!r} both renames and removes {there}. Leave p.remove(...) out to keep what "
            "they keep under the new name, was= to drop it."
        )
    if len({was for _, was in earlier}) < len(earlier):
        raise PipelineError(
            f"{pipeline!r} has two computations that were one, by was=: {sorted(earlier)}. Only "
            "one can keep its state."
        )


class _Graph:
    """A pipeline that has been checked, as who sends to whom.

    Args:
        pipeline: Without steps that lead nowhere.
        side_streams: As :func:`side_streams_of` has it.
        inputs: As :func:`inputs_of` has it.
        publishers: As :func:`publishers_of` has it.
        formats: As :func:`formats_of` has it.
    """

    def __init__(
        self,
        pipeline: Declarations,
        side_streams: Mapping[str, Mapping[str, SideStream]],
        inputs: Mapping[str, Mapping[str, KeyExtractor]],
        publishers: Mapping[str, list[StreamProducer]],
        formats: Mapping[str, tuple[Any, Coder]],
    ) -> None:
        self._pipeline = pipeline
        self._side_streams = side_streams
        self._inputs = inputs
        self._publishers = publishers
        self._formats = formats
        self._waited = {
            name: [s for s in streams if s not in side_streams[name] or side_streams[name][s].waits]
            for name, streams in inputs.items()
        }
        self._senders = {name: self._sending(streams) for name, streams in self._waited.items()}
        self._levels = levels_of(
            pipeline, {name: self._sending(streams) for name, streams in inputs.items()}
        )
        # Numbers are part of the ids of records, so they must not depend on the order of lines. A
        # new checkpoint gives them likewise (``compile/change/registry.py``).
        self._order = sorted(pipeline.computations, key=lambda name: (self._levels[name], name))
        self._slacks = {name: slacks_of(pipeline, name, publishers) for name in publishers}
        self._filtered = {
            name: {stream: self._slacks[stream] for stream in streams if self._slacks[stream]}
            if pipeline.guarantees[name].delivery is EXACTLY_ONCE
            else {}
            for name, streams in inputs.items()
        }
        self._paned = {
            name for name, (_, coder) in formats.items() if isinstance(coder, PanedCoder)
        }
        self._bound = {
            name: operator_of(computation).bound(
                {stream: formats[stream][1] for stream in inputs[name]},
                unbounded=_unbounded(pipeline, name, self._senders),
            )
            for name, computation in pipeline.computations.items()
        }
        self._operators = {
            name: operator_of(computation) for name, computation in self._bound.items()
        }
        self._percentiles = {
            name: checked_percentiles(name, computation)
            for name, computation in self._bound.items()
        }

    def edges(self) -> tuple[Edge, ...]:
        """Return the ways from streams to computations, then those to sinks."""
        pipeline, edges = self._pipeline, list[Edge]()
        for name in self._order:
            side_streams, scopes = self._side_streams[name], id_scopes(self._filtered[name])
            for stream, extractor in sorted(self._inputs[name].items()):
                if _cut(pipeline, name, stream, side_streams):
                    continue
                seeing = _seeing(extractor) if stream in self._paned else extractor
                scope = scopes.get(stream, "")
                taken, lift = side_streams.get(stream), None
                why: Any = "it is beside what is aggregated"
                if taken is None:
                    why = self._operators[name].lifting(stream, self._formats[stream][1])
                if not isinstance(why, str):
                    lift, why = (
                        (None, "duplicates are filtered by id first") if scope else (why, "")
                    )
                everywhere = taken is not None and taken.everywhere
                edges.append(
                    Edge(len(edges), stream, name, None, seeing, scope, lift, why, everywhere)
                )
        for number, declaration in enumerate(pipeline.sinks):
            format, coder = self._formats[declaration.stream]
            if wrong := refused_field(declaration.stream, format, coder, declaration.sink):
                raise PipelineError(f"{pipeline!r}: {wrong}")
            stream = declaration.stream
            injected = stream in pipeline.injections
            scope = sink_scope(stream, self._slacks[stream], injected=injected)
            edges.append(Edge(len(edges), stream, None, number, None, scope))
        return tuple(edges)

    def streams(self, edges: Sequence[Edge]) -> dict[str, StreamSpec]:
        """Return stream -> what is known of it; those that are injected have the first numbers."""
        pipeline, formats = self._pipeline, self._formats
        injected = sorted(pipeline.injections)
        order = [*injected, *sorted(self._publishers.keys() - set(injected))]
        return {
            name: StreamSpec(
                name=name,
                number=order.index(name),
                format=formats[name][0],
                coder=formats[name][1],
                injection=pipeline.injections.get(name),
                publishers=tuple(who.name for who in whos if who.kind == "computation"),
                steps=tuple(
                    with_panes(step) if name in self._paned else step
                    for step in pipeline.steps
                    if step.source == name
                ),
                edges=tuple(edge for edge in edges if edge.stream == name),
                slacks=self._slacks[name],
                limits=limits_of(sink.sink for sink in pipeline.sinks if sink.stream == name),
            )
            for name, whos in self._publishers.items()
        }

    def computations(self) -> tuple[ComputationSpec, ...]:
        """Return what is known of computations, in the order of their numbers."""
        percentiles = [name for name in self._order if self._percentiles[name]]
        counted = upstream(self._senders, percentiles)
        return tuple(
            self._computation(number, name, counted=name in counted)
            for number, name in enumerate(self._order)
        )

    def _computation(self, number: int, name: str, *, counted: bool) -> ComputationSpec:
        pipeline, bound, operator = self._pipeline, self._bound[name], self._operators[name]
        formats = {stream: self._formats[stream][1] for stream in bound.inputs}
        cells = state_cells(bound)
        return ComputationSpec(
            name=name,
            number=number,
            level=self._levels[name],
            instance=bound,
            inputs=dict(self._inputs[name]),
            outputs=tuple(pipeline.computations[name].outputs),
            senders=self._senders[name],
            cells=cells,
            cell_numbers={cell: n for n, cell in enumerate(sorted(cells))},
            guarantees=pipeline.guarantees[name],
            slacks=self._filtered[name],
            may_produce_late_us=late_bound_us(name, bound),
            percentiles=self._percentiles[name],
            backwards=backwards_of(self._waited[name], self._publishers),
            paned=any(stream in self._paned for stream in self._inputs[name]),
            columnar=operator.columnar(formats),
            in_blocks=operator.in_blocks(formats)
            and not self._side_streams[name]
            and name not in pipeline.starts,
            counted=counted,
            evolution=pipeline.evolutions[name],
            side_streams=self._side_streams[name],
            starts=pipeline.starts.get(name),
            draining=name in pipeline.drained,
        )

    def _sending(self, streams: Iterable[str]) -> frozenset[str]:
        return frozenset(sender for stream in streams for sender in roots(stream, self._publishers))


def _cut(pipeline: Declarations, name: str, stream: str, side_streams: Container[str]) -> bool:
    """Return whether a computation's input is cut off, as it is drained.

    What is beside its inputs is not: what waits in it may wait for that. Of a grouping that is
    combined in parts, it is the parts that get no more.
    """
    if name not in pipeline.drained and not any(
        name == parts_of(reader) for reader in pipeline.drained
    ):
        return False
    if stream in side_streams and stream != pipeline.starts.get(name):
        return False
    return not (parts_of(name) in pipeline.computations and stream == parts_of(name))


def _seeing(extractor: KeyExtractor) -> KeyExtractor:
    """Return an extractor as it is on a stream whose values carry panes."""
    if isinstance(extractor, Spread):
        return Spread(PanedExtractor(extractor.plain), extractor.parts)
    return PanedExtractor(extractor)


def _without_idle_steps(
    pipeline: Declarations, inputs: Mapping[str, Iterable[str]]
) -> Declarations:
    """Return the pipeline without ``key_by`` steps whose stream nobody named and nobody reads.

    A grouping takes the key from the stream before (it is the consumer that chooses keys), so that
    Spark can extract it where it is a column.
    """
    read = {step.source for step in pipeline.steps}
    read.update(stream for streams in inputs.values() for stream in streams)
    read.update(declaration.stream for declaration in pipeline.sinks)
    steps = [
        step
        for step in pipeline.steps
        if step.kind != "key_by" or step.target in read or step.target in pipeline.formats
    ]
    if len(steps) == len(pipeline.steps):
        return pipeline
    changed = copy.copy(pipeline)
    changed.steps = steps
    return changed


def _unbounded(pipeline: Declarations, name: str, senders: Mapping[str, frozenset[str]]) -> bool:
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
