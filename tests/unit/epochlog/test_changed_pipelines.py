"""A checkpoint goes on with a changed pipeline if nothing is lost by it, and else is left alone."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch

# One class in four versions of a program.
Before = msgspec.defstruct("Total", [("total", int, 0)])
Renamed = msgspec.defstruct("Total", [("amount", int, 0)])
More = msgspec.defstruct("Total", [("total", int, 0), ("bids", int, 0)])
Aliased = msgspec.defstruct("Total", [("amount", int, msgspec.field(default=0, name="total"))])


def pipeline(
    kind: Any = Before, *, field: str = "total", sink: bool = False, out: Any = int
) -> mr.Pipeline:
    class Totals(mr.Computation):
        inputs = {"bids": mr.by("item")}
        outputs = {"totals": int}
        kept = mr.ValueState(kind)

        def process_record(self, record: mr.Record) -> None:
            kept = self.kept.get() or kind()
            setattr(kept, field, getattr(kept, field) + record.value["price"])
            self.kept.set(kept)
            self.produce("totals", getattr(kept, field))

    p = mr.Pipeline("p")
    bids = p.inject("bids", format=dict)
    if sink:
        bids.map(out).to("texts", out)
        p.sink("texts", print)
    p.add(Totals)
    return p


def bid(h: mr.testing.Harness, price: int) -> list[Any]:
    h.inject("bids", [({"item": "tea", "price": price}, 1)])
    return [output.value for output in h.outputs("totals")]


def restarted(h: mr.testing.Harness, p: mr.Pipeline) -> mr.testing.Harness:
    """Return what goes on with the checkpoint, in the place of the one that wrote it."""
    after = mr.testing.Harness(p)
    after._durable = h._durable
    after._recover()
    return after


def test_a_rename_is_refused_field_by_field_and_nothing_is_written() -> None:
    h = mr.testing.Harness(pipeline())
    assert bid(h, 10) == [10]
    written = h._durable.epochs.last()

    with pytest.raises(CheckpointMismatch) as refused:
        restarted(h, pipeline(Renamed, field="amount"))

    assert "computation 'Totals', state 'kept': field 'total' is gone" in str(refused.value)
    assert h._durable.epochs.last() == written
    h.crash()
    assert bid(h, 1) == [10, 11]


@pytest.mark.parametrize("kind", [int, float, str])
def test_another_type_is_refused(kind: Any) -> None:
    h = mr.testing.Harness(pipeline())
    with pytest.raises(CheckpointMismatch, match="state 'kept': was Total, is"):
        restarted(h, pipeline(kind))


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        (More, "total", "field 'bids' is new, with default 0"),
        (Aliased, "amount", "field 'total' is called 'amount' now, and still written as 'total'"),
    ],
)
def test_what_loses_nothing_goes_on_and_is_said(
    kind: Any, field: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    h = mr.testing.Harness(pipeline())
    bid(h, 10)
    caplog.set_level(logging.INFO, "millrace")

    after = restarted(h, pipeline(kind, field=field))

    assert bid(after, 1) == [11]
    assert any(words in record.getMessage() for record in caplog.records)
    again = restarted(after, pipeline(kind, field=field))
    assert bid(again, 1) == [12]


def test_a_step_that_feeds_only_a_sink_may_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    h = mr.testing.Harness(pipeline())
    bid(h, 10)
    caplog.set_level(logging.INFO, "millrace")

    after = restarted(h, pipeline(sink=True, out=str))

    assert bid(after, 1) == [11]
    assert [output.value for output in after.outputs("texts")] == ["{'item': 'tea', 'price': 1}"]
    assert any("sink of stream 'texts': new" in r.getMessage() for r in caplog.records)
    assert bid(restarted(after, pipeline()), 1) == [12]


def test_while_an_epoch_is_unfinished_a_sinks_format_stays() -> None:
    """Its productions are in commits already, as the old format wrote them."""
    h = mr.testing.Harness(pipeline(sink=True, out=str))
    run_log = RunLog(pipeline(sink=True, out=str).build(), h._durable, intervals=1)
    manifest = run_log.begin(0, wall_time_us=0, injectors={})
    assert manifest is not None

    with pytest.raises(CheckpointMismatch, match="sink of stream 'texts': was str, is list"):
        RunLog(pipeline(sink=True, out=list).build(), h._durable, intervals=1)
    with pytest.raises(CheckpointMismatch, match="epoch 0 of this checkpoint is unfinished"):
        RunLog(pipeline().build(), h._durable, intervals=1)

    run_log.complete(manifest, [])
    assert RunLog(pipeline(sink=True, out=list).build(), h._durable, intervals=1).completed == 0
