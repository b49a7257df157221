"""What pins a computation, as its key intervals report it."""

import pytest

import millrace as mr
from millrace.watermark.percentiles import Outstanding
from millrace.watermark.propagation import Pending
from millrace.watermark.report import NOTHING_PENDING, Report


def pins(*reports, percentile=100):
    return Pending.of(reports, spread=True).pins_us(percentile)


def test_nothing_pending_pins_nothing():
    assert pins() == pins(NOTHING_PENDING) == mr.MAX_TIMESTAMP
    assert pins(NOTHING_PENDING, percentile=1) == mr.MAX_TIMESTAMP


@pytest.mark.parametrize(
    "report",
    [
        Report(low_watermark_timer_us=90),
        Report(hold_us=90),
        Report(95, hold_us=90),
        Report(90, 1, 95),
        Report(95, percentile_timers=((50, 97), (99, 90))),
    ],
    ids=str,
)
def test_the_oldest_of_timers_and_holds_pins(report):
    assert pins(NOTHING_PENDING, report) == 90


def test_a_wall_timer_pins_nothing():
    assert pins(Report(wall_timer_us=5)) == mr.MAX_TIMESTAMP


def test_the_oldest_interval_pins():
    assert pins(*(Report(hold_us=at) for at in (95, 80, 99))) == 80


def test_a_share_is_pinned_by_what_is_left_without_the_oldest():
    one = Report(hold_us=10, outstanding=Outstanding.of([10]))
    rest = Report(hold_us=50, outstanding=Outstanding.of(range(50, 59)))

    assert [pins(one, rest, percentile=p) for p in (100, 99, 91, 90, 80, 10)] == [
        10, 10, 10, 50, 51, 58,
    ]  # fmt: skip


def test_work_whose_spread_is_not_known_keeps_every_share_back():
    """As in a checkpoint that was written before its pipeline asked for percentiles."""
    unknown, known = Report(hold_us=30), Report(hold_us=50, outstanding=Outstanding.of([50] * 99))

    assert pins(unknown, known, percentile=1) == 30


@pytest.mark.parametrize(
    ("report", "due"),
    [
        (Report(), False),
        (Report(low_watermark_timer_us=10), True),
        (Report(low_watermark_timer_us=11), False),
        (Report(wall_timer_us=5), True),
        (Report(wall_timer_us=6), False),
        (Report(hold_us=1), False),
        (Report(percentile_timers=((99, 20),)), True),
        (Report(percentile_timers=((99, 21),)), False),
        (Report(percentile_timers=((50, 10),)), True),  # no longer asked for: as the low watermark
        (Report(percentile_timers=((50, 11),)), False),
    ],
)
def test_a_timer_is_due_by_its_own_clock(report, due):
    assert report.due({100: 10, 99: 20}, 5) is due


@pytest.mark.parametrize(
    ("report", "due"),
    [
        (Report(), False),
        (Report(ids_us=mr.MAX_TIMESTAMP - 1), True),
        (Report(low_watermark_timer_us=mr.MAX_TIMESTAMP, timers=1), True),
        (Report(hold_us=5), False),
        (Report(wall_timer_us=6, wall_timers=1), False),
    ],
)
def test_at_the_end_of_time_an_interval_without_a_timer_has_none_due(report, due):
    """That there is none is said by the end of time, at which there can be one."""
    assert report.due({100: mr.MAX_TIMESTAMP, 50: mr.MAX_TIMESTAMP}, 5) is due
