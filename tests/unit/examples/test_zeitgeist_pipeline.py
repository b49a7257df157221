"""The computations of the Zeitgeist example, in a Harness, over made-up weeks of traffic."""

import datetime as dt
import random

import pytest

import millrace as mr
from millrace_examples.zeitgeist.pipeline import build
from millrace_examples.zeitgeist.records import Departure

HOUR, DAY, WEEK = mr.HOUR, mr.DAY, 7 * mr.DAY

#: A Monday, 05:00 UTC: midnight in New York, and no change of clocks for two months.
MONDAY = round(dt.datetime(2013, 1, 7, 5, tzinfo=dt.UTC).timestamp()) * mr.SECOND
OPEN = range(8, 20)
RATE = 8
WEEKS = 4
NOW = MONDAY + WEEKS * WEEK


def hour(at: int, flights: int = RATE):
    """The departures of one hour, evenly spread."""
    return [
        (Departure(key), at + n * HOUR // flights)
        for n in range(flights)
        for key in ("JFK", "JFK-LAX")
    ]


def day(start: int, *closed: int):
    """An ordinary day from 8 to 20 o'clock, without some hours."""
    hours = [start + h * HOUR for h in OPEN if h not in closed]
    return [flight for at in hours for flight in hour(at)]


def days(start: int, end: int):
    return [flight for at in range(start, end, DAY) for flight in day(at)]


@pytest.fixture
def harness():
    """A pipeline that has seen four ordinary weeks, up to midnight of a Monday."""
    with mr.testing.Harness(build()) as h:
        h.inject("departures", days(MONDAY, NOW))
        h.advance_watermark("departures", NOW)
        yield h


def anomalies(h, key="JFK"):
    return [o.value for o in h.outputs("anomalies") if o.value.key == key]


def test_ordinary_weeks_have_no_anomalies(harness):
    assert harness.outputs("anomalies") == []


def test_counts_are_kept_apart_by_key(harness):
    counts = [o.value for o in harness.outputs("counts")]

    assert {c.key for c in counts} == {"JFK", "JFK-LAX"}
    assert all(c.count == RATE for c in counts)
    assert len(counts) == 2 * WEEKS * 7 * len(OPEN)


def test_predictions_are_for_the_next_week_and_begin_after_the_warm_up(harness):
    predictions = [o.value for o in harness.outputs("models") if o.value.key == "JFK"]

    assert min(p.bucket for p in predictions) == MONDAY + 3 * WEEK + 8 * HOUR
    assert max(p.bucket for p in predictions) == NOW + WEEK - 5 * HOUR
    assert all(p.expected == pytest.approx(RATE) for p in predictions)


def test_hours_without_any_record_are_a_dip_once_the_watermark_has_passed(harness):
    harness.advance_watermark("departures", NOW + 16 * HOUR)
    assert harness.outputs("anomalies") == []  # under way: it may go on

    harness.inject("departures", day(NOW, *range(8, 16)) + day(NOW + DAY))
    harness.advance_watermark("departures", NOW + 2 * DAY)

    (dip,) = anomalies(harness)
    assert (dip.kind, dip.start, dip.end) == ("dip", NOW + 8 * HOUR, NOW + 16 * HOUR)
    assert (dip.actual, round(dip.expected)) == (0, 8 * RATE)
    assert 0.999 < dip.confidence <= 1


def test_delayed_records_are_no_dip(harness):
    harness.inject("departures", day(NOW, *range(10, 16)))
    harness.advance_watermark("departures", NOW + 10 * HOUR)
    harness.inject("departures", [flight for h in range(10, 16) for flight in hour(NOW + h * HOUR)])
    harness.advance_watermark("departures", NOW + DAY)

    assert harness.outputs("anomalies") == []


def test_two_quiet_hours_are_no_dip_yet(harness):
    harness.inject("departures", day(NOW, 10, 11))
    harness.advance_watermark("departures", NOW + DAY)

    assert anomalies(harness) == []


def test_dip_over_a_night_is_one_episode(harness):
    harness.inject("departures", day(NOW, *range(14, 20)) + day(NOW + DAY, *range(8, 12)))
    harness.advance_watermark("departures", NOW + 3 * DAY)

    (dip,) = anomalies(harness)
    assert (dip.start, dip.end) == (NOW + 14 * HOUR, NOW + DAY + 12 * HOUR)


def test_key_that_falls_silent_is_reported_once_and_then_forgotten(harness):
    harness.advance_watermark("departures", NOW + 16 * WEEK)

    (dip,) = anomalies(harness)
    assert dip.start == NOW + 8 * HOUR
    assert harness.output_low_watermark("ModelCalculator") == NOW + 16 * WEEK  # no timer is left


def test_spike_is_reported_without_waiting_for_the_watermark(harness):
    for h in range(8, 12):
        harness.inject("departures", hour(NOW + h * HOUR, 3 * RATE))

    (spike,) = anomalies(harness)
    assert (spike.kind, spike.start, spike.end) == ("spike", NOW + 8 * HOUR, NOW + 11 * HOUR)
    assert spike.actual == 3 * 3 * RATE
    assert harness.low_watermark("SpikeDetector") == NOW


def test_spike_is_reported_once_however_long_it_lasts(harness):
    for h in OPEN:
        harness.inject("departures", hour(NOW + h * HOUR, 3 * RATE))
        harness.advance_watermark("departures", NOW + (h - 2) * HOUR)

    assert len(anomalies(harness)) == 1


def test_one_crowded_hour_is_no_spike(harness):
    harness.inject("departures", hour(NOW + 8 * HOUR, 20 * RATE))
    harness.advance_watermark("departures", NOW + 9 * HOUR)

    assert anomalies(harness) == []


def test_late_records_are_left_out_and_counted(harness):
    harness.inject("departures", hour(NOW - 10 * HOUR))

    assert harness.counters("WindowCounter").late == 2 * RATE
    assert len(harness.outputs("partial_counts")) == len(harness.outputs("counts"))


def test_end_of_the_input_is_no_dip(harness):
    harness.inject("departures", day(NOW, *range(14, 20)))
    harness.advance_watermark("departures", mr.MAX_TIMESTAMP)

    assert harness.outputs("anomalies") == []


def test_end_of_the_input_closes_an_episode(harness):
    harness.inject("departures", day(NOW, *range(9, 19)))
    harness.advance_watermark("departures", mr.MAX_TIMESTAMP)

    assert [a.kind for a in anomalies(harness)] == ["dip"]


def story(shuffle: bool = False, crash: bool = False):
    """The anomalies of a week with a dip and a spike, told in epochs of a day."""
    with mr.testing.Harness(build()) as h:
        h.inject("departures", days(MONDAY, NOW))
        h.advance_watermark("departures", NOW)
        for n in range(7):
            start = NOW + n * DAY
            flights = day(start, *(range(10, 18) if n == 2 else ()))
            if n == 4:
                flights += [f for o in range(9, 17) for f in hour(start + o * HOUR, 2 * RATE)]
            if shuffle:
                random.Random(n).shuffle(flights)
            if crash:
                h.crash_in_next_epoch(after_writes=1 + n)
            h.inject("departures", flights)
            h.advance_watermark("departures", start + DAY - 3 * HOUR)
            if crash:
                h.crash()
        return [o.value for o in h.outputs("anomalies")]


def test_outcome_does_not_depend_on_the_order_in_an_epoch():
    undisturbed = story()

    assert {a.kind for a in undisturbed} == {"dip", "spike"}
    assert story(shuffle=True) == undisturbed


def test_crashes_do_not_change_the_outcome():
    assert story(crash=True) == story()
