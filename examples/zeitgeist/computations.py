"""The nodes of the paper's figure 1: WindowCounter, ModelCalculator, SpikeDetector, DipDetector.

Each is short because Millrace does the rest: state is per key and survives crashes, a low-watermark
timer fires when all of a bucket's data has arrived, and nothing is counted twice. What the numbers
mean is in `model`.

    departures ─▶ WindowCounter ─ counts ─┬─▶ ModelCalculator ─ models ─┬─▶ DipDetector
                        │                 └─────────────────────────────│──▶     ″
                        └─ partial_counts ──────────────────────────────┴─▶ SpikeDetector

A prediction is made a week before its bucket. That is early enough for the spike detector, which
sees a departure long before the low watermark gets there, and it makes the outcome independent of
the order in which counts and predictions reach a detector.

The three consumers keep one timer a key, not one a bucket: it goes off when their first open bucket
is closed, and all that are closed by then are taken in order. Timers that are due at once, in
either domain, stand for the end of the bundle: they fire after its records.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import takewhile

import millrace as mr

from .model import DIP, HOUR, NOTHING, QUIET_US, SPIKE, Evidence, Model, Shift, bucket_of, weigh
from .records import Anomaly, Count, Prediction, Traffic

CLOSED = "closed"
"""Tag of the timer for the first open bucket."""


class WindowCounter(mr.Computation):
    """Counts departures by bucket, and sends a count when the low watermark closes its bucket.

    It also sends what a bucket has so far at the end of each bundle that adds to it, for those who
    cannot wait. That makes no difference to the order of the records in the bundle, which a retried
    Spark task may change.

    Source: MillWheel, figures 2 and 9 (`Windower`).
    """

    inputs = {"departures": mr.by("key")}
    outputs = {"counts": Count, "partial_counts": Count}
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
        # Due at once, and before the other, should the bucket be closed in this bundle.
        self.set_timer(bucket, at=min(bucket, self.wall_time), domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        """Send the count of the closed bucket, or of one that has got more."""
        bucket = timer.tag
        if timer.domain is mr.WALL_TIME:
            stream, count = "partial_counts", self.buckets[bucket]
        else:
            stream, count = "counts", self.buckets.pop(bucket)
        self.produce(stream, Count(self.key, bucket, count), timestamp=bucket + HOUR - 1)


class ModelCalculator(mr.Computation):
    """Learns expected traffic by hour of the week, and predicts each bucket a week ahead.

    The model is its long-term state. It must learn from buckets without any record too, so the
    timer is set for the first bucket that has traffic by the model.
    """

    inputs = {"counts": mr.by("key")}
    outputs = {"models": Prediction}
    counts = mr.MapState(int)
    model = mr.ValueState(Model)
    new_model = Model

    def process_record(self, record: mr.Record) -> None:
        """Keep a count until the end of the bundle: the model learns in order of time."""
        self.counts[record.value.bucket] = record.value.count
        self.set_timer(CLOSED, at=self.low_watermark)

    def process_timer(self, timer: mr.Timer) -> None:
        """Learn from the closed buckets, and predict those a week later."""
        counts = dict(self.counts.items())
        last = _last_closed(self, counts)
        if last is None:
            return
        model = self.model.get() or self.new_model(since=min(counts))
        closed = list({*counts, *model.due(last)})
        heapq.heapify(closed)
        while closed:
            bucket = heapq.heappop(closed)
            cell = model.learn(bucket, counts.get(bucket, 0))
            if cell is None:
                continue
            if cell.due <= last and cell.due not in counts:
                heapq.heappush(closed, cell.due)  # the low watermark went more than a week ahead
            if model.is_ready(cell.due):
                prediction = Prediction(self.key, cell.due, cell.mean, model.variance(cell))
                self.produce("models", prediction, timestamp=bucket + HOUR - 1)
        self.counts.clear()
        self.model.set(model)
        if model.cells and self.low_watermark < mr.MAX_TIMESTAMP:
            first = min(cell.due for cell in model.cells.values())
            self.set_timer(CLOSED, at=first + HOUR)


class DipDetector(mr.Computation):
    """Reports traffic that stays away, once for each episode, when the episode is over.

    It judges a bucket when the low watermark has passed it: only then a missing departure is known
    to be missing and not just delayed. The timer is set for the first predicted bucket, so one
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
        if record.stream == "models":
            self.predictions[record.value.bucket] = record.value
        else:
            self.actual[record.value.bucket] = record.value.count
        self.set_timer(CLOSED, at=self.low_watermark)

    def process_timer(self, timer: mr.Timer) -> None:
        """Judge the closed buckets, and report an episode that is over."""
        actual = dict(self.actual.items())
        last = _last_closed(self, actual)
        evidence = self.evidence.get()
        if last is not None:
            for bucket in _buckets(actual, self.predictions, last):
                evidence = self._judge(evidence, bucket, actual.get(bucket))
        if evidence is not None and evidence.is_stale(self.low_watermark):
            evidence = self._close(evidence)
        self.evidence.set(evidence)
        self._set_timer_for_next(evidence)

    def _judge(self, evidence: Evidence | None, bucket: int, actual: int | None) -> Evidence | None:
        if evidence is not None and evidence.is_stale(bucket):
            evidence = self._close(evidence)
        prediction = self.predictions.get(bucket)
        if prediction is not None:
            del self.predictions[bucket]
        if actual is not None:
            del self.actual[bucket]
        evidence = _weigh(DIP, evidence, bucket, actual or 0, prediction)
        self._produce_traffic(bucket, actual or 0, prediction, evidence)
        if evidence is not None and evidence.has_recovered:
            evidence = self._close(evidence)
        return evidence

    def _close(self, evidence: Evidence) -> Evidence:
        if evidence.is_episode:
            self.produce("anomalies", _anomaly(self.key, DIP, evidence))
        return NOTHING

    def _set_timer_for_next(self, evidence: Evidence | None) -> None:
        if self.low_watermark == mr.MAX_TIMESTAMP:
            return
        following = next(iter(self.predictions), None)
        if following is not None:
            self.set_timer(CLOSED, at=following + HOUR)
        elif evidence is not None and evidence.is_episode:
            self.set_timer(CLOSED, at=evidence.end + QUIET_US)

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

    It takes the counts so far rather than wait for those of closed buckets: if the traffic already
    exceeds the prediction, what is still on its way only adds to it. Buckets that the low watermark
    has passed by then are folded into `evidence`, which bounds the state.

    Source: MillWheel, figure 3, and "Timers" (4.6), second paragraph.
    """

    inputs = {"partial_counts": mr.by("key"), "models": mr.by("key")}
    outputs = {"anomalies": Anomaly}
    actual = mr.MapState(int)
    predictions = mr.MapState(Prediction)
    evidence = mr.ValueState(Evidence)
    reported = mr.ValueState(int)  # end of the last report, us UTC

    def process_record(self, record: mr.Record) -> None:
        """Keep a prediction, or a count so far, to be looked at when the bundle is complete."""
        if record.stream == "models":
            self.predictions[record.value.bucket] = record.value
        else:
            self.actual[record.value.bucket] = record.value.count
            self.set_timer("look", at=self.wall_time, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        """Weigh the buckets up to the newest one with a departure."""
        counts = dict(self.actual.items())
        evidence = folded = self.evidence.get()
        for bucket in _buckets(counts, self.predictions, max(counts)):
            prediction = self.predictions.get(bucket)
            evidence = _weigh(SPIKE, evidence, bucket, counts.get(bucket, 0), prediction)
            if evidence is not None:
                self._report_if_new(evidence)
                if evidence.has_recovered:
                    evidence = NOTHING
            if bucket + HOUR <= self.low_watermark:
                folded = evidence
                if bucket in counts:
                    del self.actual[bucket]
                if prediction is not None:
                    del self.predictions[bucket]
        self.evidence.set(folded)

    def _report_if_new(self, evidence: Evidence) -> None:
        if evidence.is_episode and evidence.start >= self.reported.get(0):
            self.reported.set(evidence.end)
            self.produce("anomalies", _anomaly(self.key, SPIKE, evidence), timestamp=evidence.end)


def _last_closed(computation: mr.Computation, counts: Iterable[int]) -> int | None:
    """Return the last bucket that the low watermark has closed, or None if there is none.

    At the end of the input it is the last one with a count: from there on no traffic means no data,
    and not a dip.
    """
    if computation.low_watermark == mr.MAX_TIMESTAMP:
        return max(counts, default=None)
    return bucket_of(computation.low_watermark) - HOUR


def _buckets(actual: Iterable[int], predictions: Iterable[int], last: int) -> list[int]:
    """Return the buckets up to the last that were counted or predicted, in order of time."""
    return sorted({*takewhile(last.__ge__, actual), *takewhile(last.__ge__, predictions)})


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
