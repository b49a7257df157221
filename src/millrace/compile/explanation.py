"""Explanation: how a pipeline runs, as a tree of text.

A stage is what runs between two shuffles. Under each stage are the streams that it makes, under a
stream the stateless steps fused into that stage, and at their ends the edges: who takes the records
to which key, through the next shuffle.

Whether Spark can key an injected stream by itself, as far as the pipeline says.

A key that is one column is encoded and hashed in the JVM. Anything else that has to be done before
the first shuffle needs Python there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.compile.topology import ComputationSpec, Edge, StreamSpec, Topology
from millrace.dataflow.operators import operator_of
from millrace.model.coder import MsgpackCoder, type_name
from millrace.model.computation import EXACTLY_ONCE
from millrace.model.expression import Expression
from millrace.model.pane import PanedCoder
from millrace.model.stream import KEYS, ByFields, Step
from millrace.model.time import format_duration


def python_reason(topology: Topology, stream: StreamSpec) -> str | None:
    """Return why an injected stream needs Python before the first shuffle; None if nothing says so.

    That the columns are there and have the right types only its source can tell.

    >>> from millrace import Pipeline
    >>> p = Pipeline("scores")
    >>> p.inject("scores").filter(bool).to("paid")
    Stream('paid')
    >>> p.sink("paid", print)
    >>> topology = p.build()
    >>> python_reason(topology, topology.streams["scores"])
    "a filter reads 'scores'"
    """
    if stream.name == topology.again:
        return None  # its records are sent as those of other streams, by whoever reads them
    if stream.steps:
        kind = stream.steps[0].kind
        # A step that only names a stream, or makes one of several.
        own = {"to": "another stream is made of", "assign": "windows are assigned to"}
        return f"{own.get(kind, f'a {kind} reads')} {stream.name!r}"
    if not stream.edges:
        return f"nobody reads {stream.name!r}"
    for edge in stream.edges:
        if edge.computation is None:
            return f"a sink takes {stream.name!r}"
        if edge.everywhere:
            return f"{stream.name!r} goes to every key interval of {edge.computation}"
        if one_field(edge) is None:
            return f"{edge.computation} takes its key from {stream.name!r} {edge.extractor!r}"
        if (level := topology.computation(edge.computation).level) > 1:
            return f"{edge.computation}, which reads {stream.name!r}, is on level {level}"
    return None


def one_field(edge: Edge) -> str | None:
    """Return the field that a consumer's key is; None if it is more or something else."""
    extractor = None if edge.everywhere else edge.extractor
    if isinstance(extractor, ByFields) and len(extractor.fields) == 1:
        return extractor.fields[0]
    return None


#: Where a function was made, and at which address: neither is the same in every process.
PLACE = re.compile(r"[\w.<>]*<locals>\.| at 0x[0-9a-f]+")

#: In the text of a generic type, the modules of the types inside.
_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")


@dataclass(frozen=True)
class _Node:
    """A line of the tree, lines that belong to it, and what stands under it."""

    text: str
    notes: tuple[str, ...] = ()
    children: tuple[_Node, ...] = ()

    def lines(self, first: str = "", rest: str = "") -> Iterator[str]:
        yield first + self.text
        bar = "│  " if self.children else "   "
        for note in self.notes:
            yield rest + bar + note
        for child in self.children:
            last = child is self.children[-1]
            yield from child.lines(
                rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
            )


