"""Whatever comes and goes in a pipeline, no number ever moves, and none is given twice."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.compile.change.registry import Registry, edge_names
from millrace.compile.topology import Topology

NAMES = st.sampled_from("abcdef")
SINKS = [print, format, max, print]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    p = mr.Pipeline("p")
    injected = sorted(draw(st.sets(NAMES, min_size=1)))
    for stream in injected:
        source = p.inject(stream, format=dict)
        for sink in draw(st.lists(st.sampled_from(SINKS), max_size=2)):
            p.sink(source.filter(bool).name, sink)
    for name in sorted(draw(st.sets(st.sampled_from("ABCD"), min_size=1))):
        inputs = draw(st.sets(st.sampled_from(injected), min_size=1))
        cells = draw(st.sets(st.sampled_from("xyz")))
        p.add(_computation(inputs, name.lower() + "-out", cells), name=name)
        for sink in draw(st.lists(st.sampled_from(SINKS), max_size=3)):
            p.sink(name.lower() + "-out", sink)
    return p.build()


def _computation(reads: set[str], output: str, cells: set[str]) -> mr.Computation:
    class Reads(mr.Computation):
        inputs = {stream: mr.by(str) for stream in sorted(reads)}
        outputs = {output: int}

        def process_record(self, record: mr.Record) -> None:
            pass

    for cell in cells:
        setattr(Reads, cell, mr.MapState(int))
        vars(Reads)[cell].__set_name__(Reads, cell)
    return Reads()


@given(st.lists(topologies(), min_size=1, max_size=6))
def test_numbers_are_given_once_and_for_ever(changes: list[Topology]) -> None:
    registry = Registry()
    for topology in changes:
        before = registry
        kept = msgspec.json.decode(msgspec.json.encode(before.assign(topology)), type=Registry)
        registry = before.assign(topology)
        assert kept == registry
        for old, new in _families(before, registry):
            assert old.items() <= new.items()
            assert len(set(new.values())) == len(new)
            assert min((new[name] for name in new.keys() - old.keys()), default=1 << 30) > max(
                old.values(), default=-1
            )
        bound = registry.bind(topology)
        assert [edge.number for edge in bound.edges] == [
            registry.edges[name] for name in edge_names(topology)
        ]
        assert registry.bind(bound) == bound


def _families(old: Registry, new: Registry) -> list[Any]:
    cells = [(old.cells.get(name, {}), new.cells[name]) for name in new.cells]
    return [
        (old.computations, new.computations),
        (old.streams, new.streams),
        (old.edges, new.edges),
        *cells,
    ]
