"""The statistics of the Zeitgeist example: expected traffic, and evidence against it."""

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pytest

from millrace_examples.zeitgeist.model import (
    BUCKET_NATS_MAX,
    DIP,
    HORIZON_WEEKS,
    HOUR,
    NOTHING,
    QUIET_US,
    REPORT_NATS,
    SPIKE,
    WARM_UP_US,
    WEEK,
    Evidence,
    Model,
    bucket_of,
    hour_of_week,
    nats_for,
    next_alike,
    weigh,
)

NEW_YORK = ZoneInfo("America/New_York")


def local(*when: int, fold: int = 0) -> int:
    """A time in New York, in microseconds UTC."""
    return round(dt.datetime(*when, tzinfo=NEW_YORK, fold=fold).timestamp() * 1_000_000)


MONDAY = local(2013, 1, 7, 8)


def taught(*counts: int, since: int = MONDAY) -> Model:
    """A model that has seen these counts at the same hour of successive weeks."""
    model = Model(since=since)
    bucket = since
    for count in counts:
        model.learn(bucket, count)
        bucket = next_alike(bucket)
    return model


def weighed(shift, pairs, evidence=NOTHING, start=MONDAY) -> Evidence:
    """The evidence after hourly (actual, expected) pairs."""
    for n, (actual, expected) in enumerate(pairs):
        evidence = weigh(shift, evidence, start + n * HOUR, actual, expected, expected)
    return evidence


class TestHours:
    def test_bucket_starts_with_its_first_microsecond(self):
        assert bucket_of(MONDAY) == MONDAY
        assert bucket_of(MONDAY + HOUR - 1) == MONDAY
        assert bucket_of(MONDAY + HOUR) == MONDAY + HOUR

    def test_week_begins_on_monday_at_midnight_in_new_york(self):
        assert hour_of_week(local(2013, 1, 7, 0)) == 0
        assert hour_of_week(local(2013, 1, 6, 23)) == 167

    def test_hour_of_week_is_the_same_in_summer_and_winter(self):
        assert hour_of_week(local(2013, 1, 7, 8)) == hour_of_week(local(2013, 7, 1, 8)) == 8

    @pytest.mark.parametrize(
        ("before", "after", "hours"),
        [
            ((2013, 1, 7, 8), (2013, 1, 14, 8), 168),
            ((2013, 3, 4, 8), (2013, 3, 11, 8), 167),
            ((2013, 10, 28, 8), (2013, 11, 4, 8), 169),
        ],
    )
    def test_next_alike_keeps_the_local_hour(self, before, after, hours):
        assert next_alike(local(*before)) == local(*after)
        assert local(*after) - local(*before) == hours * HOUR

    def test_hour_that_the_clocks_skip_is_awaited_two_weeks_on(self):
        assert next_alike(local(2013, 3, 3, 2)) == local(2013, 3, 17, 2)

    @pytest.mark.parametrize("fold", [0, 1])
    def test_both_of_the_hours_that_the_clocks_repeat_lead_to_the_same_one(self, fold):
        twice = local(2013, 11, 3, 1, fold=fold)

        assert next_alike(local(2013, 10, 27, 1)) == local(2013, 11, 3, 1, fold=0)
        assert next_alike(twice) == local(2013, 11, 10, 1)


