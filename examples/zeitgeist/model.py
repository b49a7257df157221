"""Expected traffic by hour of the week, and the evidence that real traffic departs from it.

Plain functions and small structs, without Millrace, so that the statistics can be read, tested and
tuned on their own. Three ideas:

**The model** has one `Cell` for each hour of the *local* week with traffic: an exponentially
weighted mean of that hour's counts. Local, because people fly by the clock on the wall: in UTC
every cell would be an hour off for weeks after a change to or from daylight-saving time. A cell
forgets with a horizon of four weeks, which follows the seasons by itself: six weeks and a separate
trend factor predicted the flights of 2013 no better (mean absolute error of the airports' hours
9.5 % instead of 9.0 %).

**The noise** of a count around its expectation is taken as quasi-Poisson: variance = dispersion x
expected. The dispersion is learned but never below 1, plain Poisson. Scheduled traffic is steadier
than that, so Poisson is the cautious choice: what makes flights vary together is weather and
holidays, which is what we look for.

**The evidence** is Page's CUSUM: each bucket adds the log-likelihood ratio between "traffic has
changed by `Shift.ratio`" and "traffic is as expected", and the sum never falls below zero. It is
the quickest test for a given rate of false alarms, it adds up small consistent differences over
many buckets, and it has a scale: by Ville's inequality an excursion of ordinary traffic reaches `s`
nats with a probability of at most exp(-s), hence `confidence`. No bucket may add more than a third
of what a report needs, so one bucket is never enough.

Keys with little traffic need no special case: where half a flight is expected, an hour without one
adds a fifth of a nat at most.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
WEEK = 7 * DAY

LOCAL_ZONE = ZoneInfo("America/New_York")

HORIZON_WEEKS = 4
"""Samples a cell remembers. Airlines change their timetables monthly."""

WARM_UP_US = 3 * WEEK
"""A key is predicted from this age on: three samples are the fewest that outvote a strange one."""

NEGLIGIBLE = 0.2
"""Expected count below which a cell is dropped. Just under 1 / HORIZON_WEEKS: a new weekly flight
starts a cell, a stray one is forgotten a week later. It bounds the work: a key that falls silent
has no cells after some weeks."""

CLIP_DEVIATIONS = 2.0
"""Standard deviations beyond which a count pulls the model no further: an anomaly must not become
the expectation, and yet a lasting change is learned in a few weeks."""

DISPERSION_START = 0.5
DISPERSION_FLOOR = 0.2
"""The learned dispersion may be this low where it decides what to clip; predictions use >= 1."""

DISPERSION_RATE = 0.01
"""Weight of one bucket: about 100 buckets, a working week of an airport."""

REPORT_NATS = 9.0
"""Evidence that makes a report: at most one ordinary excursion in exp(9), or 8,000, gets there."""

BUCKET_NATS_MAX = REPORT_NATS / 3
"""One bucket adds or takes at most this much: a report needs at least three."""

RECOVERY_NATS = 4.0
"""An episode is over once the evidence has fallen this far below its peak (the X-drop of sequence
alignment); its end is the peak, so normal hours are not part of it."""

QUIET_US = 48 * HOUR
"""An episode is over too when nothing was added for this long: longer than any night, and than the
gap between two flights of a daily route."""


def bucket_of(timestamp_us: int) -> int:
    """Return the start of the one-hour bucket that holds a time, both in microseconds UTC."""
    return timestamp_us - timestamp_us % HOUR


@lru_cache(maxsize=4096)
def hour_of_week(bucket_us: int) -> int:
    """Return 0 (Monday 00:00) to 167 (Sunday 23:00), local time, for a bucket start in us UTC."""
    local = datetime.fromtimestamp(bucket_us // SECOND, LOCAL_ZONE)
    return local.weekday() * 24 + local.hour


@lru_cache(maxsize=4096)
def next_alike(bucket_us: int) -> int:
    """Return the next bucket of the same hour of the local week.

    That is 168 hours on, but 167 or 169 where the clocks change, and two weeks where they skip it.

    >>> march_3 = 1362326400 * SECOND  # 2013-03-03 11:00 EST; the clocks go forward on March 10
    >>> (next_alike(march_3) - march_3) // HOUR
    167
    """
    local = datetime.fromtimestamp(bucket_us // SECOND, LOCAL_ZONE)
    for weeks in (1, 2):
        alike = (local + timedelta(weeks=weeks)).replace(fold=0)
        alike_us = bucket_of(round(alike.timestamp()) * SECOND)
        if hour_of_week(alike_us) == hour_of_week(bucket_us):
            break
    return alike_us


class Cell(msgspec.Struct, frozen=True):
    """What is known of one hour of the week.

    Attributes:
        mean: Expected count of the hour.
        weeks: Samples behind it, at most `HORIZON_WEEKS`.
        due: Start of its next bucket, us UTC.
    """

    mean: float
    weeks: int
    due: int


class Model(msgspec.Struct):
    """What is known of a key. It lives for as long as the key has traffic.

    Attributes:
        since: First bucket the key was seen in, us UTC.
        dispersion: Variance over mean of the counts around their expectations, anomalies clipped.
        cells: Hour of the week -> what is known of it. An hour without traffic has no cell.
    """

    since: int
    dispersion: float = DISPERSION_START
    cells: dict[int, Cell] = {}

    def learn(self, bucket_us: int, actual: int) -> Cell | None:
        """Take in one more closed bucket.

        Args:
            bucket_us: Bucket start, us UTC; not before `since`, and in order of time.
            actual: Records counted in the bucket.

        Returns:
            The new cell of the bucket's hour, or None if its expectation is negligible.
        """
        hour, due = hour_of_week(bucket_us), next_alike(bucket_us)
        cell = self.cells.get(hour)
        if cell is None:
            # The weeks before the first record were samples too, of zero.
            weeks = min((bucket_us - self.since) // WEEK + 1, HORIZON_WEEKS)
            cell = Cell(actual / weeks, weeks, due)
        else:
            weeks = min(cell.weeks + 1, HORIZON_WEEKS)
            cell = Cell(cell.mean + self._error(cell, actual) / weeks, weeks, due)
        if cell.mean < NEGLIGIBLE:
            self.cells.pop(hour, None)
            return None
        self.cells[hour] = cell
        return cell

    def variance(self, cell: Cell) -> float:
        """Return the variance of the next count around the cell's mean.

        The mean is itself an average of `weeks` samples and as uncertain as that: 1 + 1 / weeks.
        """
        return cell.mean * max(self.dispersion, 1.0) * (1.0 + 1.0 / cell.weeks)

    def is_ready(self, bucket_us: int) -> bool:
        """Return whether the key was known for long enough to predict this bucket."""
        return bucket_us - self.since >= WARM_UP_US

    def due(self, until_us: int) -> list[int]:
        """Return the next bucket of each cell, of those that start by a time."""
        return [cell.due for cell in self.cells.values() if cell.due <= until_us]

    def _error(self, cell: Cell, actual: int) -> float:
        """Return how far a count is from the mean, clipped, and learn the dispersion from it."""
        scale = max(cell.mean, 1.0)
        reach = CLIP_DEVIATIONS * math.sqrt(scale * self.dispersion)
        error = max(-reach, min(actual - cell.mean, reach))
        self.dispersion += DISPERSION_RATE * (error**2 / scale - self.dispersion)
        self.dispersion = max(self.dispersion, DISPERSION_FLOOR)
        return error


class Shift(msgspec.Struct, frozen=True):
    """The change that a detector looks for.

    Attributes:
        kind: ``"dip"`` or ``"spike"``.
        ratio: Traffic under the change over expected traffic. The break-even of the evidence lies
            between the two: below 0.78 of the expectation for the dip, above 1.23 for the spike.
    """

    kind: str
    ratio: float


DIP = Shift("dip", 0.6)
SPIKE = Shift("spike", 1.5)


class Evidence(msgspec.Struct, frozen=True):
    """Page's CUSUM with the bounds of its current excursion, the (possible) episode.

    Attributes:
        nats: Evidence now; 0 when there is no excursion.
        peak_nats: Its maximum in this excursion.
        start: First bucket of the excursion, us UTC.
        end: End of the bucket in which the maximum was reached, us UTC.
        actual: Records counted from `start` until now.
        expected: Records predicted from `start` until now.
        peak_actual: Records counted from `start` to `end`.
        peak_expected: Records predicted from `start` to `end`.
    """

    nats: float = 0.0
    peak_nats: float = 0.0
    start: int = 0
    end: int = 0
    actual: int = 0
    expected: float = 0.0
    peak_actual: int = 0
    peak_expected: float = 0.0

    @property
    def is_episode(self) -> bool:
        """Whether the excursion went far enough to be reported."""
        return self.peak_nats >= REPORT_NATS

    @property
    def has_recovered(self) -> bool:
        """Whether traffic has been as expected since the peak, or there was no excursion."""
        return self.nats <= max(self.peak_nats - RECOVERY_NATS, 0.0)

    def is_stale(self, at_us: int) -> bool:
        """Return whether there was no news for long, so that the excursion is over."""
        return at_us - self.end >= QUIET_US

    @property
    def confidence(self) -> float:
        """Probability, at least, that ordinary traffic does not come this far, in [0, 1]."""
        return -math.expm1(-self.peak_nats)


NOTHING = Evidence()
"""The evidence between excursions."""


def nats_for(shift: Shift, actual: int, expected: float, variance: float) -> float:
    """Return what one bucket says for the shift (positive) or against it (negative).

    The log-likelihood ratio of Poisson counts is actual x ln(ratio) + expected x (1 - ratio);
    divided by variance over mean it is quasi-Poisson.

    Args:
        shift: The change looked for.
        actual: Count of the bucket.
        expected: Count that the model predicts; 0 where it knows of no traffic.
        variance: Variance of the prediction, at least `expected`.
    """
    nats = actual * math.log(shift.ratio) + expected * (1.0 - shift.ratio)
    if variance > expected:
        nats *= expected / variance
    return max(-BUCKET_NATS_MAX, min(nats, BUCKET_NATS_MAX))


def weigh(
    shift: Shift,
    evidence: Evidence,
    bucket_us: int,
    actual: int,
    expected: float = 0.0,
    variance: float = 0.0,
) -> Evidence:
    """Return the evidence after one more bucket, in order of time.

    Args:
        shift: The change looked for.
        evidence: The evidence up to the bucket before.
        bucket_us: Bucket start, us UTC.
        actual: Its count.
        expected: Its prediction; 0 where the model knows of no traffic.
        variance: Variance of the prediction.
    """
    nats = nats_for(shift, actual, expected, variance)
    if evidence.nats <= 0.0 or evidence.is_stale(bucket_us):
        if nats <= 0.0:
            return NOTHING
        return Evidence(nats, nats, bucket_us, bucket_us + HOUR, actual, expected, actual, expected)
    total = evidence.nats + nats
    actual += evidence.actual
    expected += evidence.expected
    if total > evidence.peak_nats:
        end = bucket_us + HOUR
        return Evidence(total, total, evidence.start, end, actual, expected, actual, expected)
    return msgspec.structs.replace(evidence, nats=total, actual=actual, expected=expected)


def _unless_negligible(cell: Cell) -> Cell | None:
    return cell if cell.mean >= NEGLIGIBLE else None
