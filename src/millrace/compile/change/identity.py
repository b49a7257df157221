"""Identity: what a checkpoint depends on, of a pipeline.

What is kept between epochs is the state of computations, under their names; the productions of an
unfinished epoch; and numbers. So identity is the computations, the steps and streams by which
records reach them, their keys, formats and cells. Steps and streams that only sinks read are no
part of it: nothing of theirs is kept. What became of it in another pipeline: ``comparison.py``.

Streams are told by their routes (``compile/change/identity.py``).

Routes: by which steps records reach a stream, as names that outlive changes elsewhere.

Streams of steps have made-up names, which count the steps of a source. So they are told by what
they are made of: ``bids > filter``.

Known names: a pipeline's computations under the names by which a checkpoint knows them.

A computation that is renamed is, to its checkpoint, the one that it was: logs, snapshots, caches
and the epoch log go on under the first name that it had there. What people read and write is the
name that it is called by now. So a rename moves nothing, and no crash can find it half done.

Source: docs/design/2026-11-22-a-name-is-not-an-identity.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from millrace.compile.change.schemas import Schema, lasting, named, plain, schema_of
from millrace.compile.topology import ComputationSpec, Edge, StreamSpec, Topology, in_order
from millrace.dataflow.operators import operator_of
from millrace.model.state import CombiningState, StateDescriptor
from millrace.model.stream import Step
from millrace.model.time import format_duration


class Routes:
    """The routes of a topology's streams."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._steps: dict[str, list[Step]] = {}
        for spec in topology.streams.values():
            for step in spec.steps:
                self._steps.setdefault(step.target, []).append(step)

    def made_up(self, stream: str) -> bool:
        """Return whether nobody but the pipeline has named a stream."""
        steps = self._steps.get(stream, ())
        return any(re.fullmatch(_made_up_name(step), stream) for step in steps)

    def text(self, stream: str) -> str:
        """Return a stream's name, or what it is made of."""
        return " + ".join(self._fed_by_steps(stream)) if self.made_up(stream) else stream

    def texts(self, streams: Iterable[str]) -> dict[str, str]:
        """Return a text for each of some streams, no two the same.

        >>> import millrace as mr
        >>> p = mr.Pipeline("p")
        >>> bids = p.inject("bids", format=dict)
        >>> big, small = bids.filter(bool), bids.filter(bool)
        >>> p.sink(big.name, print)
        >>> Routes(p.build()).texts([big.name, small.name])
        {'bids.filter-1': 'bids > filter', 'bids.filter-2': 'bids > filter (2)'}
        """
        streams = list(streams)
        return dict(zip(streams, numbered_names(map(self.text, streams)), strict=True))

    def of_inputs(self, spec: ComputationSpec) -> dict[str, str]:
        """Return a text for each input of a computation, no two the same.

        Steps of one kind on one stream are told by their order in the program.
        """
        return self.texts(sorted(spec.inputs, key=in_order))

    def feeders(self, stream: str) -> list[str]:
        """Return who feeds a stream."""
        spec = self._topology.streams[stream]
        return sorted(
            [
                *(["an injector"] if spec.injection is not None else []),
                *(f"computation {name!r}" for name in spec.publishers),
                *self._fed_by_steps(stream),
            ]
        )

    def before_computations(self) -> set[str]:
        """Return the streams that records pass on their way to a computation."""
        streams: set[str] = set()
        pending = [stream for spec in self._topology.computations for stream in spec.inputs]
        while pending:
            stream = pending.pop()
            if stream not in streams:
                streams.add(stream)
                pending += [step.source for step in self._steps.get(stream, ())]
        return streams

    def _fed_by_steps(self, stream: str) -> list[str]:
        return sorted(self.text(step.source) + _step(step) for step in self._steps.get(stream, ()))


def numbered_names(texts: Iterable[str]) -> list[str]:
    """Return the texts, those that repeat an earlier one with a number behind them.

    >>> numbered_names(["tea", "rum", "tea"])
    ['tea', 'rum', 'tea (2)']
    """
    names: dict[str, None] = {}
    for text in texts:
        candidate, n = text, 2
        while candidate in names:
            candidate, n = f"{text} ({n})", n + 1
        names[candidate] = None
    return list(names)


def _made_up_name(step: Step) -> str:
    kind = "flatten" if step.kind == "to" else step.kind
    return rf".*\.{kind}-\d+"


def _step(step: Step) -> str:
    if step.kind == "to":
        return ""
    if step.backwards_us:
        return f" > {step.kind}(backwards={format_duration(step.backwards_us)!r})"
    return f" > {step.kind}"


#: What a checkpoint says of a grouping whose windows are kept as columns.
COLUMNS: Final = "columns of accumulators, all keys together"
_BY_KEY: Final = "rows, key by key"


def identity(topology: Topology) -> Schema:
    """Return what a checkpoint of a pipeline depends on, as plain data.

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> p.inject("scores", format=dict).filter(bool).key_by("team").window(mr.FixedWindows(10)).sum(
    ...     "points"
    ... ).to("totals")
    WindowedStream('totals')
    >>> found = identity(p.build())
    >>> found["injected"], found["computations"]["totals"]["inputs"]["scores > filter"]["key"]
    (['scores'], "by('team')")
    """
    routes = Routes(topology)
    return {
        "computations": {
            spec.name: _computation(topology, spec, routes) for spec in topology.computations
        },
        "streams": {
            name: {"fed by": routes.feeders(name)}
            for name in sorted(routes.before_computations())
            if not routes.made_up(name)
        },
        "injected": sorted(spec.name for spec in topology.injected()),
    }