@dataclass(frozen=True, repr=False)
class PipelineExplanation:
    """How a pipeline runs. Print it; a notebook shows it by itself.

    Attributes:
        topology: The pipeline, checked.
        reasons: Injected stream -> why it needs Python before the first shuffle, None if Spark can
            key it alone; without those whose source is not known yet.
        strong: Computation that asks for weak productions -> why they are strong in real time.
        realtime: Whether it runs in real time.

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> scores = p.inject("scores", format=dict)
    >>> human = scores.filter(lambda score: not score["robot"])
    >>> human.key_by("team").window(mr.FixedWindows("1 h")).sum("points").to("totals")
    WindowedStream('totals')
    >>> p.explain()
    pipeline 'game': 1 level, 1 shuffle an epoch
    <BLANKLINE>
    sources, with Python before the first shuffle: a filter reads 'scores'
    └─ stream 'scores' (dict)
       └─ filter(<lambda>)
          └─ edge 0 by('team') -> 'totals'
                lifted: values of a key and window are combined before the shuffle
    <BLANKLINE>
    level 1
    └─ 'totals' (exactly once, strong productions)
       │  what   Sum() of 'points'
       │  where  FixedWindows('1 h')
       │  when   Repeat(AtWatermark())
       │  how    ACCUMULATING
       │  kept   as columns, all keys together
       └─ stream 'totals' (any, with panes): nobody reads it
    """

    topology: Topology
    reasons: Mapping[str, str | None] = field(default_factory=dict)
    strong: Mapping[str, str] = field(default_factory=dict)
    realtime: bool = False

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        topology, depth = self.topology, self.topology.depth
        shuffles = f"{depth} level{'s' * (depth > 1)}, {depth} shuffle{'s' * (depth > 1)} an epoch"
        yield f"pipeline {topology.name!r}: {shuffles}"
        for stage in self._stages():
            yield ""
            yield from (PLACE.sub("", line) for line in stage.lines())

    def _stages(self) -> Iterator[_Node]:
        topology, drawn = self.topology, set[str]()
        injected = tuple(self._stream(spec, drawn) for spec in topology.injected())
        if injected:
            yield _Node(f"sources, {self._before_the_first_shuffle()}", (), injected)
        for level in range(1, topology.depth + 1):
            specs = [spec for spec in topology.computations if spec.level == level]
            if specs:
                nodes = tuple(self._computation(spec, drawn) for spec in specs)
                yield _Node(f"level {level}", (), nodes)
        letters = [name for name in (topology.dead_letters, topology.late_records) if name]
        if letters:
            streams = (self._stream(topology.streams[name], drawn) for name in letters)
            yield _Node("letters, from every stage", (), tuple(streams))

    def _before_the_first_shuffle(self) -> str:
        streams = [
            source for source in self.topology.injected() if source.name != self.topology.again
        ]
        by_stream = {spec.name: python_reason(self.topology, spec) for spec in streams}
        by_stream.update(self.reasons)
        reasons = [reason for reason in by_stream.values() if reason is not None]
        if reasons and self.realtime and len(reasons) < len(by_stream):
            return f"by columns, and these record by record in Python: {'; '.join(reasons)}"
        if reasons:
            return f"with Python before the first shuffle: {'; '.join(reasons)}"
        if any(_has_injector(spec) for spec in streams):
            return f"by columns: keys are encoded and hashed all at once{self._lifting()}"
        if all(spec.name in self.reasons for spec in streams):
            return f"by Spark alone: keys are encoded and hashed in the JVM{self._lifting()}"
        return f"by Spark alone, if the keys' columns are text, bytes or integers{self._lifting()}"

    def _lifting(self) -> str:
        """Return that values are combined before the shuffle, if some are that Spark makes."""
        streams = self.topology.injected()
        lifts = any(edge.lift is not None for spec in streams for edge in spec.edges)
        return "; Python lifts while that pays" if lifts else ""

    def _computation(self, spec: ComputationSpec, drawn: set[str]) -> _Node:
        delivery = "exactly once" if spec.guarantees.delivery is EXACTLY_ONCE else "at least once"
        productions = spec.guarantees.productions.value.lower()
        notes = list(operator_of(spec.instance).described())
        if (reason := self.strong.get(spec.name)) is not None:
            productions = "strong" if self.realtime else productions
            notes.append(f"productions are strong in real time: {reason}")
        if spec.draining:
            notes.append("drained: no records come to it any more, and its timers fire")
        if spec.columnar is not None:
            notes.append(f"kept   as {spec.columnar!r}, all keys together")
        notes += [
            f"drops what {stream!r} delivers again: ids are kept for {format_duration(slack)}"
            for stream, slacks in spec.slacks.items()
            for slack in [max(slacks.values())]
        ]
        if spec.percentiles:
            notes.append(f"waits for percentile low watermarks {sorted(spec.percentiles)}")
        streams = (self._stream(self.topology.streams[name], drawn) for name in spec.outputs)
        text = f"{spec.name!r} ({delivery}, {productions} productions)"
        return _Node(text, tuple(notes), tuple(streams))

    def _stream(self, spec: StreamSpec, drawn: set[str]) -> _Node:
        injection = spec.injection
        text = f"stream {spec.name!r} ({_format(spec)})"
        if injection is not None and injection.source is not None:
            time = "by ingress" if injection.ingress else repr(injection.timestamp)
            text += f", event time {time}"
            if _has_injector(spec):  # its text may say too much
                text += f", {type(injection.source).__name__}"
            if injection.low_watermark is not None:
                text += f", {injection.low_watermark!r}"
        return self._below(text, spec, drawn)

    def _below(self, text: str, spec: StreamSpec, drawn: set[str]) -> _Node:
        """Return a node with the steps and edges of a stream; those of a stream go up once."""
        if spec.name in drawn:
            return _Node(f"{text}: see above")
        if not spec.steps and not spec.edges:
            return _Node(f"{text}: nobody reads it")
        drawn.add(spec.name)
        steps = (self._step(step, drawn) for step in spec.steps)
        return _Node(text, (), (*map(self._edge, spec.edges), *steps))

    def _step(self, step: Step, drawn: set[str]) -> _Node:
        """Return a node of a step and those that follow it, as long as there is one way to go."""
        text = call_text(step)
        spec = self.topology.streams[step.target]
        while len(spec.steps) == 1 and not spec.edges and spec.name not in drawn:
            drawn.add(spec.name)
            text += f", {call_text(spec.steps[0])}"
            spec = self.topology.streams[spec.steps[0].target]
        return self._below(text, spec, drawn)

    def _edge(self, edge: Edge) -> _Node:
        if edge.sink is not None:
            return _Node(f"sink {edge.sink}: {name_text(self.topology.sinks[edge.sink])}")
        text = f"edge {edge.number} {edge.extractor!r} -> {edge.computation!r}"
        text += ", every key interval of it" if edge.everywhere else ""
        if edge.lift is not None:
            return _Node(
                text, ("lifted: values of a key and window are combined before the shuffle",)
            )
        consumer = self.topology.computation(str(edge.computation)).instance
        if not operator_of(consumer).described():
            return _Node(text)  # no grouping, so nobody would expect it
        return _Node(text, (f"not lifted: {edge.unlifted}",))


