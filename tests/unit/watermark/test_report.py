"""What pins a computation's output low watermark."""

import pytest

import millrace as mr
from millrace.watermark.report import NOTHING_PENDING, Report, output_low_watermark


def test_nothing_pending_pins_nothing():
    assert output_low_watermark(100, [NOTHING_PENDING]) == 100
    assert output_low_watermark(100, []) == 100
    assert output_low_watermark(mr.MAX_TIMESTAMP, [NOTHING_PENDING]) == mr.MAX_TIMESTAMP


@pytest.mark.parametrize(
    "report",
    [
        Report(low_watermark_timer_us=90),
        Report(hold_us=90),
        Report(95, hold_us=90),
        Report(90, 1, 95),
    ],
    ids=str,
)
def test_the_oldest_of_timers_and_holds_pins(report):
    assert output_low_watermark(100, [NOTHING_PENDING, report]) == 90


def test_a_wall_timer_pins_nothing():
    assert output_low_watermark(100, [Report(wall_timer_us=5)]) == 100


def test_the_oldest_interval_pins():
    assert output_low_watermark(100, [Report(hold_us=at) for at in (95, 80, 99)]) == 80


def test_work_ahead_of_the_input_does_not_lead_it():
    assert output_low_watermark(100, [Report(low_watermark_timer_us=150)]) == 100
