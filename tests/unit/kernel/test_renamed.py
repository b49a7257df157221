"""A computation that is renamed by saying so keeps all that it has; nothing of it is moved."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.claims import plan_of
from millrace.epochlog.entries import SourceStats
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.watermark.percentiles import Ahead
from millrace.watermark.report import ProcessState


class Counts(mr.Computation):
    """Counts, and says an hour after the first record how many came; holds until then."""

    inputs = {"bids": mr.by("item")}
    outputs = {"counts": int}
    count: Any = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.value.get("bad"):
            raise ValueError("bad")
        if not self.count.get(0):
            self.set_timer("hour", at=record.timestamp + mr.HOUR)
        self.count.set(self.count.get(0) + 1)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("counts", self.count.get())


class Sums(mr.Computation):
    inputs = {"counts": mr.by_key()}
    outputs = {"sums": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("sums", record.value)


def pipeline(*, name: str, was: Any = (), more: str = "", removed: str = "") -> mr.Pipeline:
    p = mr.Pipeline("shop")
    p.inject("bids", format=dict, id="id")
    p.add(Counts, name=name, was=was)
    p.add(Sums)
    if more:
        p.add(type(more, (Counts,), {"outputs": {"others": int}, "process_timer": others}))
    if removed:
        p.remove(removed)
    p.dead_letter("letters")
    return p


def others(self: Any, timer: mr.Timer) -> None:
    self.produce("others", self.count.get())


def bid(h: mr.testing.Harness, at_us: int, id: str = "", **more: Any) -> None:
    h.inject("bids", [({"item": "tea", "id": id or str(at_us), **more}, at_us)])


def values(h: mr.testing.Harness, stream: str) -> list[Any]:
    return [output.value for output in h.outputs(stream)]


def test_state_timers_low_watermark_and_deduplication_go_on_under_the_new_name() -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10, "first")
        bid(h, 20)
        changed = pipeline(name="Tallies", was="Counts")
        plan = str(plan_of(end_of(h._durable.epochs), changed.build()))
        assert "renamed   computation 'Tallies': was 'Counts'" in plan
        h.update(changed)
        h.crash()
        bid(h, 10, "first")  # delivered again
        bid(h, 30)
        h.advance_watermark("bids", mr.DAY)
        assert (values(h, "counts"), values(h, "sums")) == ([3], [3])
        assert h.counters("Tallies").duplicates_filtered == 1
        assert h.low_watermark("Tallies") == mr.DAY == h.low_watermark("Sums")


def test_people_read_the_new_name_everywhere() -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10)
        h.update(pipeline(name="Tallies", was="Counts"))
        found = h.checkpoint()
        assert found.computations == ["Sums", "Tallies"]
        assert found["Tallies"].get("tea") == {"count": 1}
        assert [timer.tag for timer in found["Tallies"].timers()] == ["hour"]
        h.advance_watermark("bids", 20)
        assert "Tallies" in str(h.explain_watermark("Sums"))
        bid(h, 30, bad=True)
        assert [letter.computation for letter in values(h, "letters")] == ["Tallies"]
        assert {*h.history.moments[-1].inputs} == {"Tallies", "Sums"}
        assert next({*moment.inputs} for moment in found.latest().history()) == {"Tallies", "Sums"}


def test_it_goes_back_and_on_and_a_version_that_was_never_started_may_be_passed_over() -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10)
        h.update(pipeline(name="Tallies", was="Counts"))
        bid(h, 20)
        h.update(pipeline(name="Counts"))  # the program that ran before
        bid(h, 30)
        h.update(pipeline(name="Numbers", was=["Tallies", "Counts"]))
        bid(h, 40)
        h.update(pipeline(name="Numbers", was="Tallies"))  # the line stays, and says nothing new
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [4]


def test_a_name_that_was_given_up_may_be_given_again() -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10)
        h.update(pipeline(name="Tallies", was="Counts"))
        h.update(pipeline(name="Tallies", more="Counts"))  # another, which begins empty
        bid(h, 20)
        found = h.checkpoint()
        assert found["Tallies"].get("tea") == {"count": 2}
        assert found["Counts"].get("tea") == {"count": 1}
        h.crash()
        h.update(pipeline(name="Tallies", more="Counts"))
        h.advance_watermark("bids", mr.DAY)
        assert (values(h, "counts"), values(h, "others")) == ([2], [1])


def test_a_renamed_one_is_removed_under_its_new_name_with_all_its_rows() -> None:
    with mr.testing.Harness(pipeline(name="Counts", more="Others")) as h:
        bid(h, 10)
        renamed = pipeline(name="Counts")
        renamed.add(
            type("Renamed", (Counts,), {"outputs": {"others": int}, "process_timer": others}),
            was="Others",
        )
        h.update(renamed)
        with pytest.raises(CheckpointMismatch, match=r"p\.remove\('Renamed'\)"):
            h.update(pipeline(name="Counts"))
        h.update(pipeline(name="Counts", removed="Renamed"))
        bid(h, 20)
        assert not h._durable.commits.numbers("Others")
        h.advance_watermark("bids", mr.DAY)
        assert (values(h, "counts"), values(h, "others")) == ([2], [])


def test_an_unfinished_epoch_is_finished_under_the_new_name() -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10)
        run_log = RunLog(pipeline(name="Counts").build(), h._durable, intervals=1)
        assert run_log.begin(1, wall_time_us=0, injectors={}) is not None
        h.update(pipeline(name="Tallies", was="Counts"))
        bid(h, 20)
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [2]


@pytest.mark.parametrize("fanout", [None, 4])
def test_a_grouping_is_renamed_where_it_is_named(fanout: int | None) -> None:
    def totals(name: str, was: Any = ()) -> mr.Pipeline:
        p = mr.Pipeline("shop")
        bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows(mr.HOUR))
        bids.sum("price", fanout=fanout).to(name, was=was)
        return p

    with mr.testing.Harness(totals("totals")) as h:
        h.inject("bids", [({"item": "tea", "price": 1}, 10)])
        h.update(totals("revenue", was="totals"))
        h.inject("bids", [({"item": "tea", "price": 2}, 20)])
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "revenue") == [3]
        windowing = h.windowing("revenue")
        assert windowing is not None
    stream = mr.Pipeline("shop").inject("bids", format=dict).window()
    with pytest.raises(PipelineError, match="names no grouping"):
        stream.to("more", was="less")


@pytest.mark.parametrize("writes", range(8))
def test_a_crash_at_any_write_leaves_it_startable_under_either_name(writes: int) -> None:
    with mr.testing.Harness(pipeline(name="Counts")) as h:
        bid(h, 10)
        h.update(pipeline(name="Tallies", was="Counts"))
        h.crash_in_next_epoch(writes)
        bid(h, 20)
        h.update(pipeline(name="Counts"))
        h.crash_in_next_epoch(writes)
        bid(h, 30)
        h.update(pipeline(name="Tallies", was="Counts"))
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [3]


def test_what_cannot_be_is_refused() -> None:
    p = pipeline(name="Tallies", was="Counts", more="Counts")
    with pytest.raises(PipelineError, match=r"both has and renames \['Counts'\]"):
        p.build()
    with pytest.raises(PipelineError, match=r"both renames and removes \['Counts'\]"):
        pipeline(name="Tallies", was="Counts", removed="Counts").build()
    p = pipeline(name="Tallies", was="Counts")
    p.add(type("More", (Counts,), {"outputs": {}}), was="Counts")
    with pytest.raises(PipelineError, match="two computations that were one"):
        p.build()


class Beats(mr.Computation):
    outputs = {"beats": str}

    def process_start(self) -> None:
        self.produce("beats", f"{self.key} begins")


@pytest.mark.parametrize("writes", range(0, 8, 2))
def test_an_injected_stream_is_read_on_under_its_new_name(writes: int) -> None:
    def shop(stream: str, was: Any = ()) -> mr.Pipeline:
        p = mr.Pipeline("shop")
        p.inject(stream, format=dict, was=was)
        p.add(type("Counts", (Counts,), {"inputs": {stream: mr.by("item")}}))
        return p

    with mr.testing.Harness(shop("bids")) as h:
        bid(h, 10, "first")
        h.advance_watermark("bids", 15)
        changed = shop("offers", was="bids")
        plan = str(plan_of(end_of(h._durable.epochs), changed.build()))
        assert "renamed   injected stream 'offers': was 'bids'; it is read on" in plan
        assert "it is read from its beginning" not in plan
        h.update(changed)
        h.crash()  # its claim is there, and no epoch yet
        h.update(shop("offers"))
        assert h.low_watermark("Counts") == 15
        h.crash_in_next_epoch(writes)
        h.inject("offers", [({"item": "tea"}, 20)])
        h.update(shop("bids"))  # the program of before
        bid(h, 30)
        h.advance_watermark("bids", mr.DAY)
        assert values(h, "counts") == [3]


def test_keys_that_have_begun_do_not_begin_again() -> None:
    def alive(name: str, was: Any = ()) -> mr.Pipeline:
        p = mr.Pipeline("alive")
        p.add(Beats, name=name, keys=["here", "there"], was=was)
        return p

    with mr.testing.Harness(alive("Beats")) as h:
        h.advance_clock(mr.SECOND)
        assert len(values(h, "beats")) == 2
        h.update(alive("Hearts", was="Beats"))
        h.advance_clock(2 * mr.SECOND)
        assert len(values(h, "beats")) == 2


def test_all_that_was_observed_of_an_injected_stream_goes_on_under_its_new_name() -> None:
    def shop(stream: str, was: Any = ()) -> mr.Pipeline:
        p = mr.Pipeline("shop")
        p.inject(stream, format=dict, was=was)
        p.add(type("Counts", (Counts,), {"inputs": {stream: mr.by("item")}}))
        return p

    with mr.testing.Harness(shop("bids")) as h:
        bid(h, 10)
        h.advance_watermark("bids", 15)
        observed = SourceStats(10, 1, 2, {}, 4, {"": ProcessState(10)}, Ahead({0: 1}))
        h._run_log.sources["bids"] = observed
        h.advance_watermark("bids", 16)
        h.update(shop("offers", was="bids"))
        assert h._run_log.sources == {"offers": observed}
