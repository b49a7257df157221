"""Topology: a pipeline checked, numbered and levelled, as every executor uses it.

Numbers are positions until the claim of a checkpoint binds the topology to its registry
(``compile/change/registry.py``).

Levels are longest paths: a computation stands one level below the deepest that feeds it, and the
computations of a level run side by side in one Spark stage.

Source: MillWheel, "Streams" (4.3), figure 3; docs/architecture.md, "One epoch, step by step".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.compile.sink_limits import SinkLimits, limited
from millrace.dataflow.side_stream import SideStream
from millrace.model.async_computation import AsyncComputation
from millrace.model.coder import Coder
from millrace.model.computation import Computation, Guarantees
from millrace.model.declarations import AGAIN, Evolution, Injection
from millrace.model.expression import Result
from millrace.model.record import DeadLetterLimit
from millrace.model.state import StateDescriptor
from millrace.model.stream import ByFunction, KeyExtractor, Step
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

#: Before the name of a stream, it names the stream's injector.
INJECTOR = "injector:"


def injector_name(stream: str) -> str:
    """Return the name under which an injected stream publishes its low watermark.

    Apart from computations' names, so that a stream and a computation may be called the same.
    """
    return INJECTOR + stream


def in_order(name: str) -> list[str | int]:
    """Return what sorts made-up names as the program has them: the ninth before the tenth.

    >>> sorted(["bids.filter-10", "bids", "bids.filter-9"], key=in_order)
    ['bids', 'bids.filter-9', 'bids.filter-10']
    """
    return [int(part) if n % 2 else part for n, part in enumerate(re.split(r"(\d+)", name))]


def origin_of(stream: str) -> str:
    """Return what a stream of steps is made of first, by its made-up name.

    >>> origin_of("bids.filter-2.map-1"), origin_of("bids")
    ('bids', 'bids')
    """
    return re.sub(r"(\.[a-z_]+-\d+)+$", "", stream)


def id_scopes(slacks: Mapping[str, Mapping[int, int]]) -> dict[str, str]:
    """Return input stream -> the scope of its source ids, for one computation.

    It outlives what programs change on the way: it is the number of the injector, or of the first
    of several. Of inputs with records of one injector, those after the first have a number, too.

    Args:
        slacks: As :class:`ComputationSpec` has them.

    >>> id_scopes({"bids": {3: 60}, "bids.filter-1": {3: 60}, "asks.map-1": {5: 60, 7: 60}})
    {'asks.map-1': '5', 'bids': '3', 'bids.filter-1': '3.1'}
    """
    scopes, inputs = {}, Counter[int]()
    for stream in sorted(slacks, key=in_order):
        injector = min(slacks[stream])
        n = inputs[injector]
        scopes[stream] = f"{injector}.{n}" if n else f"{injector}"
        inputs[injector] += 1
    return scopes


def sink_scope(stream: str, slacks: Mapping[int, int], *, injected: bool) -> str:
    """Return the scope of the ids of a stream's records, for a sink; empty if they have none.

    What was injected has the ids there that computations see; what steps made of it has others.

    Args:
        stream: Its name.
        slacks: As :class:`StreamSpec` has them.
        injected: Whether it is.
    """
    if not slacks:
        return ""
    return id_scopes({stream: slacks})[stream] if injected else stream


@dataclass(frozen=True)
class Edge:
    """One subscription: the wire tags each record with the number of the edge it travels.

    Attributes:
        number: What the wire and commits know it by; not its place among the edges.
        stream: The stream subscribed to.
        computation: The subscriber, or None if it is a sink.
        sink: Number of the sink, or None.
        extractor: The subscriber's key extractor; None for a sink.
        scope: Of the source ids with which records travel it: those that were injected with one,
            for a sink or for a computation that filters duplicates. Empty if they travel without.
        lift: How senders combine records for the subscriber before the shuffle, a
            :class:`~millrace.dataflow.partials.Lift`; None if they do not.
        unlifted: Why they do not.
        everywhere: Whether each record goes to every interval of the subscriber.
    """

    number: int
    stream: str
    computation: str | None
    sink: int | None
    extractor: KeyExtractor | None
    scope: str = ""
    lift: Any = None
    unlifted: str = ""
    everywhere: bool = False

    @property
    def identified(self) -> bool:
        """Whether records travel it with their source ids."""
        return bool(self.scope)

    @property
    def key_expression(self) -> Result | None:
        """The expression that its keys are, whatever the producer's key; None if otherwise."""
        extractor = None if self.everywhere else self.extractor
        function = extractor.function if isinstance(extractor, ByFunction) else None
        return function if isinstance(function, Result) else None


