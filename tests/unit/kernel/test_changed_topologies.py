"""Computations, inputs and injectors come and go between epochs, and what stays is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch, PipelineError
from tests.unit.epochlog.test_changed_pipelines import restarted as changed


class Totals(mr.Computation):
    inputs = {"bids": mr.by("item")}
    outputs = {"totals": int}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + record.value["price"])
        self.produce("totals", self.total.get())


class Counts(mr.Computation):
    """Counts bids, and says an hour after the first how many there were."""

    inputs = {"bids": mr.by("item")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.late:
            self.produce("counts", -1)
        if not self.count.get(0):
            self.set_timer("hour", at=record.timestamp + mr.HOUR)
        self.count.set(self.count.get(0) + 1)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("counts", self.count.get())


class Sums(mr.Computation):
    """Stands between, or after, as it is wanted."""

    inputs = {"totals": mr.by_key()}
    outputs = {"sums": int}
    sum = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.sum.set(self.sum.get(0) + record.value)
        self.produce("sums", self.sum.get())


class Asked(Totals):
    inputs = {"bids": mr.by("item"), "asks": mr.by("item")}


def pipeline(
    *computations: Any, streams: Sequence[str] = ("bids",), removed: Sequence[str] = ()
) -> mr.Pipeline:
    p = mr.Pipeline("shop")
    for stream in streams:
        p.inject(stream, format=dict)
    for computation in computations:
        p.add(computation, name="Totals" if computation is Asked else None)
    for name in removed:
        p.remove(name)
    return p


def test_a_harness_goes_on_with_a_changed_pipeline_or_stays_as_it_was() -> None:
    with mr.testing.Harness(pipeline(Totals)) as h:
        bid(h, 10, "tea")
        h.update(pipeline(Totals, Sums))
        bid(h, 20, "tea")
        with pytest.raises(CheckpointMismatch, match=r"p\.remove\('Sums'\)"):
            h.update(pipeline(Totals))
        bid(h, 30, "tea")
        assert (values(h, "totals"), values(h, "sums")) == ([1, 2, 3], [2, 5])


def bid(h: mr.testing.Harness, at_us: int, *items: str, stream: str = "bids") -> None:
    h.inject(stream, [({"item": item, "price": 1}, at_us) for item in items])


def values(h: mr.testing.Harness, stream: str) -> list[Any]:
    return [output.value for output in h.outputs(stream)]


def test_a_computation_that_is_new_begins_empty_where_its_senders_are() -> None:
    h = mr.testing.Harness(pipeline(Totals))
    bid(h, 10, "tea", "rum")
    h.advance_watermark("bids", 100)

    with changed(h, pipeline(Totals, Counts)) as after:
        bid(after, 50, "tea")  # behind what the injector had shown: late for who is new, too
        bid(after, 200, "tea")
        assert values(after, "totals") == [2, 3]
        assert values(after, "counts") == [-1]
        after.crash()
        after.advance_watermark("bids", 200 + mr.HOUR)
        assert values(after, "counts") == [-1, 2]
        assert after.low_watermark("Counts") == after.low_watermark("Totals")


def test_a_computation_that_is_removed_goes_with_all_its_rows_and_its_name_is_used_up() -> None:
    h = mr.testing.Harness(pipeline(Totals, Counts))
    bid(h, 10, "tea", "rum")
    h.advance_watermark("bids", 100)
    last = h._durable.epochs.last()

    with pytest.raises(CheckpointMismatch, match=r"p\.remove\('Counts'\)"):
        changed(h, pipeline(Totals))
    assert h._durable.epochs.last() == last
    assert h._durable.commits.numbers("Counts")

    after = changed(h, pipeline(Totals, removed=["Counts", "unheard of"]))
    bid(after, 200, "tea")
    assert values(after, "totals") == [2]
    assert not h._durable.commits.numbers("Counts")
    assert not h._durable.snapshots.numbers("Counts")
    after.advance_watermark("bids", mr.MAX_TIMESTAMP)  # held by no timer of who is gone
    assert after.output_low_watermark("Totals") == mr.MAX_TIMESTAMP

    with pytest.raises(CheckpointMismatch, match="'Counts': it was dropped from this checkpoint"):
        changed(after, pipeline(Totals, Counts))
    changed(after, pipeline(Totals, removed=["Counts"])).close()


def test_a_computation_comes_and_goes_behind_another() -> None:
    h = mr.testing.Harness(pipeline(Totals))
    bid(h, 10, "tea")
    more = changed(h, pipeline(Totals, Sums))
    bid(more, 20, "tea")
    bid(more, 30, "tea")
    assert (values(more, "totals"), values(more, "sums")) == ([2, 3], [2, 5])
    with changed(more, pipeline(Totals, removed=["Sums"])) as less:
        bid(less, 40, "tea")
        assert values(less, "totals") == [4]


def test_an_input_comes_and_goes_and_the_state_of_keys_stays() -> None:
    h = mr.testing.Harness(pipeline(Totals))
    bid(h, 10, "tea")
    h.advance_watermark("bids", 5)
    more = changed(h, pipeline(Asked, streams=("bids", "asks")))
    bid(more, 10, "tea", stream="asks")
    more.advance_watermark("bids", 100)
    # What it showed before it does not take back; what is new holds it there.
    assert more.low_watermark("Totals") == 5
    with changed(more, pipeline(Totals)) as less:
        bid(less, 200, "tea")
        assert (values(more, "totals"), values(less, "totals")) == ([2], [3])
        assert less.low_watermark("Totals") == 100


def test_while_an_epoch_is_unfinished_only_the_pipeline_as_it_was_may_finish_it() -> None:
    h = mr.testing.Harness(pipeline(Totals))
    bid(h, 10, "tea")
    run_log = RunLog(pipeline(Totals).build(), h._durable, intervals=1)
    assert run_log.begin(1, wall_time_us=0, injectors={}) is not None
    last = h._durable.epochs.last()

    for p in (pipeline(Totals, Counts), pipeline(Counts, removed=["Totals"])):
        with pytest.raises(CheckpointMismatch, match="epoch 1 of this checkpoint is unfinished"):
            changed(h, p)
    assert h._durable.epochs.last() == last
    again = changed(h, pipeline(Totals))
    bid(again, 20, "tea")
    bid(changed(again, pipeline(Totals, Counts)), 30, "tea")


@pytest.mark.parametrize("writes", range(8))
def test_a_crash_at_any_write_leaves_the_new_pipeline_startable(writes: int) -> None:
    h = mr.testing.Harness(pipeline(Totals, Counts))
    bid(h, 10, "tea", "rum", "gin")
    new = pipeline(Totals, Sums, removed=["Counts"])
    after = changed(h, new)
    after.crash_in_next_epoch(writes)
    bid(after, 20, "tea", "rum", "gin")
    with changed(after, new) as last:
        bid(last, 30, "tea")
        assert (values(after, "totals"), values(after, "sums")) == ([2, 2, 2], [2, 2, 2])
        assert (values(last, "totals"), values(last, "sums")) == ([3], [5])
    assert not h._durable.commits.numbers("Counts")


def test_what_is_removed_is_not_added() -> None:
    p = pipeline(Totals, removed=["Totals"])
    with pytest.raises(PipelineError, match=r"both has and removes \['Totals'\]"):
        p.build()


def test_who_looks_before_the_first_epoch_of_a_change_sees_what_is_new() -> None:
    h = mr.testing.Harness(pipeline(Totals, Counts))
    bid(h, 10, "tea")
    h.update(pipeline(Asked, Sums, streams=("bids", "asks"), removed=["Counts"]))

    assert "Pinned by the injector of stream 'asks'" in str(h.explain_watermark())
    checkpoint = h.checkpoint()
    assert checkpoint.computations == ["Sums", "Totals"]
    assert (checkpoint["Totals"].get("tea"), checkpoint["Sums"].get("tea")) == (
        {"total": 1},
        {"sum": None},
    )
