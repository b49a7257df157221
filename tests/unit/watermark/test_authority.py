"""The authority: minimum over senders, never moving back, across epochs and restarts."""

import pytest

import millrace as mr
from millrace.watermark.authority import Authority
from millrace.watermark.report import NOTHING_PENDING, Report


class Upper(mr.Computation):
    inputs = {"one": mr.by_key()}
    outputs = {"upper": int}


class Lower(mr.Computation):
    inputs = {"upper": mr.by_key(), "two": mr.by_key()}


@pytest.fixture
def topology():
    p = mr.Pipeline("p")
    p.inject("one")
    p.inject("two")
    p.add(Upper)
    p.add(Lower)
    return p.build()


@pytest.fixture
def authority(topology):
    return Authority(topology)


def test_low_watermarks_start_before_time(authority):
    assert set(authority.low_watermarks.inputs.values()) == {mr.MIN_TIMESTAMP}
    assert set(authority.low_watermarks.outputs.values()) == {mr.MIN_TIMESTAMP}


def test_every_level_moves_at_once(authority):
    after = authority.advance({"one": 50, "two": 80}, {})

    assert after.inputs == {"Upper": 50, "Lower": 50}


def test_an_injector_that_is_missing_holds_its_last_value(authority):
    authority.advance({"one": 50, "two": 80}, {})

    assert authority.advance({"one": 100}, {}).inputs == {"Upper": 100, "Lower": 80}


def test_an_injector_that_moves_back_is_held(authority):
    authority.advance({"one": 50, "two": 80}, {})

    assert authority.advance({"one": 10, "two": 80}, {}).inputs == {"Upper": 50, "Lower": 50}


def test_an_interval_that_did_not_report_keeps_its_last_report(authority):
    authority.advance({"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})
    after = authority.advance({"one": 60, "two": 80}, {"Upper": {1: NOTHING_PENDING}})

    assert after.outputs["Upper"] == after.inputs["Lower"] == 20


def test_work_that_appears_below_an_output_does_not_take_it_back(authority):
    authority.advance({"one": 50, "two": 80}, {})
    after = authority.advance({"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})

    assert after.outputs["Upper"] == 50


def test_the_next_wall_timer_is_the_earliest_of_all_intervals(authority):
    assert authority.next_wall_timer_us() == mr.MAX_TIMESTAMP

    authority.advance(
        {}, {"Upper": {0: Report(wall_timer_us=30)}, "Lower": {3: Report(wall_timer_us=20)}}
    )
    assert authority.next_wall_timer_us() == 20


def test_a_restart_finds_what_was_known(authority, topology):
    authority.advance({"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})
    restarted = Authority(topology)
    restarted.restore(authority.low_watermarks, authority.reports)

    assert restarted.low_watermarks == authority.low_watermarks
    assert restarted.report("Upper", 0) == Report(hold_us=20)
    assert restarted.report("Upper", 1) == NOTHING_PENDING