def call_text(step: Step) -> str:
    """Return a step as it was written, or nearly so."""
    if step.kind == "to":
        return f"to {step.target!r}"
    # A key extractor's text is by('team'), and the step's is key_by('team').
    inside = (
        repr(step.function)[len("by(") : -1]
        if step.kind in (*KEYS, "with_timestamps")
        else name_text(step.function)
    )
    if step.backwards_us:
        inside += f", backwards={format_duration(step.backwards_us)!r}"
    if step.kind == "map" and isinstance(step.function, Expression):
        return f"{step.function.step}({inside})"
    return f"{step.kind.removesuffix('_record')}({inside})"


def name_text(thing: Any) -> str:
    """Return a function or a class by its name, and all else as its text."""
    return str(thing.__qualname__) if hasattr(thing, "__qualname__") else repr(thing)


def _format(spec: StreamSpec) -> str:
    coder, more = spec.coder, ""
    if isinstance(coder, PanedCoder):
        more = ", with panes and retractions" if coder.retracts else ", with panes"
        coder = coder.inner
    if isinstance(coder, MsgpackCoder):
        name = "any" if coder.type is Any else _MODULES.sub("", type_name(coder.type))
        return name + more
    return f"{coder!r}{more}"


def _has_injector(spec: StreamSpec) -> bool:
    """Return whether an injector is a stream's source."""
    return spec.injection is not None and hasattr(spec.injection.source, "processes")
