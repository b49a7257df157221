"""A computation that is drained gets no more records, and its timers fire; then it can go."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.claims import plan_of
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch, PipelineError


class Totals(mr.Computation):
    inputs = {"bids": mr.by("item")}
    outputs = {"totals": int}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + 1)
        self.produce("totals", self.total.get())


class Counts(mr.Computation):
    inputs = {"bids": mr.by("item")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if not self.count.get(0):
            self.set_timer("hour", at=record.timestamp + mr.HOUR)
        self.count.set(self.count.get(0) + 1)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("counts", self.count.get())


def pipeline(*computations: Any, drained: str = "", removed: str = "") -> mr.Pipeline:
    p = mr.Pipeline("shop")
    p.inject("bids", format=dict)
    for computation in computations:
        p.add(computation)
    if drained:
        p.drain(drained)
    if removed:
        p.remove(removed)
    return p


def bid(h: mr.testing.Harness, at_us: int, *items: str) -> None:
    h.inject("bids", [({"item": item, "price": 1}, at_us) for item in items])


def values(h: mr.testing.Harness, stream: str) -> list[Any]:
    return [output.value for output in h.outputs(stream)]


def plan(h: mr.testing.Harness, p: mr.Pipeline) -> str:
    return str(plan_of(end_of(h._durable.epochs), p.build()))


def test_its_timers_fire_and_it_holds_who_reads_from_it_until_they_have() -> None:
    with mr.testing.Harness(pipeline(Totals, Counts)) as h:
        bid(h, 10, "tea", "tea")
        draining = pipeline(Totals, Counts, drained="Counts")
        assert "computation 'Counts': is drained: it gets no more records" in plan(h, draining)
        assert "drained: no records come to it any more" in str(draining.explain())
        h.update(draining)
        bid(h, 20, "tea", "rum")
        h.crash()
        assert "nothing is left" not in plan(h, draining)
        assert (values(h, "totals"), values(h, "counts")) == ([1, 2, 3, 1], [])
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [2]  # what came before, and no more
        assert h.output_low_watermark("Counts") == mr.DAY
        assert "computation 'Counts': drained: nothing is left that waits. p.remove('Counts')" in (
            plan(h, draining)
        )
        h.update(pipeline(Totals, removed="Counts"))
        bid(h, mr.DAY, "tea")
        assert values(h, "totals") == [1, 2, 3, 1, 4]


def test_the_only_reader_of_a_stream_may_be_drained_and_get_records_again() -> None:
    with mr.testing.Harness(pipeline(Counts)) as h:
        bid(h, 10, "tea")
        h.update(pipeline(Counts, drained="Counts"))
        bid(h, 20, "tea")
        assert "is not drained any more" in plan(h, pipeline(Counts))
        h.update(pipeline(Counts))
        bid(h, 30, "tea")
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [2]


@pytest.mark.parametrize("fanout", [None, 4])
def test_a_grouping_closes_the_windows_that_are_open(fanout: int | None) -> None:
    def hourly(*, drained: bool) -> mr.Pipeline:
        p = mr.Pipeline("shop")
        bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows(mr.HOUR))
        bids.sum("price", fanout=fanout).to("totals")
        if drained:
            p.drain("totals")
        return p

    with mr.testing.Harness(hourly(drained=False)) as h:
        bid(h, 10, "tea", "tea")
        h.update(hourly(drained=True))
        bid(h, 20, "tea")
        bid(h, mr.HOUR, "tea")
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "totals") == [2]


def test_it_begins_between_two_epochs_only() -> None:
    h = mr.testing.Harness(pipeline(Totals, Counts))
    bid(h, 10, "tea")
    run_log = RunLog(pipeline(Totals, Counts).build(), h._durable, intervals=1)
    assert run_log.begin(1, wall_time_us=0, injectors={}) is not None
    with pytest.raises(CheckpointMismatch, match="epoch 1 of this checkpoint is unfinished"):
        h.update(pipeline(Totals, Counts, drained="Counts"))


def test_what_is_drained_must_be_there() -> None:
    with pytest.raises(PipelineError, match=r"drains \['Counts'\], and has no computation"):
        pipeline(Totals, drained="Counts").build()
