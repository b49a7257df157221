"""The nodes of the paper's figure 1: WindowCounter, ModelCalculator, SpikeDetector, DipDetector.

Each is short because Millrace does the rest: state is per key and survives crashes, a low-watermark
timer fires when all of a bucket's data has arrived, and nothing is counted twice. What the numbers
mean is in `model`.

    flights ─▶ departures ─▶ WindowCounter ─counts─▶ ModelCalculator ─models─┐
                   │               └──────counts────▶ DipDetector ◀───models─┤
                   └───────────────────────────────▶ SpikeDetector ◀──models─┘

A prediction is made a week before its bucket. That is early enough for the spike detector, which
sees a departure long before the low watermark gets there, and it makes the outcome independent of
the order in which counts and predictions reach a detector.
"""

from __future__ import annotations

import millrace as mr

from .model import (
    DIP,
    HOUR,
    NOTHING,
    QUIET_US,
    SPIKE,
    WARM_UP_US,
    Cell,
    Evidence,
    Noise,
    Shift,
    bucket_of,
    hour_of_week,
    learn,
    variance,
    week_later,
    weigh,
)
from .records import Anomaly, Count, Prediction, Traffic

QUIET = "quiet"
"""Tag of the dip detector's timer for an episode to which nothing was added for long."""

LOOK = "look"
"""Tag of the spike detector's timer for the end of the bundle at hand."""


class WindowCounter(mr.Computation):
    """Counts departures by bucket, and sends a count when the low watermark closes its bucket.

    Source: MillWheel, figures 2 and 9 (`Windower`).
    """

    inputs = {"departures": mr.by("key")}
    outputs = {"counts": Count}
    buckets = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count a departure, unless it is late. Millrace keeps count of those."""
        if record.late:
            return
        bucket = bucket_of(record.timestamp)
        count = self.buckets.get(bucket, 0)
        self.buckets[bucket] = count + 1
        if not count:
            self.set_timer(bucket, at=bucket + HOUR)

    def process_timer(self, timer: mr.Timer) -> None:
        """Send the count of the closed bucket."""
        count = Count(self.key, timer.tag, self.buckets.pop(timer.tag))
        self.produce("counts", count, timestamp=timer.at - 1)


class ModelCalculator(mr.Computation):
    """Learns expected traffic by hour of the week, and predicts each bucket a week ahead.

    The cells are its long-term state: they live as long as the key has traffic. A timer a week
    ahead in each of them brings up the buckets without any record, which the model must learn
    from too; it ends with the cell.
    """

    inputs = {"counts": mr.by("key")}
    outputs = {"models": Prediction}
    counts = mr.MapState(int)
    cells = mr.MapState(Cell)
    noise = mr.ValueState(Noise)

    def process_record(self, record: mr.Record) -> None:
        """Keep a count until its bucket's turn has come: the model learns in order of time."""
        count = record.value
        self.counts[count.bucket] = count.count
        self.set_timer(count.bucket, at=count.bucket + HOUR)

    def process_timer(self, timer: mr.Timer) -> None:
        """Learn from the closed bucket, and predict the one a week later."""
        bucket = timer.tag
        if _is_after_the_end(self, self.counts):
            return
        noise = self.noise.get() or Noise(since=bucket)
        hour = hour_of_week(bucket)
        cell, noise = learn(self.cells.get(hour), noise, bucket, self.counts.pop(bucket, 0))
        self.noise.set(noise)
        if cell is None:
            self.cells.pop(hour, None)
            return
        self.cells[hour] = cell
        following = week_later(bucket)
        self.set_timer(following, at=following + HOUR)
        if following - noise.since >= WARM_UP_US:
            prediction = Prediction(self.key, following, cell.mean, variance(cell, noise))
            self.produce("models", prediction, timestamp=timer.at - 1)


class DipDetector(mr.Computation):
    """Reports traffic that stays away, once for each episode, when the episode is over.

    It judges a bucket when the low watermark has passed it: only then a missing departure is known
    to be missing and not just delayed. Both a count and a prediction set that timer, so a bucket
    without any record is judged too. The report waits for the end of the episode because only then
    its extent and loss are known; until then it stands in the state as `evidence`.

    Source: MillWheel, figure 9 (`DipDetector`), and "Low Watermarks" in section 2.
    """

    inputs = {"counts": mr.by("key"), "models": mr.by("key")}
    outputs = {"anomalies": Anomaly, "traffic": Traffic}
    actual = mr.MapState(int)
    predictions = mr.MapState(Prediction)
    evidence = mr.ValueState(Evidence)

    def process_record(self, record: mr.Record) -> None:
        """Keep a count or a prediction until the low watermark passes its bucket."""
        bucket = record.value.bucket
        if record.stream == "models":
            self.predictions[bucket] = record.value
        else:
            self.actual[bucket] = record.value.count
        self.set_timer(bucket, at=bucket + HOUR)

    def process_timer(self, timer: mr.Timer) -> None:
        """Judge a closed bucket, or close an episode that has had no news for long."""
        if timer.tag == QUIET:
            self._close(self.evidence.get())
        elif not _is_after_the_end(self, self.actual):
            self._judge(timer.tag)

    def _judge(self, bucket: int) -> None:
        actual = self.actual.pop(bucket, 0)
        prediction = self.predictions.pop(bucket, None)
        evidence = _weigh(DIP, self.evidence.get(), bucket, actual, prediction)
        self._produce_traffic(bucket, actual, prediction, evidence)
        if evidence is None:
            return
        if evidence.is_over:
            self._close(evidence)
            return
        self.evidence.set(evidence)
        if evidence.is_episode:
            self.set_timer(QUIET, at=evidence.end + QUIET_US)

    def _close(self, evidence: Evidence) -> None:
        if evidence.is_episode:
            self.delete_timer(QUIET)
            self.produce("anomalies", _anomaly(self.key, DIP, evidence))
        self.evidence.set(NOTHING)

    def _produce_traffic(
        self, bucket: int, actual: int, prediction: Prediction | None, evidence: Evidence | None
    ) -> None:
        if "-" in self.key:  # a route; the report shows airports
            return
        expected = None if evidence is None else prediction.expected if prediction else 0.0
        traffic = Traffic(self.key, bucket, actual, expected)
        self.produce("traffic", traffic, timestamp=bucket + HOUR - 1)


