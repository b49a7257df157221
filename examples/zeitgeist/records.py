"""The record formats of Zeitgeist's streams. Times are microseconds since the Unix epoch, UTC."""

import msgspec


class Departure(msgspec.Struct, frozen=True):
    """A flight that has departed, to be counted for one key. Its timestamp is the scheduled time.

    Attributes:
        key: An airport, ``"JFK"``, or a route, ``"JFK-LAX"``.
    """

    key: str


class Count(msgspec.Struct, frozen=True):
    """How many departures a closed bucket has.

    Attributes:
        key: Airport or route.
        bucket: Start of the bucket.
        count: Departures in it, at least one: a bucket without any is not sent.
    """

    key: str
    bucket: int
    count: int


class Prediction(msgspec.Struct, frozen=True):
    """What the model expects of a bucket that is still to come.

    Attributes:
        key: Airport or route.
        bucket: Start of the bucket, about a week ahead.
        expected: Departures expected in it.
        variance: Variance of the number of departures around `expected`.
    """

    key: str
    bucket: int
    expected: float
    variance: float


class Anomaly(msgspec.Struct, frozen=True):
    """An episode in which traffic was not as expected.

    Attributes:
        key: Airport or route.
        kind: ``"dip"`` or ``"spike"``.
        start: Start of its first bucket.
        end: End of its last bucket; of a spike, of the bucket in which it was noticed.
        actual: Departures from `start` to `end`.
        expected: Departures expected from `start` to `end`.
        confidence: Probability, at least, that ordinary traffic does not come this far.
    """

    key: str
    kind: str
    start: int
    end: int
    actual: int
    expected: float
    confidence: float


class Traffic(msgspec.Struct, frozen=True):
    """A bucket as the dip detector judged it, for the report.

    Attributes:
        key: Airport.
        bucket: Start of the bucket.
        actual: Departures in it.
        expected: Departures expected; 0 where the model knows of no traffic, None in its warm-up.
    """

    key: str
    bucket: int
    actual: int
    expected: float | None