@dataclass(frozen=True)
class StreamSpec:
    """One stream: its format, who feeds it and who reads it.

    Attributes:
        number: Part of the ids of the records that are injected into it.
        slacks: Number of an injected stream with ids whose records it carries, straight or by
            stateless steps -> for how long past a record's timestamp its id is kept, in
            microseconds.
        limits: What its sinks can hold; None if it has none.
    """

    name: str
    number: int
    format: Any
    coder: Coder
    injection: Injection | None
    publishers: tuple[str, ...]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    slacks: Mapping[int, int]
    limits: SinkLimits | None = None

    @cached_property
    def limited_coder(self) -> Coder:
        """What encodes its values, and refuses those that its sinks cannot hold."""
        return self.coder if self.limits is None else limited(self.coder, self.limits)


def moved_back(low_watermark_us: int, backwards_us: int) -> int:
    """Return the low watermark behind steps that may move timestamps back, by so much at most.

    >>> moved_back(50, 20), moved_back(MAX_TIMESTAMP, 20) == MAX_TIMESTAMP
    (30, True)
    """
    # Before time and at its end, there is nothing that could be moved.
    if MIN_TIMESTAMP < low_watermark_us < MAX_TIMESTAMP:
        return low_watermark_us - backwards_us
    return low_watermark_us


@dataclass(frozen=True)
class ComputationSpec:
    """One computation: its number, level, senders and state.

    Attributes:
        number: Part of the ids of its productions.
        level: 1 for computations fed by injectors only.
        inputs: Every stream that it reads, with its key extractor; those beside included.
        side_streams: Those beside its own inputs, and how it takes them.
        senders: Names of computations, and of injected streams, whose low watermarks hold that of
            its input: all that feed it, steps included, but those beside for which it does not
            wait.
        cell_numbers: State cell -> its number, which its rows carry.
        guarantees: Of its productions and deliveries. They are no part of what a checkpoint depends
            on: every commit says whether it holds productions.
        slacks: Input stream -> its slacks, of the streams whose duplicates it filters.
        may_produce_late_us: How far behind what it has shown its consumers it may produce.
        percentiles: Percentile low watermarks that its timers may wait for.
        backwards: Sender -> how far back steps between it and here move timestamps, at most.
        paned: Whether values of its inputs may carry panes.
        columnar: How it works on whole bundles, a
            :class:`~millrace.dataflow.columnar.chunks.Columnar`; None if it works key by key.
        in_blocks: Whether many keys run at once, with the effects that they have key by key.
        evolution: What becomes of state that earlier versions of it left.
        reshape: What brings such state to the shape that it has now; None if it has it. A
            :class:`~millrace.compile.change.schemas.Reshape`.
        counted: Whether a computation behind it waits for percentiles of what it has to do.
        draining: Whether it gets no more records, and goes on with its timers alone.
        called: What the pipeline calls it, where its checkpoint knows it by another name.
        starts: The stream of the keys that it was given, which begin by themselves; None without.
    """

    name: str
    number: int
    level: int
    instance: Computation
    inputs: Mapping[str, KeyExtractor]
    outputs: tuple[str, ...]
    senders: frozenset[str]
    cells: Mapping[str, StateDescriptor[Any]]
    cell_numbers: Mapping[str, int]
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
        back = self.backwards
        return min(moved_back(shown[sender], back.get(sender, 0)) for sender in self.senders)

    paned: bool = False
    columnar: Any = None
    in_blocks: bool = False
    counted: bool = False
    evolution: Evolution = field(default_factory=Evolution)
    reshape: Any = None
    side_streams: Mapping[str, SideStream] = field(default_factory=dict)
    starts: str | None = None
    draining: bool = False
    called: str = ""

    @property
    def title(self) -> str:
        """What the pipeline calls it, and people read."""
        return self.called or self.name

    @cached_property
    def timeless(self) -> frozenset[str]:
        """Streams whose timestamps mean nothing to it, so that nothing on them is late."""
        return frozenset(
            name
            for name, taken in self.side_streams.items()
            if not taken.waits or name == self.starts
        )

    @cached_property
    def makes_calls(self) -> bool:
        """Whether its records are answered by calls; see ``kernel/calls.py``."""
        return isinstance(self.instance, AsyncComputation)

    @property
    def fed_by_timers(self) -> bool:
        """Whether nothing comes to it by a stream, but the keys that it was given."""
        return self.inputs.keys() == {self.starts}


