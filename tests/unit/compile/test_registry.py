"""The registry: numbers are given once, by names that other changes leave alone."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.compile.change.registry import FORMAT, Registry, edge_names
from millrace.model.errors import CheckpointMismatch, PipelineError


class Totals(mr.Computation):
    inputs = {"bids": mr.by("item"), "asks": mr.by("item")}
    outputs = {"totals": int}
    kept = mr.ValueState(int)
    bag = mr.BagState(int)

    def process_record(self, record: mr.Record) -> None:
        pass


class MoreCells(Totals):
    among = mr.MapState(int)


def market(totals: Any = Totals, *, filters: int = 0, sinks: tuple[Any, ...] = ()) -> Any:
    p = mr.Pipeline("market")
    bids, asks = p.inject("bids", format=dict, id="id"), p.inject("asks", format=dict)
    for _ in range(filters):
        p.sink(bids.filter(bool).name, print)
    p.add(totals(), name="Totals")
    asks.filter(bool).key_by("item").window(mr.FixedWindows(10)).count().to("counts")
    for sink in sinks:
        p.sink("totals", sink)
    return p.build()


def test_the_first_numbers_are_those_that_the_topology_was_built_with() -> None:
    built = market(filters=2, sinks=(print, format))

    assert Registry().assign(built).bind(built) == built


def test_what_is_added_comes_after_what_was_there_wherever_it_stands() -> None:
    first = Registry().assign(market(sinks=(print,)))
    after = first.assign(market(MoreCells, filters=2, sinks=(format, print)))

    assert first.edges == {
        "asks -> Totals": 0,
        "bids -> Totals": 1,
        "asks > filter -> counts": 2,
        "totals -> sink print": 3,
    }
    assert after.edges == first.edges | {
        "bids > filter -> sink print": 4,
        "bids > filter -> sink print (2)": 5,
        "totals -> sink format": 6,
    }
    assert first.cells["Totals"] == {"bag": 0, "kept": 1}
    assert after.cells["Totals"] == {"bag": 0, "kept": 1, "among": 2}


def test_what_is_gone_keeps_its_number_and_has_it_again() -> None:
    both, other = market(sinks=(print, format)), market(sinks=(max,))
    first = Registry().assign(both)

    gone = first.assign(other)

    assert gone.edges["totals -> sink max"] == 1 + max(first.edges.values())
    assert gone.assign(both) == gone


def test_a_bound_topology_has_its_numbers_everywhere() -> None:
    built = market(sinks=(print,))
    odd = Registry(
        computations={"gone": 6},
        cells={"Totals": {"gone": 4}},
        streams={"gone": 40},
        edges={"gone": 9},
    )
    bound = odd.assign(built).bind(built)

    assert [(spec.name, spec.number) for spec in bound.computations] == [
        ("Totals", 7), ("counts", 8),
    ]  # fmt: skip
    assert bound.computation("Totals").cell_numbers == {"gone": 4, "bag": 5, "kept": 6}
    assert [edge.number for edge in bound.edges] == [10, 11, 12, 13]
    assert bound.streams["totals"].edges == (bound.edge(13),)
    assert [(spec.name, spec.number) for spec in bound.injected()] == [("asks", 41), ("bids", 42)]
    assert bound.streams["bids"].slacks.keys() == {42}
    assert bound.computation("Totals").slacks["bids"].keys() == {42}
    assert bound.edge_mask({"counts"}).nonzero()[0].tolist() == [12]


def test_edges_are_told_by_what_they_are_made_of() -> None:
    assert edge_names(market(filters=1))[-2:] == [
        "asks > filter -> counts", "bids > filter -> sink print",
    ]  # fmt: skip


def test_a_registry_of_a_later_version_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match=f"format {FORMAT + 1}.* reads format {FORMAT}"):
        Registry(format=FORMAT + 1).checked()


def test_when_no_number_is_left_it_is_said() -> None:
    full = Registry(cells={"Totals": {"gone": 254}})

    with pytest.raises(PipelineError, match=r"257 numbers of cells.*there are 256"):
        full.assign(market())


def test_who_goes_back_to_an_earlier_one_gives_no_number_again() -> None:
    before = Registry(computations={"A": 0}, streams={"bids": 0}, edges={"bids -> A": 0})
    later = Registry(
        computations={"A": 0, "B": 1},
        streams={"offers": 0, "bids": 1},  # the one is the other, renamed
        edges={"bids -> A": 0, "bids -> B": 1},
        dropped=["B"],
    )

    back = before.with_numbers_of(later)

    assert back.computations == {"A": 0, "B": 1}
    assert back.streams == {"bids": 0}
    assert back.given == {"computation": 2, "stream": 2, "edge": 2}
    assert back.assign(market()).streams.keys() > {"bids"}
    assert sorted(back.assign(market()).streams.values())[:2] == [0, 2]  # 1 was the offers'
    assert back.edges == later.edges
    assert back.dropped == ["B"]