class SpikeDetector(mr.Computation):
    """Reports traffic beyond expectation at once, once for each episode.

    It counts departures itself rather than wait for the counts of closed buckets: if the traffic
    so far exceeds the prediction, what is still on its way only adds to it. Buckets that the low
    watermark has passed are folded into `evidence`, which bounds the state.

    All departures of a bundle are counted before it looks, by a timer that is due at once. So the
    outcome does not depend on their order in the bundle, which a retried Spark task may change.

    Source: MillWheel, figure 3, and "Timers" (4.6), second paragraph.
    """

    inputs = {"departures": mr.by("key"), "models": mr.by("key")}
    outputs = {"anomalies": Anomaly}
    actual = mr.MapState(int)
    predictions = mr.MapState(Prediction)
    evidence = mr.ValueState(Evidence)
    reported = mr.ValueState(int)  # end of the last report, us UTC

    def process_record(self, record: mr.Record) -> None:
        """Count a departure, or keep a prediction until the low watermark passes its bucket."""
        if record.stream == "models":
            bucket = record.value.bucket
            self.predictions[bucket] = record.value
            self.set_timer(bucket, at=bucket + HOUR)
        elif not record.late:
            self._count(bucket_of(record.timestamp))

    def process_timer(self, timer: mr.Timer) -> None:
        """Look for a spike in the open buckets, or fold a closed bucket into the evidence."""
        if timer.tag == LOOK:
            self._look()
        else:
            self._fold(timer.tag)

    def _count(self, bucket: int) -> None:
        count = self.actual.get(bucket, 0) + 1
        self.actual[bucket] = count
        if count == 1:
            self.set_timer(bucket, at=bucket + HOUR)
        self.set_timer(LOOK, at=self.wall_time, domain=mr.WALL_TIME)

    def _look(self) -> None:
        evidence = self.evidence.get()
        counted = list(self.actual)
        if evidence is None or not counted:
            return
        # Hours without a departure so far count against a spike, from the oldest open one on.
        oldest = min(counted[0], bucket_of(self.low_watermark))
        for bucket in range(oldest, counted[-1] + HOUR, HOUR):
            prediction = self.predictions.get(bucket)
            evidence = _weigh(SPIKE, evidence, bucket, self.actual.get(bucket, 0), prediction)
            self._report_if_new(evidence)
            if evidence.is_over:
                evidence = NOTHING

    def _fold(self, bucket: int) -> None:
        actual = self.actual.pop(bucket, 0)
        prediction = self.predictions.pop(bucket, None)
        evidence = _weigh(SPIKE, self.evidence.get(), bucket, actual, prediction)
        if evidence is None:
            return
        self._report_if_new(evidence)
        self.evidence.set(NOTHING if evidence.is_over else evidence)

    def _report_if_new(self, evidence: Evidence) -> None:
        if evidence.is_episode and evidence.start >= self.reported.get(0):
            self.reported.set(evidence.end)
            self.produce("anomalies", _anomaly(self.key, SPIKE, evidence), timestamp=evidence.end)


def _weigh(
    shift: Shift,
    evidence: Evidence | None,
    bucket: int,
    actual: int,
    prediction: Prediction | None,
) -> Evidence | None:
    """Return the evidence with one more bucket; None as long as the key has no predictions."""
    if prediction is not None:
        expected, spread = prediction.expected, prediction.variance
    elif evidence is not None:
        expected, spread = 0.0, 0.0
    else:
        return None
    return weigh(shift, evidence or NOTHING, bucket, actual, expected, spread)


def _anomaly(key: str, shift: Shift, evidence: Evidence) -> Anomaly:
    return Anomaly(
        key=key,
        kind=shift.kind,
        start=evidence.start,
        end=evidence.end,
        actual=evidence.peak_actual,
        expected=evidence.peak_expected,
        confidence=evidence.confidence,
    )


def _is_after_the_end(computation: mr.Computation, counts: mr.MapState[int]) -> bool:
    """Return whether the input has ended, and the key has no counts that are still to be judged.

    From here on no traffic means no data, and not a dip. Earlier counts are gone by now: timers
    fire in order of time, and each takes its bucket's count.
    """
    return computation.low_watermark == mr.MAX_TIMESTAMP and not counts