@dataclass(frozen=True)
class Topology:
    """A checked pipeline. ``computations`` are ordered by level, then by name.

    ``dropped`` are computations that a checkpoint may have, and is to forget.
    """

    name: str
    streams: Mapping[str, StreamSpec]
    computations: tuple[ComputationSpec, ...]
    edges: tuple[Edge, ...]
    sinks: tuple[Any, ...]
    dead_letters: str | None
    late_records: str | None = None
    dropped: frozenset[str] = frozenset()
    dead_letter_limit: DeadLetterLimit | None = None
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        deepest = max((spec.level for spec in self.computations), default=1)
        object.__setattr__(self, "depth", deepest)

    def computation(self, name: str) -> ComputationSpec:
        """Return a computation by name."""
        return self._computations[name]

    @cached_property
    def _computations(self) -> dict[str, ComputationSpec]:
        return {spec.name: spec for spec in self.computations}

    @cached_property
    def titles(self) -> dict[str, str]:
        """Name of a computation, as the checkpoint knows it -> what the pipeline calls it."""
        return {spec.name: spec.title for spec in self.computations}

    def name_of(self, title: str) -> str:
        """Return the name by which the checkpoint knows what the pipeline calls so."""
        return next((spec.name for spec in self.computations if spec.title == title), title)

    @cached_property
    def percentiles(self) -> tuple[int, ...]:
        """The percentile low watermarks that any computation waits for, ascending."""
        return tuple(sorted({p for spec in self.computations for p in spec.percentiles}))

    def injected(self) -> tuple[StreamSpec, ...]:
        """Return the injected streams, by name: Spark's offsets go by it."""
        return self._injected

    @cached_property
    def _injected(self) -> tuple[StreamSpec, ...]:
        specs = [spec for spec in self.streams.values() if spec.injection is not None]
        return tuple(sorted(specs, key=lambda spec: spec.name))

    @cached_property
    def again(self) -> str | None:
        """The injected stream of the dead letters that are sent again; None without."""
        return AGAIN if AGAIN in self.streams else None

    def by_ingress(self) -> frozenset[str]:
        """Return the injected streams whose records have the time at which they are read."""
        return frozenset(s.name for s in self.injected() if s.injection and s.injection.ingress)

    def has_expressions(self, stream: str) -> bool:
        """Return whether records of a stream come to an expression before anything else."""
        spec = self.streams[stream]
        return any(edge.key_expression is not None for edge in spec.edges) or any(
            step.expression is not None or (step.only_names and self.has_expressions(step.target))
            for step in spec.steps
        )

    def edge(self, number: int) -> Edge:
        """Return a subscription by its number."""
        return self._edges[number]

    @cached_property
    def _edges(self) -> dict[int, Edge]:
        return {edge.number: edge for edge in self.edges}

    def edge_mask(self, computations: Container[str | None]) -> npt.NDArray[np.bool_]:
        """Return for every edge number up to the highest whether it leads to one of these.

        None stands for sinks.
        """
        mask = np.zeros(1 + max(self._edges, default=-1), dtype=np.bool_)
        for edge in self.edges:
            mask[edge.number] = edge.computation in computations
        return mask


def fed_by(topology: Topology) -> dict[str, set[str]]:
    """Return computation -> the injected streams that feed it, over others or not."""
    fed: dict[str, set[str]] = {}
    names = {injector_name(spec.name): spec.name for spec in topology.injected()}
    for spec in topology.computations:  # in order of level: senders come first
        fed[spec.name] = set()
        for sender in spec.senders:
            fed[spec.name] |= {names[sender]} if sender in names else fed[sender]
    return fed


def together(topology: Topology) -> dict[str, frozenset[str]]:
    """Return injected stream -> the injected streams that feed a computation together with it.

    They share a low watermark: what one of them lacks, the state for the others waits for.
    """
    groups = fed_by(topology).values()
    return {
        spec.name: frozenset({spec.name}.union(*(group for group in groups if spec.name in group)))
        for spec in topology.injected()
    }
