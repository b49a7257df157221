"""Steps that see key, time and pane of a record: after a grouping, and before."""

import datetime as dt
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Bid(msgspec.Struct):
    item: str
    price: int


BIDS = [("cup", 5, 3), ("cup", 9, 4), ("pot", 7, 4), ("pot", 8, 13), ("pan", 1, 13)]


def harness(p: mr.Pipeline) -> mr.testing.Harness:
    h = mr.testing.Harness(p)
    h.inject("bids", [(Bid(item, price), at) for item, price, at in BIDS])
    h.advance_watermark("bids", mr.MAX_TIMESTAMP)
    return h


def counts(p: mr.Pipeline, **how: Any) -> Any:
    bids = p.inject("bids", format=Bid)
    return bids.key_by("item").window(mr.FixedWindows(10), **how).count()


def values(p: mr.Pipeline, stream: str) -> list[Any]:
    with harness(p) as h:
        return [output.value for output in h.outputs(stream)]


def test_the_top_of_each_window_needs_no_computation() -> None:
    p = mr.Pipeline("top")
    named = counts(p).map(mr.of_record(lambda r: {"item": r.key, "n": r.value}))
    named.key_by("_window_end").top(1, key="n").to("top")

    with harness(p) as h:
        found = {output.key: output.value for output in h.outputs("top")}

    assert found[10] == [{"item": "cup", "n": 2}]
    assert found[20][0]["n"] == 1


def test_each_step_may_see_key_time_window_and_pane() -> None:
    p = mr.Pipeline("steps")
    seen = counts(p).filter(mr.of_record(lambda r: r.key != "pan" and r.pane.is_last))
    seen = seen.flat_map(mr.of_record(lambda r: [r.window.start] * r.value))
    seen = seen.key_by(mr.of_record(lambda r: (r.key, r.window.end)))
    seen.map(mr.of_record(lambda r: [r.key, r.value, r.time, r.timestamp])).to("seen")

    first, second = (dt.datetime(1970, 1, 1, 0, 0, 0, us, dt.UTC) for us in (9, 19))
    assert sorted(values(p, "seen")) == [
        [["cup", 10], 0, first, 9], [["cup", 10], 0, first, 9], [["pot", 10], 0, first, 9],
        [["pot", 20], 10, second, 19],
    ]  # fmt: skip


def test_before_a_grouping_a_record_has_no_pane() -> None:
    p = mr.Pipeline("plain")
    seen = mr.of_record(lambda r: [r.value.price, r.key, r.timestamp, r.pane, r.window])
    p.inject("bids", format=Bid).map(seen).to("all")
    p.sink("all", print)

    assert values(p, "all")[0] == [5, None, 3, None, None]


def test_event_time_may_be_that_of_the_window() -> None:
    p = mr.Pipeline("times")
    moved = counts(p).with_timestamps(mr.of_record(lambda r: r.window.start), backwards=10)
    moved.to("moved")

    with harness(p) as h:
        assert {output.timestamp for output in h.outputs("moved")} == {0, 10}


def test_key_and_window_are_fields_for_a_key() -> None:
    p = mr.Pipeline("names")
    counts(p).key_by("_key", "_window_start", "_pane_timing", "_is_last").to("named")

    with harness(p) as h:
        keys = {output.key for output in h.outputs("named")}

    assert keys == {
        ("cup", 0, "ON_TIME", True), ("pot", 0, "ON_TIME", True), ("pot", 10, "ON_TIME", True),
        ("pan", 10, "ON_TIME", True),
    }  # fmt: skip


def test_a_computation_may_take_its_key_from_the_pane() -> None:
    class PerWindow(mr.Computation):
        inputs = {"counts": mr.by("_window_end")}
        outputs = {"sums": int}
        total = mr.CombiningState(int)

        def process_record(self, record: mr.Record) -> None:
            self.total.add(record.value)
            self.set_timer("end", at=self.key)

        def process_timer(self, timer: mr.Timer) -> None:
            self.produce("sums", self.total.get())

    p = mr.Pipeline("computation")
    counts(p).to("counts")
    p.add(PerWindow)

    with harness(p) as h:
        assert {output.key: output.value for output in h.outputs("sums")} == {10: 3, 20: 2}


def test_a_field_of_the_value_comes_first() -> None:
    p = mr.Pipeline("own")
    p.inject("bids", format=dict).key_by("_key").to("keyed")
    p.sink("keyed", print)

    with mr.testing.Harness(p) as h:
        h.inject("bids", [({"_key": "mine"}, 3)])
        assert [output.key for output in h.outputs("keyed")] == ["mine"]


def test_a_retraction_gets_the_key_of_what_it_takes_back() -> None:
    p = mr.Pipeline("retractions")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 100}
    named = counts(p, **how).map(mr.of_record(lambda r: (r.value, r.key)))
    named.key_by("_window_end").max().to("most")

    with mr.testing.Harness(p) as h:
        h.inject("bids", [(Bid("cup", 1), 3), (Bid("cup", 1), 3), (Bid("pot", 1), 3)])
        h.advance_watermark("bids", 10)
        h.inject("bids", [(Bid("pot", 1), 3), (Bid("pot", 1), 3)])
        found = [(out.value, out.pane.retraction) for out in h.outputs("most") if out.pane]

    assert found[0] == ([2, "cup"], False)
    assert found[-1] == ([3, "pot"], False)
    assert sum(-n if taken else n for (n, _), taken in found) == 3


@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        (lambda s: s.map(mr.of_record(3)), r"of_record\(3\): it cannot be called"),
        (lambda s: s.sum(mr.of_record(len)), "cannot choose the input of an aggregation"),
        (lambda s: s.key_by("_windowend").count().to("x"), "'_windowend'"),
    ],
)
def test_what_cannot_be_is_refused(declared: Any, refused: str) -> None:
    p = mr.Pipeline("refused")
    counted = counts(p)
    with pytest.raises(PipelineError, match=refused):
        declared(counted).pipeline.build()


@pytest.mark.parametrize("name", ["_key", "_window_end"])
def test_a_record_as_it_is_injected_has_neither_key_nor_window(name: str) -> None:
    p = mr.Pipeline("refused")
    p.inject("bids", format=Bid).key_by(name).to("x")
    p.sink("x", print)

    with pytest.raises(PipelineError, match=f"key_by takes keys from field '{name}'"):
        p.build()


def test_a_computation_cannot_go_by_records_itself() -> None:
    class Takes(mr.Computation):
        inputs = {"counts": mr.by(mr.of_record(lambda r: r.window.end))}

        def process_record(self, record: mr.Record) -> None: ...

    p = mr.Pipeline("refused")
    counts(p).to("counts")
    p.add(Takes)

    with pytest.raises(PipelineError, match="only a step sees records"):
        p.build()