class TestModel:
    def test_first_weeks_are_averaged(self):
        model = taught(10, 12, 11)

        cell = model.cells[hour_of_week(MONDAY)]
        assert cell.mean == pytest.approx(11)
        assert cell.weeks == 3

    def test_later_weeks_weigh_one_in_the_horizon(self):
        before = taught(*[10] * 8).cells[8].mean
        after = taught(*[10] * 8, 11).cells[8]

        assert after.weeks == HORIZON_WEEKS
        assert after.mean - before == pytest.approx(1 / HORIZON_WEEKS)

    def test_hour_first_seen_late_had_none_before(self):
        model = Model(since=MONDAY)

        cell = model.learn(MONDAY + 3 * WEEK + 2 * HOUR, 2)

        assert cell.mean == pytest.approx(2 / 4)
        assert cell.weeks == 4

    def test_stray_record_is_forgotten_after_a_week(self):
        model = Model(since=MONDAY)
        stray = MONDAY + 10 * WEEK

        assert model.learn(stray, 1) is not None
        assert model.learn(next_alike(stray), 0) is None
        assert model.cells == {}

    def test_silent_key_has_no_cells_after_some_weeks(self):
        model = taught(*[2] * 10)
        bucket, weeks = model.cells[8].due, 0

        while model.cells:
            model.learn(bucket, 0)
            bucket, weeks = next_alike(bucket), weeks + 1

        assert weeks <= 3 * HORIZON_WEEKS

    def test_anomaly_hardly_moves_the_expectation(self):
        normal = taught(*[25] * 10).cells[8].mean
        after_storm = taught(*[25] * 10, 0).cells[8].mean

        assert normal == pytest.approx(25)
        assert after_storm > 23

    def test_lasting_change_is_learned_in_weeks(self):
        assert taught(*[20] * 10, *[30] * 10).cells[8].mean == pytest.approx(30, rel=0.1)

    def test_dispersion_is_learned_from_noisy_traffic(self):
        noisy, steady = taught(*[5, 35] * 60), taught(*[20, 21] * 60)

        assert noisy.dispersion > 1 > steady.dispersion

    def test_variance_is_never_below_poisson_and_falls_with_samples(self):
        once, often = taught(9), taught(*[9] * 10)

        assert once.variance(once.cells[8]) == pytest.approx(9 * 2)
        assert often.variance(often.cells[8]) == pytest.approx(9 * 1.25)

    def test_predictions_begin_after_the_warm_up(self):
        model = Model(since=MONDAY)

        assert not model.is_ready(MONDAY + WARM_UP_US - HOUR)
        assert model.is_ready(MONDAY + WARM_UP_US)

    def test_cells_are_due_a_week_after_they_were_learned(self):
        model = taught(5)

        assert model.due(MONDAY + WEEK - 1) == []
        assert model.due(MONDAY + WEEK) == [MONDAY + WEEK]


class TestEvidence:
    @pytest.mark.parametrize(
        ("shift", "actual", "sign"),
        [(DIP, 7, 1), (DIP, 8, -1), (SPIKE, 12, -1), (SPIKE, 13, 1)],
    )
    def test_break_even_lies_between_normal_and_shifted(self, shift, actual, sign):
        assert math.copysign(1, nats_for(shift, actual, 10.0, 10.0)) == sign

    def test_uncertain_prediction_says_less(self):
        assert nats_for(DIP, 2, 6.0, 12.0) == pytest.approx(nats_for(DIP, 2, 6.0, 6.0) / 2)

    def test_one_bucket_says_at_most_a_third_of_a_report(self):
        assert nats_for(DIP, 0, 1000.0, 1000.0) == BUCKET_NATS_MAX == REPORT_NATS / 3
        assert nats_for(DIP, 1000, 0.0, 0.0) == -BUCKET_NATS_MAX

    @pytest.mark.parametrize(("hours", "reported"), [(1, False), (2, False), (3, True)])
    def test_confidence_takes_several_buckets(self, hours, reported):
        assert weighed(DIP, [(0, 25.0)] * hours).is_episode is reported

    def test_ordinary_traffic_is_no_evidence(self):
        assert weighed(DIP, [(9, 10.0), (11, 10.0)] * 50).nats == 0
        assert weighed(SPIKE, [(9, 10.0), (11, 10.0)] * 50).nats == 0

    def test_small_differences_add_up(self):
        evidence = weighed(DIP, [(6, 10.0)] * 10)

        assert evidence.is_episode
        assert 0.999 < evidence.confidence < 1

    def test_little_traffic_reaches_no_report_in_a_day(self):
        assert not weighed(DIP, [(0, 0.5)] * 24).is_episode

    def test_episode_ends_at_its_peak(self):
        evidence = weighed(DIP, [(0, 20.0)] * 4 + [(18, 20.0)] * 2)

        assert evidence.start == MONDAY
        assert evidence.end == MONDAY + 4 * HOUR
        assert (evidence.peak_actual, evidence.peak_expected) == (0, 80.0)
        assert evidence.actual == 36

    def test_recovery_ends_an_episode(self):
        storm = weighed(DIP, [(0, 20.0)] * 6)

        assert not storm.has_recovered
        assert weighed(DIP, [(20, 20.0)] * 2, storm, start=storm.end).has_recovered

    def test_night_without_traffic_does_not(self):
        storm = weighed(DIP, [(0, 20.0)] * 6)

        assert not weighed(DIP, [(0, 0.0)] * 8, storm, start=storm.end).has_recovered

    @pytest.mark.parametrize(("wait", "starts_anew"), [(QUIET_US - HOUR, False), (QUIET_US, True)])
    def test_bucket_after_a_long_silence_starts_anew(self, wait, starts_anew):
        storm = weighed(DIP, [(0, 20.0)] * 6)

        later = weigh(DIP, storm, storm.end + wait, 0, 20.0, 20.0)

        assert (later.start == storm.end + wait) is starts_anew