def sunk(topology: Topology) -> Schema:
    """Return the formats of the streams that sinks read: an unfinished epoch depends on them."""
    streams = {edge.stream for edge in topology.edges if edge.sink is not None}
    return {name: schema_of(topology.streams[name].coder) for name in sorted(streams)}


def _computation(topology: Topology, spec: ComputationSpec, routes: Routes) -> Schema:
    operator = operator_of(spec.instance)
    sides = {stream: side for side, stream in enumerate(operator.sides())}
    return {
        "inputs": {
            route: {
                "key": named(spec.inputs[stream]),
                "format": schema_of(topology.streams[stream].coder),
                **({"side": sides[stream]} if stream in sides else {}),
            }
            for stream, route in routes.of_inputs(spec).items()
        },
        "outputs": {name: schema_of(topology.streams[name].coder) for name in sorted(spec.outputs)},
        "state": {name: _cell(cell) for name, cell in sorted(spec.cells.items())},
        "settings": {
            name: lasting(said) if isinstance(said, str) else plain(said)
            for name, said in operator.settings().items()
        },
        "kept as": COLUMNS if spec.columnar is not None else _BY_KEY,
        **({"drains": True} if spec.draining else {}),
    }


def _cell(cell: StateDescriptor[Any]) -> Schema:
    schema: Schema = {"cell": type(cell).__name__, "format": schema_of(cell.coder)}
    if isinstance(cell, CombiningState):
        schema |= {"add": named(cell.function), "initial": plain(cell.initial)}
    return schema


def known_names(
    topology: Topology, there: Collection[str], called: Mapping[str, str], used: Collection[str]
) -> dict[str, str]:
    """Return what a computation is called in a pipeline -> how a checkpoint knows it.

    Args:
        topology: The pipeline.
        there: The computations that the checkpoint has, by their known names.
        called: Known name -> what it was called last, where that is another.
        used: All names that the checkpoint ever gave a computation.

    >>> import millrace as mr
    >>> class Echo(mr.Computation):
    ...     inputs = {"words": mr.by(str)}
    ...
    ...     def process_record(self, record):
    ...         pass
    >>> def shop(name, was=()):
    ...     p = mr.Pipeline("shop")
    ...     _ = p.inject("words", format=str)
    ...     p.add(Echo, name=name, was=was)
    ...     return p.build()
    >>> known_names(shop("Loud", was="Echo"), ["Echo"], {}, ["Echo"])
    {'Loud': 'Echo'}
    >>> known_names(shop("Loud"), ["Echo"], {"Echo": "Loud"}, ["Echo"])
    {'Loud': 'Echo'}
    >>> known_names(shop("Echo"), ["Echo"], {"Echo": "Loud"}, ["Echo"])  # the program as it was
    {'Echo': 'Echo'}
    """
    now = {called.get(name, name): name for name in there}
    specs = {spec.title: spec for spec in topology.computations}
    known = {title: now.pop(title) for title in specs if title in now}
    for title, spec in specs.items():
        earlier = next((name for name in spec.evolution.was if name in now), None)
        if title not in known and earlier is not None:
            known[title] = now.pop(earlier)
    for title in specs.keys() - known.keys():
        # The program as it was before a rename knows the name with which it began.
        fresh = called.get(title, title) == title or title in now.values()
        known[title] = title if fresh else _unused(title, used)
    return known


def dropped_names(
    topology: Topology, known: Mapping[str, str], there: Collection[str], called: Mapping[str, str]
) -> frozenset[str]:
    """Return the known names of the computations that a checkpoint is to forget.

    Args:
        topology: The pipeline.
        known: See :func:`known_names`, which returns it.
        there: See there.
        called: See there.
    """
    now = {called.get(name, name): name for name in there}
    return frozenset(now.get(title, title) for title in topology.dropped) - {*known.values()}


def under(topology: Topology, known: Mapping[str, str], dropped: frozenset[str]) -> Topology:
    """Return a topology in which computations have their known names, and are called as they were.

    Args:
        topology: The pipeline.
        known: What each is called -> its known name.
        dropped: Known names of the computations to forget.
    """
    now = {spec.name: known[spec.title] for spec in topology.computations}
    computations = [
        dataclasses.replace(
            spec,
            name=now[spec.name],
            called=spec.title,
            senders=frozenset(now.get(sender, sender) for sender in spec.senders),
            backwards={now.get(sender, sender): us for sender, us in spec.backwards.items()},
        )
        for spec in topology.computations
    ]
    return dataclasses.replace(
        topology,
        streams={name: _stream(spec, now) for name, spec in topology.streams.items()},
        computations=tuple(sorted(computations, key=lambda spec: (spec.level, spec.name))),
        edges=tuple(_edge(edge, now) for edge in topology.edges),
        dropped=dropped,
    )


def _stream(spec: StreamSpec, now: Mapping[str, str]) -> StreamSpec:
    return dataclasses.replace(
        spec,
        publishers=tuple(now[name] for name in spec.publishers),
        edges=tuple(_edge(edge, now) for edge in spec.edges),
    )


def _edge(edge: Edge, now: Mapping[str, str]) -> Edge:
    if edge.computation is None:
        return edge
    return dataclasses.replace(edge, computation=now[edge.computation])


def _unused(name: str, used: Collection[str]) -> str:
    n = 2
    while f"{name} ({n})" in used:
        n += 1
    return f"{name} ({n})"
