"""Registry: the numbers by which a checkpoint knows the parts of a pipeline.

Commits, packets and record ids carry numbers in the place of names. The first claim of a checkpoint
gives them out, in the order of the topology; later ones keep them, and give what is new the next
ones. A number is never given twice: who is gone keeps his, and has it again if he comes back. So
what was written before a change means the same after it.

Source: MillWheel 6.1.1 (ids that are unique for all time); docs/design, "Numbers that last".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from millrace.compile.change.identity import (
    Routes,
    dropped_names,
    known_names,
    numbered_names,
    under,
)
from millrace.compile.change.schemas import Shape, named, reshape_of, shape_after
from millrace.compile.topology import Edge, Topology, id_scopes, sink_scope
from millrace.model.errors import CheckpointMismatch, PipelineError

FORMAT: Final = 1
"""The version of the registry in a claim. A member that is added, and may be missing, leaves it."""

#: How many numbers there are: of the 15 bits in a record's id, one tells streams from computations;
#: a cell's is a byte of its rows; an edge's stands below the bit of partials.
_MOST: Final = {"computation": 1 << 14, "stream": 1 << 14, "cell": 1 << 8, "edge": 1 << 24}

#: Between a stream and a sink, in the name of an edge.
SINK: Final = " -> sink "


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """Names to numbers, for ever.

    Attributes:
        format: Version of the registry itself.
        computations: By name.
        cells: Computation -> its state cells, by name.
        streams: By route (``compile/change/identity.py``); an injector has its stream's.
        edges: Subscriptions, as :func:`edge_names` says them.
        dropped: Computations whose state was dropped; their names are used up, too.
        shapes: Computation -> how its state lies, where that has changed or been migrated.
        called: Computation -> what the pipeline calls it, where that is another name than the one
            with which it began here, and which it has in all entries, logs and numbers.
        read_as: Name that an injected stream had -> the one that it has now.
        given: Computation, stream or edge -> how many numbers were given out, in a history that the
            checkpoint has left, too.

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> p.inject("scores", format=dict).filter(bool).key_by("team").window(mr.Sessions(10)).sum(
    ...     "points"
    ... ).to("totals")
    WindowedStream('totals')
    >>> p.sink("totals", print)
    >>> Registry().assign(p.build()).edges
    {'scores > filter -> totals': 0, 'totals -> sink print': 1}
    """

    format: int = FORMAT
    computations: dict[str, int] = {}
    cells: dict[str, dict[str, int]] = {}
    streams: dict[str, int] = {}
    edges: dict[str, int] = {}
    dropped: list[str] = []
    shapes: dict[str, Shape] = {}
    called: dict[str, str] = {}
    read_as: dict[str, str] = {}
    given: dict[str, int] = {}

    def checked(self) -> Registry:
        """Return it if this version can read it.

        Raises:
            CheckpointMismatch: A later version wrote it.
        """
        if self.format > FORMAT:
            raise CheckpointMismatch(
                f"the registry of this checkpoint has format {self.format}, this version of "
                f"Millrace reads format {FORMAT}. Nothing was written. Start the run with the "
                "version that wrote it, or a later one."
            )
        return self

    def assign(self, topology: Topology) -> Registry:
        """Return the registry with a number for all of a topology; old ones stay.

        Raises:
            PipelineError: There are no numbers left.
        """
        cells = {
            spec.name: self._grown("cell", self.cells.get(spec.name, {}), sorted(spec.cells))
            for spec in topology.computations
        }
        names = [spec.name for spec in topology.computations]
        return Registry(
            computations=self._grown("computation", self.computations, names),
            cells={**self.cells, **cells},
            streams=self._grown("stream", self.streams, _stream_names(topology).values()),
            edges=self._grown("edge", self.edges, edge_names(topology)),
            dropped=sorted({*self.dropped, *(topology.dropped & self.computations.keys())}),
            shapes=self.shapes,
            called={
                name: title
                for name, title in (self.called | topology.titles).items()
                if title != name
            },
            read_as=self.read_as,
            given=self.given,
        )

    def _grown(self, kind: str, known: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
        """Return numbers for all names; new ones come after all that were ever given."""
        numbers = dict(known)
        following = _following(numbers, self.given.get(kind, 0))
        for name in names:
            if name not in numbers:
                numbers[name] = following
                following += 1
        if following > _MOST[kind]:
            raise PipelineError(
                f"this checkpoint has given out {following:,} numbers of {kind}s, those that are "
                f"gone included; there are {_MOST[kind]:,}. Begin a new checkpoint."
            )
        return numbers

    def known(self, topology: Topology, there: Collection[str]) -> Topology:
        """Return a topology under the names by which the checkpoint knows its computations.

        Args:
            topology: Of a pipeline.
            there: The computations that the checkpoint has.
        """
        names = known_names(topology, there, self.called, self.computations)
        return under(topology, names, dropped_names(topology, names, there, self.called))

    def reshaped(self, stored: Mapping[str, Any], topology: Topology) -> Registry:
        """Return the registry with cells renamed and dropped, and shapes, as a topology has them.

        Args:
            stored: The checkpoint's identity of the computations; empty for a new checkpoint.
            topology: Of the pipeline that goes on with it.
        """
        cells, shapes = dict(self.cells), dict(self.shapes)
        for spec in topology.computations:
            known = shapes.get(spec.name, Shape())
            shape, cells[spec.name] = shape_after(
                known, stored.get(spec.name), cells.get(spec.name, {}), spec
            )
            if shape != known:
                shapes[spec.name] = shape
        return msgspec.structs.replace(self, cells=cells, shapes=shapes)

    def with_numbers_of(self, later: Registry) -> Registry:
        """Return the registry with what a later one has given out since, that it is never again.

        Args:
            later: Of the history that ends where the checkpoint goes back to this registry's.
        """
        return msgspec.structs.replace(
            self,
            computations=_with(self.computations, later.computations),
            streams=_with(self.streams, later.streams),
            edges=_with(self.edges, later.edges),
            dropped=sorted({*self.dropped, *later.dropped}),
            given={
                kind: _following(numbers, later.given.get(kind, 0))
                for kind, numbers in (
                    ("computation", later.computations),
                    ("stream", later.streams),
                    ("edge", later.edges),
                )
            },
        )

    def succeeded(self, open_edges: Collection[int], topology: Topology) -> Registry:
        """Return the registry in which sinks that are new follow on sinks that are gone.

        A sink that was mended may be another by its text. So what an unfinished epoch has for sinks
        that are gone is for those that are new on the same stream, which get their numbers in
        order; but only if they are as many: else nobody knows which of them is the mended one.

        Args:
            open_edges: The subscriptions of the unfinished epoch.
            topology: Of the pipeline that is to finish it.
        """
        names = edge_names(topology)
        gone, fresh = dict[str, list[str]](), dict[str, list[str]]()
        for name, number in self.edges.items():
            if number in open_edges and name not in names and SINK in name:
                gone.setdefault(name.partition(SINK)[0], []).append(name)
        for name in names:
            if name not in self.edges and SINK in name:
                fresh.setdefault(name.partition(SINK)[0], []).append(name)
        heirs = {
            old: new
            for stream, left in gone.items()
            if len(left) == len(fresh.get(stream, ()))
            for old, new in zip(left, fresh[stream], strict=True)
        }
        return msgspec.structs.replace(
            self, edges={heirs.get(name, name): number for name, number in self.edges.items()}
        )

    def bind(self, topology: Topology) -> Topology:
        """Return a topology under these numbers; every part of it has one."""
        stream_names = _stream_names(topology)
        streams = {name: self.streams[stream_names[name]] for name in topology.streams}
        now = {spec.number: streams[spec.name] for spec in topology.streams.values()}
        slacks = {
            spec.name: {name: _renumbered(changes, now) for name, changes in spec.slacks.items()}
            for spec in topology.computations
        }
        scopes = {name: id_scopes(slacks[name]) for name in slacks}

        def scope(edge: Edge) -> str:
            if edge.computation is not None:
                return scopes[edge.computation].get(edge.stream, "")
            spec = topology.streams[edge.stream]
            injected = spec.injection is not None
            return sink_scope(spec.name, _renumbered(spec.slacks, now), injected=injected)

        edges = tuple(
            dataclasses.replace(edge, number=self.edges[name], scope=scope(edge))
            for edge, name in zip(topology.edges, edge_names(topology), strict=True)
        )
        return dataclasses.replace(
            topology,
            streams={
                name: dataclasses.replace(
                    spec,
                    number=streams[name],
                    edges=tuple(edge for edge in edges if edge.stream == name),
                    slacks=_renumbered(spec.slacks, now),
                )
                for name, spec in topology.streams.items()
            },
            computations=tuple(
                dataclasses.replace(
                    spec,
                    number=self.computations[spec.name],
                    cell_numbers=dict(self.cells[spec.name]),
                    reshape=reshape_of(self.shapes.get(spec.name), self.cells[spec.name], spec),
                    slacks=slacks[spec.name],
                )
                for spec in topology.computations
            ),
            edges=edges,
        )


def edge_names(topology: Topology) -> list[str]:
    """Return the subscriptions, in the topology's order, as text that outlives other changes.

    A sink is told by its stream and by what it is: the name of a function, else its ``repr``. Of
    several that are told the same, the later ones are numbered.
    """
    routes = Routes(topology)
    inputs = {spec.name: routes.of_inputs(spec) for spec in topology.computations}
    return numbered_names(
        f"{routes.text(edge.stream)}{SINK}{named(topology.sinks[edge.sink])}"
        if edge.sink is not None
        else f"{inputs[str(edge.computation)][edge.stream]} -> {edge.computation}"
        for edge in topology.edges
    )


def _stream_names(topology: Topology) -> dict[str, str]:
    """Return stream -> its name in the registry; in the order in which they are numbered."""
    injected = [spec.name for spec in topology.injected()]
    return Routes(topology).texts([*injected, *sorted(topology.streams.keys() - set(injected))])


def _following(numbers: Mapping[str, int], given: int) -> int:
    return max(given, 1 + max(numbers.values(), default=-1))


def _with(numbers: Mapping[str, int], later: Mapping[str, int]) -> dict[str, int]:
    """Return numbers, and those of later names that are new, unless another name has them."""
    taken = {*numbers.values()}
    return {**{name: n for name, n in later.items() if n not in taken}, **numbers}


def _renumbered(slacks: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    return {now[number]: us for number, us in slacks.items()}
