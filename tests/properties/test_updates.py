"""Groupings that answer each element give the same for many keys at once as key by key."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.aggregations import Count, Max, Sum, Top
from millrace.dataflow.grouping import GroupingOperator
from millrace.kernel.blocks import UpdateMachine


class Bid(msgspec.Struct, frozen=True):
    by: str
    price: Any
    at: int


class Note(msgspec.Struct):
    """What a step may change."""

    by: str
    price: Any
    at: int


_EVERY = mr.Repeat(mr.AfterCount(1))
_BREAKS = 13
bids = st.tuples(
    st.sampled_from("abc"),
    st.one_of(st.integers(-3, 20), st.just(_BREAKS), st.sampled_from([None, "x", 0.5])),
    st.integers(0, 60),
)
steps = st.one_of(
    st.lists(bids, min_size=1, max_size=12).map(lambda batch: ("records", batch)),
    st.integers(0, 80).map(lambda to: ("watermark", to)),
    st.integers(0, 4).map(lambda writes: ("crash in the next", writes)),
    st.just(("crash", None)),
)
combines = st.sampled_from(
    [
        (Top(1, "at"), None), (Top(2, lambda bid: (bid.price, -bid.at)), None),
        (Top(3), "price"), (Sum(), "price"), (Count(), None), (Max(), "price"),
    ]
)  # fmt: skip
modes = st.sampled_from([mr.DISCARDING, mr.ACCUMULATING, mr.ACCUMULATING_AND_RETRACTING])
times = st.sampled_from([mr.OutputTime.END_OF_WINDOW, mr.OutputTime.EARLIEST, mr.OutputTime.LATEST])


def _shown(value: Any) -> Any:
    """Return a result; of some it cannot be made."""
    if isinstance(value, list) and value and isinstance(value[0], Note):
        value[0].price = repr(value[0].price)  # its own, whoever else has it
    if str(_BREAKS) in repr(value):
        raise ValueError("a result that cannot be shown")
    return repr(value)


def run(
    script: Any, combine: Any, mode: Any, output_time: Any, kind: Any, steps: bool
) -> tuple[Any, ...]:
    p = mr.Pipeline("updates")
    keyed = p.inject("bids", format=kind).key_by("by")
    how = {"trigger": _EVERY, "mode": mode, "output_time": output_time}
    panes = keyed.window(mr.GlobalWindow(), **how).aggregate(*combine).to("results")
    if steps:
        panes.map(_shown).to("shown")
        panes.key_by(lambda value: len(repr(value))).map(repr).to("others")
    p.dead_letter("letters")
    p.late_records("late")
    with mr.testing.Harness(p, intervals=2) as h:
        for what, with_what in [*script, ("watermark", mr.MAX_TIMESTAMP)]:
            if what == "records":
                h.inject("bids", [(kind(*values), values[-1]) for values in with_what])
            elif what == "watermark":
                if with_what >= h.low_watermark("results"):
                    h.advance_watermark("bids", with_what)
            elif what == "crash":
                h.crash()
            else:
                h.crash_in_next_epoch(after_writes=with_what)
        found = defaultdict[Any, list[Any]](list)
        for stream in ("results", "shown", "others") if steps else ("results",):
            for out in h.outputs(stream):
                found[stream, out.key].append((repr(out.value), out.pane, out.timestamp))
        (name,) = (spec.name for spec in p.build().computations)
        counters = h.counters(name)
        letters = sorted(
            repr((o.value.key, o.value.value, o.value.reason)) for o in h.outputs("letters")
        )
        late = sorted((late.key, late.value, late.timestamp) for late in h.late_records())
    return found, counters.records, counters.late, counters.worst_lateness_us, letters, late


@settings(deadline=None, max_examples=40)
@given(
    st.lists(steps, max_size=6), combines, modes, times, st.sampled_from([Bid, Note]),
    st.booleans(),
)  # fmt: skip
@example(
    [("records", [("a", 1, 5), ("a", 3, 4), ("b", _BREAKS, 9), ("a", 2, 6)]), ("watermark", 8)] * 2,
    (Top(1, "at"), None), mr.ACCUMULATING_AND_RETRACTING, mr.OutputTime.END_OF_WINDOW, Note, True,
)  # fmt: skip
def test_panes_counts_and_letters_are_the_same(
    script: Any, combine: Any, mode: Any, output_time: Any, kind: Any, steps: bool
) -> None:
    together = run(script, combine, mode, output_time, kind, steps)
    event(f"{bool(together[0])} panes, {bool(together[4])} letters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupingOperator, "in_blocks", lambda *_: False)
        assert together == run(script, combine, mode, output_time, kind, steps)


def test_these_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mr.Pipeline("updates")
    keyed = p.inject("bids", format=Bid).key_by("by")
    keyed.window(mr.GlobalWindow(), trigger=_EVERY).top(1, key="at").to("last")
    keyed.window(mr.FixedWindows(10), trigger=_EVERY).top(1, key="at").to("ends")
    keyed.window(mr.GlobalWindow(), trigger=mr.Repeat(mr.AfterCount(2))).count().to("seldom")
    keyed.window(mr.GlobalWindow(), trigger=_EVERY).distinct("price").to("in place")
    assert {spec.name for spec in p.build().computations if spec.in_blocks} == {"last"}

    ran = list[int]()
    answer = UpdateMachine._answer

    def counted(self: UpdateMachine, bundle: Any, parts: Any, stored: Any) -> Any:
        ran.append(len(parts))
        return answer(self, bundle, parts, stored)

    monkeypatch.setattr(UpdateMachine, "_answer", counted)
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("bids", [(Bid(by, 1, 2), 2) for by in "aabc"])
    assert ran == [3]
