"""A stream with its past before it: each record once, and no gap between the two."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch, PipelineError


class Totals(mr.Computation):
    inputs = {"bids": mr.by("item")}
    outputs = {"totals": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("totals", record.timestamp)


class Model(mr.Computation):
    """Says in order of time what it has seen."""

    inputs = {"all": mr.by("item")}
    outputs = {"seen": int}
    times = mr.BagState(int)

    def process_record(self, record: mr.Record) -> None:
        self.times.add(record.timestamp)
        self.set_timer("say", at=200)

    def process_timer(self, timer: mr.Timer) -> None:
        for at in sorted(self.times):
            self.produce("seen", at)
        self.times.clear()


def pipeline(*, until: int | None = None, model: bool = True) -> mr.Pipeline:
    p = mr.Pipeline("shop")
    bids = p.inject("bids", format=dict)
    p.add(Totals)
    if model:
        if until is not None:
            p.inject("past", format=dict)
            bids = bids.backfilled("past", until=until)
        bids.to("all", dict)
        p.add(Model)
    return p


def give(h: mr.testing.Harness, stream: str, *times: int) -> None:
    h.inject(stream, [({"item": "tea"}, at) for at in times])


def values(h: mr.testing.Harness, stream: str) -> list[Any]:
    return [output.value for output in h.outputs(stream)]


@pytest.mark.parametrize("writes", range(0, 12, 2))
def test_each_record_comes_once_through_the_change_crashes_and_the_end_of_the_past(
    writes: int,
) -> None:
    with mr.testing.Harness(pipeline(model=False)) as h:
        give(h, "bids", 10, 90)
        h.update(pipeline(until=100))
        h.crash_in_next_epoch(writes)
        give(h, "bids", 95, 100, 110)
        give(h, "past", 10, 90, 95, 100, 120)
        h.advance_watermark("bids", 300)
        assert values(h, "seen") == []  # it waits for the past
        h.crash_in_next_epoch(writes)
        h.advance_watermark("past", mr.MAX_TIMESTAMP)
        assert values(h, "seen") == [10, 90, 95, 100, 110]
        h.update(pipeline())
        give(h, "bids", 400)
        assert values(h, "seen")[5:] == [400]
        assert values(h, "totals") == [10, 90, 95, 100, 110, 400]


def test_a_gap_between_the_two_is_refused_and_only_when_the_past_is_added() -> None:
    with mr.testing.Harness(pipeline(model=False)) as h:
        give(h, "bids", 10, 100)
        with pytest.raises(CheckpointMismatch, match=r"records since .*00Z have come already, up"):
            h.update(pipeline(until=100))
        h.update(pipeline(until=101))
        give(h, "bids", 500)
        h.crash()
        h.update(pipeline(until=101))  # the line stays


def test_what_is_no_stream_or_no_instant_is_refused() -> None:
    p, other = mr.Pipeline("p"), mr.Pipeline("other")
    bids = p.inject("bids", format=dict)
    with pytest.raises(PipelineError, match="expected a stream of Pipeline"):
        bids.backfilled(other.inject("past", format=dict), until=1)
    with pytest.raises(PipelineError, match="time zone"):
        bids.backfilled("past", until="2026-11-22T10:00:00")
