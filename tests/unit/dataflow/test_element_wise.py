"""with_timestamps, with its bound on moving backwards; flatten."""

import datetime as dt
from typing import Any

import pytest

import millrace as mr


class Times(mr.Computation):
    inputs = {"moved": mr.by(lambda _: "all")}
    outputs = {"times": tuple[int, bool]}

    def process_record(self, record: mr.Record) -> None:
        self.produce("times", (record.timestamp, record.late))


def moving(**how: Any) -> mr.Pipeline:
    p = mr.Pipeline("moving")
    p.inject("events", format=dict)
    p.stream("events").with_timestamps("at", **how).to("moved")
    p.add(Times)
    return p


def test_a_field_becomes_the_timestamp() -> None:
    with mr.testing.Harness(moving()) as h:
        h.inject("events", [({"at": 10}, 5), ({"at": 7}, 7)])
        assert [out.value for out in h.outputs("times")] == [(10, False), (7, False)]


def test_a_field_may_be_of_another_unit() -> None:
    with mr.testing.Harness(moving(unit="ms")) as h:
        h.inject("events", [({"at": 10}, 5)])
        assert [out.value for out in h.outputs("times")] == [(10_000, False)]


def test_a_field_that_looks_like_another_unit_is_an_error_that_says_so() -> None:
    at_us = 1_700_000_000_000_000
    h = mr.testing.Harness(moving())
    with h, pytest.raises(mr.MillraceError, match=r'with_timestamps\(..., unit="ms"\)'):
        h.inject("events", [({"at": at_us // 1000}, at_us)])


def test_a_datetime_may_be_the_timestamp() -> None:
    p = mr.Pipeline("datetimes")
    p.inject("events", format=int)
    instant = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    p.stream("events").with_timestamps(lambda _: instant).to("moved")
    p.add(Times)
    with mr.testing.Harness(p) as h:
        h.inject("events", [(1, 0)])
        assert [out.timestamp for out in h.outputs("moved")] == [mr.SECOND]


def test_moving_back_holds_the_consumers_low_watermark_so_that_nothing_is_late() -> None:
    with mr.testing.Harness(moving(backwards=100)) as h:
        h.advance_watermark("events", 1000)
        assert h.low_watermark("Times") == 900
        h.inject("events", [({"at": 900}, 1000)])
        h.advance_watermark("events", mr.MAX_TIMESTAMP)

        assert [out.value for out in h.outputs("times")] == [(900, False)]
        assert h.low_watermark("Times") == mr.MAX_TIMESTAMP


def test_bounds_along_a_way_add_up_and_of_several_ways_the_widest_counts() -> None:
    p = mr.Pipeline("ways")
    p.inject("events", format=int)
    back = p.stream("events").with_timestamps(lambda at: at, backwards=100)
    back.with_timestamps(lambda at: at, backwards=10).to("moved")
    p.stream("events").to("moved")
    p.add(Times)
    with mr.testing.Harness(p) as h:
        h.advance_watermark("events", 1000)
        assert h.low_watermark("Times") == 890


def test_moving_back_further_than_said_is_an_error_at_the_record() -> None:
    with mr.testing.Harness(moving(backwards=100)) as h:
        with pytest.raises(mr.MillraceError, match="back by 101 us") as refused:
            h.inject("events", [({"at": 899}, 1000)])
        assert "by 100 us at most" in str(refused.value)
    p = moving()
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("events", [({"at": 899}, 1000), ({"at": 1000}, 1000)])
        assert len(h.outputs("letters")) == len(h.outputs("times")) == 1


def test_results_keep_their_panes_when_their_timestamps_move() -> None:
    p = mr.Pipeline("results")
    scores = p.inject("scores", format=int).key_by(lambda _: "all")
    totals = scores.window(mr.FixedWindows(10)).sum()
    totals.with_timestamps(lambda total: 100 + total).to("moved")
    with mr.testing.Harness(p) as h:
        h.inject("scores", [(1, 1), (2, 2)])
        h.advance_watermark("scores", 10)
        (out,) = h.outputs("moved")
        assert (out.value, out.timestamp, out.pane.window) == (3, 103, mr.Window(0, 10))


def test_flatten_makes_one_stream_of_several() -> None:
    p = mr.Pipeline("flat")
    left, right = p.inject("left", format=int), p.inject("right", format=int)
    both = left.flatten(right.map(lambda value: -value))
    both.key_by(lambda _: "all").window(mr.FixedWindows(10)).group().to("groups")
    with mr.testing.Harness(p) as h:
        h.inject("left", [(1, 1)])
        h.inject("right", [(2, 2)])
        h.advance_watermark("left", 10)
        assert h.outputs("groups") == []
        h.advance_watermark("right", 10)
        assert [out.value for out in h.outputs("groups")] == [[1, -2]]


def test_flatten_takes_streams_of_its_pipeline() -> None:
    p, other = mr.Pipeline("one"), mr.Pipeline("other")
    with pytest.raises(mr.MillraceError, match="is no stream of"):
        p.inject("a").flatten(other.inject("b"))
