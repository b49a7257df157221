"""Instants and durations: how they may be written, and what is refused."""

import datetime as dt

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    duration_us,
    format_timestamp,
    in_microseconds,
    likelier_unit,
    timestamp_us,
)


@pytest.mark.parametrize(
    ("written", "us"),
    [
        (0, 0),
        (7, 7),
        (dt.timedelta(microseconds=1), 1),
        (dt.timedelta(days=1, microseconds=1), mr.DAY + 1),
        ("1 us", 1),
        ("250 ms", 250 * mr.MILLISECOND),
        ("250ms", 250 * mr.MILLISECOND),
        ("5 min", 5 * mr.MINUTE),
        ("5 minutes", 5 * mr.MINUTE),
        ("1 m", mr.MINUTE),
        ("1.5 s", 1_500_000),
        ("1h 30m", 90 * mr.MINUTE),
        ("1 h 30 min", 90 * mr.MINUTE),
        (" 2 Days ", 2 * mr.DAY),
        ("1 week", 7 * mr.DAY),
    ],
    ids=repr,
)
def test_a_duration_may_be_written_as(written, us):
    assert duration_us(written) == us


@pytest.mark.parametrize(
    "written",
    ["", " ", "5", "min", "5 parsecs", "-5 min", "5 min later", "1e3 s", -1, 1.5, True, None,
     dt.timedelta(microseconds=-1), mr.WALL_TIME],
    ids=repr,
)  # fmt: skip
def test_what_is_no_duration_is_refused(written):
    with pytest.raises(PipelineError, match="is not a duration"):
        duration_us(written)


@pytest.mark.parametrize(
    "written",
    ["9" * 400 + " s", "100000000000 d", 2**62 + 1, 2**70, dt.timedelta.max],
    ids=lambda written: repr(written)[:20],
)
def test_a_duration_that_no_instant_could_be_added_to_is_refused(written):
    for declare in (duration_us, mr.FixedWindows, mr.BoundedDelay, mr.AfterDelay):
        with pytest.raises(PipelineError, match="longer than all time"):
            declare(written)
    with pytest.raises(PipelineError, match="longer than all time"):
        mr.ValueState(int, expires=written)


def test_a_window_ends_at_a_time_that_there_is():
    for windows in (mr.FixedWindows, mr.Sessions, lambda size: mr.SlidingWindows(size, size)):
        with pytest.raises(PipelineError, match="longer than 73,000 years"):
            windows(2**62)
        windows(2**61)
    assert duration_us(mr.UNBOUNDED_PAST) == mr.UNBOUNDED_PAST


def test_an_instant_may_be_microseconds():
    assert timestamp_us(-7) == -7


def test_a_datetime_is_its_instant_whatever_its_zone():
    utc = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    elsewhere = utc.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))

    assert timestamp_us(utc) == timestamp_us(elsewhere) == 1_714_564_800_000_000


def test_a_datetime_keeps_its_last_microsecond():
    assert timestamp_us(dt.datetime(2262, 4, 11, 23, 47, 16, 854_775, tzinfo=dt.UTC)) == (
        LATEST_RECORD
    )


def test_a_datetime_without_a_zone_names_no_instant():
    with pytest.raises(PipelineError, match="no time zone"):
        timestamp_us(dt.datetime(2024, 5, 1))
    with pytest.raises(PipelineError, match="no time zone"):
        timestamp_us("2024-05-01")


@pytest.mark.parametrize(
    "written", ["yesterday", 1.5, True, None, dt.date(2024, 5, 1), mr.LOW_WATERMARK], ids=repr
)
def test_what_is_no_instant_is_refused(written):
    with pytest.raises(PipelineError, match="is not an instant"):
        timestamp_us(written)


def test_the_ends_of_time_lie_beyond_every_record():
    assert mr.MIN_TIMESTAMP < EARLIEST_RECORD < LATEST_RECORD < mr.MAX_TIMESTAMP


def test_a_duration_added_to_an_end_of_time_still_fits_64_bits():
    assert mr.MAX_TIMESTAMP + 146_000 * 365 * mr.DAY < 2**63
    assert mr.MIN_TIMESTAMP - 146_000 * 365 * mr.DAY >= -(2**63)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (1, "1970-01-01T00:00:00.000001Z"),
        (mr.MAX_TIMESTAMP - 1, f"{mr.MAX_TIMESTAMP - 1} us"),
        (mr.MAX_TIMESTAMP, "end of time"),
        (mr.MIN_TIMESTAMP, "before time"),
    ],
)
def test_every_instant_can_be_shown(us, text):
    assert format_timestamp(us) == text


NOW = 1_795_000_000 * mr.SECOND  # in November 2026


@pytest.mark.parametrize(
    ("unit", "number", "us"),
    [
        ("s", 3, 3_000_000),
        ("ms", 3, 3_000),
        ("us", 3, 3),
        ("ns", 3_999, 3),
        (None, 3, 3),
    ],
)
def test_an_integer_of_a_unit(unit, number, us):
    assert in_microseconds(number, unit) == us


@pytest.mark.parametrize(
    ("number", "unit"),
    [
        (0, None),
        (999_999_999, None),
        (1_000_000_000, "s"),
        (1_795_000_000, "s"),
        (1_795_000_001, None),
        (999_999_999_999, None),
        (1_000_000_000_000, "ms"),
        (1_795_000_000_000, "ms"),
        (1_795_000_000_001, None),
        (1_000_000_000_000_000, None),
        (NOW, None),
    ],
)
def test_which_integers_are_hardly_microseconds(number, unit):
    assert likelier_unit(number, NOW) == unit


def test_a_unit_that_is_none():
    p = mr.Pipeline("p")
    with pytest.raises(PipelineError, match=r"inject\('s', unit\): 'millis' is no unit.*\"ms\""):
        p.inject("s", timestamp="at", unit="millis")
    with pytest.raises(PipelineError, match=r"unit='ms'\) gives the unit of a column.*timestamp="):
        p.inject("s", unit="ms")
    with pytest.raises(PipelineError, match=r"WatermarkColumn\(unit\): 5 is no unit"):
        mr.WatermarkColumn("until", unit=5)
    with pytest.raises(PipelineError, match=r"with_timestamps\(unit\): 'm' is no unit"):
        p.inject("s").with_timestamps("at", unit="m")
