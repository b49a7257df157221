"""What a checkpoint depends on, of steps, sinks, groupings and cells; what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.compile.change.identity import identity
from millrace.compile.change.plan import KEPT, REFUSED, changes
from millrace.compile.change.registry import Registry


def base(more: Callable[[mr.Pipeline, Any], None] | None = None) -> mr.Pipeline:
    """Sums of bids, and something more."""
    p = mr.Pipeline("p")
    bids = p.inject("bids", format=dict)
    if more is not None:
        more(p, bids)
    bids.filter(bool).key_by("item").window(mr.FixedWindows(10)).sum("price").to("sums")
    return p


def said(old: mr.Pipeline, new: mr.Pipeline, *, kind: str = "") -> list[str]:
    """Return what is said of what is not kept; of a kind, or of all."""
    stored = json.loads(json.dumps(identity(old.build())))
    found = changes(stored, new.build(), Registry())
    return [str(one) for one in found if one.kind == kind or (not kind and one.kind != KEPT)]


def refused(old: mr.Pipeline, new: mr.Pipeline) -> list[str]:
    return said(old, new, kind=REFUSED)


def a_step_and_a_sink(p: mr.Pipeline, bids: Any) -> None:
    p.sink(bids.map(str).name, print)


def named_steps_and_a_sink(p: mr.Pipeline, bids: Any) -> None:
    bids.filter(bool).map(str).to("texts", str)
    p.sink("texts", print)
    p.sink("sums", print)


def letters(p: mr.Pipeline, bids: Any) -> None:
    p.sink(p.dead_letter("letters").name, print)


@pytest.mark.parametrize("more", [a_step_and_a_sink, named_steps_and_a_sink, letters])
def test_what_only_feeds_sinks_may_come_and_go(more: Any) -> None:
    # The step before the grouping's own gives that another made-up name, as well.
    assert said(base(), base(more)) == []
    assert said(base(more), base()) == []


def totals(make: Callable[[Any], Any], name: str = "bids") -> mr.Pipeline:
    p = mr.Pipeline("p")
    make(p.inject(name, format=dict)).key_by("item").window(mr.FixedWindows(10)).sum("price").to(
        "sums"
    )
    return p


def test_a_step_on_the_way_to_a_computation_is_part_of_it() -> None:
    assert said(totals(lambda s: s), totals(lambda s: s.filter(bool))) == [
        "computation 'sums', input 'bids': in the checkpoint, gone from the pipeline; what it "
        "left in state stays",
        "computation 'sums', input 'bids > filter': new in the pipeline, unknown to the "
        "checkpoint; its records come from the next epoch on, each to the state of its key",
    ]


def test_other_steps_bring_a_grouping_the_same_keys_and_values_or_are_refused() -> None:
    def keyed(make: Any, key: Any) -> mr.Pipeline:
        p = mr.Pipeline("p")
        stream = make(p.inject("bids", format=dict[str, int])).key_by(key)
        stream.window(mr.FixedWindows(10)).sum("price").to("sums")
        return p

    old = keyed(lambda s: s, "item")
    assert refused(old, keyed(lambda s: s.filter(bool), "item")) == []
    assert refused(old, keyed(lambda s: s.filter(bool), "who")) == [
        "computation 'sums', input 'bids > filter' for 'bids', key: was by('item'), is by('who') "
        "now"
    ]
    (line,) = refused(old, keyed(lambda s: s.map(dict).to("other", dict[str, float]), "item"))
    assert line.startswith("computation 'sums', input 'other' for 'bids', values: was int, is")


def test_behind_a_name_the_steps_are_still_told() -> None:
    old = totals(lambda s: s.filter(bool).to("good"))
    assert said(old, totals(lambda s: s.map(dict).filter(bool).to("good", dict))) == [
        "stream 'good', fed by 'bids > filter': in the checkpoint, gone from the pipeline",
        "stream 'good', fed by 'bids > map > filter': new in the pipeline, unknown to the "
        "checkpoint",
    ]


def test_how_far_back_a_step_moves_timestamps_is_part_of_it() -> None:
    old = totals(lambda s: s.with_timestamps("at").to("moved"))
    new = totals(lambda s: s.with_timestamps("at", backwards="5 min").to("moved"))
    assert said(old, new)[1] == (
        "stream 'moved', fed by \"bids > with_timestamps(backwards='5 min')\": new in the "
        "pipeline, unknown to the checkpoint"
    )


def test_two_steps_of_one_kind_into_one_computation() -> None:
    p = totals(lambda s: s.filter(bool).flatten(s.filter(len)))
    inputs = identity(p.build())["computations"]["sums"]["inputs"]
    assert list(inputs) == ["bids > filter + bids > filter"]


def grouped(**how: Any) -> mr.Pipeline:
    value = how.pop("value", "price")
    aggregation = how.pop("aggregation", "sum")
    p = mr.Pipeline("p")
    stream = p.inject("bids", format=dict).key_by("item")
    window = stream.window(how.pop("windows", mr.FixedWindows(10)), **how)
    getattr(window, aggregation)(value).to("sums")
    return p


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"value": "bonus"}, "'of': was 'price', is 'bonus' now"),
        ({"aggregation": "max"}, "'aggregation': was Sum(), is Max() now"),
        ({"windows": mr.FixedWindows(20)}, "'windows': was FixedWindows"),
        ({"mode": mr.ACCUMULATING}, "'mode': was DISCARDING, is ACCUMULATING now"),
        (
            {"allowed_lateness": 5},
            "its windows are kept as columns of accumulators, all keys together, and would be as "
            "rows, key by key now, by its windows, trigger, lateness, output time and values",
        ),
    ],
)
def test_a_grouping_is_told_part_by_part(how: dict[str, Any], words: str) -> None:
    lines = said(grouped(mode=mr.DISCARDING), grouped(**{"mode": mr.DISCARDING, **how}))
    assert any(words in line for line in lines), lines


def by_windows(left: Any, right: Any) -> None:
    left.window(mr.FixedWindows(10)).join(right, name="pairs")


def by_time(left: Any, right: Any) -> None:
    left.join(right, within=(-5, 5), name="pairs")


def with_rows(left: Any, right: Any) -> None:
    left.enrich(right, name="pairs")


@pytest.mark.parametrize("join", [by_windows, by_time, with_rows])
def test_sides_of_a_join_may_pass_other_steps_and_stay_the_sides(join: Any) -> None:
    def joined(*, beside: int = 0, steps: int = 1, swap: bool = False, to_self: bool) -> Any:
        p = mr.Pipeline("p")
        bids, asks = p.inject("bids", format=dict), p.inject("asks", format=dict)
        for _ in range(beside):
            p.sink(bids.filter(bool).name, print)
        left, right = bids, bids if to_self else asks
        for _ in range(steps):
            left, right = left.filter(bool), right.filter(bool)
        left, right = left.key_by("item"), right.key_by("item")
        join(*((right, left) if swap else (left, right)))
        return p

    for to_self in (True, False):
        old = joined(beside=8, to_self=to_self)
        assert said(old, joined(beside=8, to_self=to_self)) == []
        # Two of eleven filters, by the names of which the second comes before the first.
        assert said(old, joined(beside=9, to_self=to_self)) == []
        assert refused(old, joined(steps=2, to_self=to_self)) == []
        swapped = refused(old, joined(swap=True, to_self=to_self))
        assert sorted(line.rpartition(", ")[2] for line in swapped) == ["is 0 now", "is 1 now"]


def test_a_combining_cell_is_known_by_its_fold_and_its_beginning() -> None:
    def pipeline(cell: Any) -> mr.Pipeline:
        p = mr.Pipeline("p")
        p.inject("in")
        hooks = {"process_record": lambda *_: None}
        p.add(type("C", (mr.Computation,), {"inputs": {"in": mr.by("k")}, "total": cell} | hooks))
        return p

    old = pipeline(mr.CombiningState(int, max))
    assert said(old, pipeline(mr.CombiningState(int, max))) == []
    assert said(old, pipeline(mr.CombiningState(int, min, initial=3))) == [
        "computation 'C', state 'total', add: was max, is min now",
        "computation 'C', state 'total', initial: was None, is 3 now",
    ]
    assert said(old, pipeline(mr.ValueState(int))) == [
        "computation 'C', state 'total': was CombiningState, is ValueState now"
    ]


class Watches(mr.Computation):
    inputs = {"sums": mr.by_key()}

    def process_record(self, record):
        pass


class Waits(Watches):
    percentiles = (90,)


def sums(before: Any, beside: Any) -> mr.Pipeline:
    """Two groupings, and what reads the sums of one, and what reads the same as the other."""
    p = mr.Pipeline("p")
    bids = p.inject("bids", format=dict)
    asks = p.inject("asks", format=dict)
    bids.key_by("item").window(mr.FixedWindows(10)).sum("price").to("sums")
    asks.key_by("item").window(mr.FixedWindows(10)).sum("price").to("others")
    p.add(before, name="A")
    p.add(type("B", (beside,), {"inputs": {"asks": mr.by("item")}}))
    return p


def test_a_percentile_changes_nothing_of_how_groupings_are_kept() -> None:
    without = sums(Watches, Watches)

    for before, beside in ((Watches, Waits), (Waits, Watches)):
        p = sums(before, beside)
        assert said(without, p) == []
        assert str(p.explain()).count("kept   as columns, all keys together") == 2
