"""Trips on which a pipeline fails until it is mended, and their letters, on both planes."""

from __future__ import annotations

import itertools
import random
import unittest.mock as mock
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import millrace as mr
from millrace.injectors.dead_letters import LetterLog, bind_letters
from millrace.injectors.follower import Polling
from millrace.inspect.dead_letters import send
from millrace.store import Mailbox, MemoryBlobs
from tests.live import Feeds, InEpochs, Kept, Live

AGAIN = "dead-letters.again"

#: Taxi, fare, time.
TRIPS = (("T1", -1.0, mr.HOUR), ("T2", 2.0, mr.HOUR), ("T3", 3.0, mr.HOUR))


class Trip(msgspec.Struct):
    taxi: str
    fare: float


class Faulty(mr.Computation):
    """Fails on negative fares while the code is not mended."""

    may_produce_late = mr.UNBOUNDED_PAST
    inputs = {"trips": mr.by("taxi")}
    outputs = {"seen": tuple}
    mended = False

    def process_record(self, record: mr.Record) -> None:
        if record.value.fare < 0 and not self.mended:
            raise ValueError(f"{record.value.fare} is negative")
        self.produce("seen", (record.value.fare, record.timestamp, record.late))


class Mended(Faulty):
    mended = True


class Total(mr.Computation):
    """Reads the same trips, and fails on none."""

    inputs = {"trips": mr.by("taxi")}
    outputs = {"totals": float}
    total = mr.ValueState[float](float)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0.0) + record.value.fare)
        self.produce("totals", self.total.get())


class Dying(Mailbox):
    """A mailbox whose user dies at some call, before or after it was done."""

    def __init__(self) -> None:
        super().__init__(MemoryBlobs())
        self.left: float = float("inf")

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("died")

    def put(self, name: str, data: bytes) -> bool:
        self._live()
        done = super().put(name, data)
        self._live()
        return done


class Planes:
    """A pipeline that fails, then is mended, with its letters in a mailbox.

    Args:
        native: Whether keys are in columns.
        trips: No two of one taxi.
    """

    def __init__(self, *, native: bool, trips: Sequence[tuple[str, float, int]] = TRIPS) -> None:
        self.mailbox = Dying()
        self.trips = trips
        self.feeds = Feeds("taxi string, fare double, at long", {"p": trips})
        self.rejects, self.seen, self.totals = Kept(), Kept(), Kept()
        self.native = native

    def pipeline(self, seen: type[mr.Computation]) -> mr.Pipeline:
        p = mr.Pipeline("taxis")
        policy = mr.BoundedDelay(0)
        p.inject("trips", self.feeds, timestamp="at", unit="us", low_watermark=policy, format=Trip)
        if not self.native:
            p.stream("trips").filter(lambda trip: trip.taxi != "").to("others", format=Trip)
        p.add(seen, name="Seen")
        p.add(Total)
        p.dead_letter("rejects", again=True)
        for stream, sink in (
            ("rejects", self.rejects), ("seen", self.seen), ("totals", self.totals),
        ):  # fmt: skip
            p.sink(stream, sink)
        return p

    def bind(self, live: Live) -> None:
        bind_letters(live.topology, self.mailbox)
        source = live.injectors[AGAIN]

        def follow(places: Mapping[str, Any], *, most: int = 100_000) -> Polling:
            return Polling(source, places, most=most, clock=itertools.count().__next__)

        source.follow = follow

    def send(self) -> int:
        names = mr.DeadLetter.__struct_fields__
        rows = (
            (row["_id"], mr.DeadLetter(**{name: row[name] for name in names}))
            for row in self.rejects.rows
        )
        return send(LetterLog(self.mailbox), rows).sent

    def check(self) -> None:
        """Check that each trip has counted once for each of its readers."""
        fares = sorted(fare for _, fare, _ in self.trips)
        seen = sorted(msgspec.json.decode(row["value"])[0] for row in self.seen.rows)
        assert seen == fares
        assert sorted(row["value"] for row in self.totals.rows) == fares


class _Bound(Live):
    """A run that is given the letters whenever a driver takes it over."""

    def __init__(self, planes: Planes) -> None:
        self.planes = planes
        super().__init__(planes.pipeline(Faulty), tasks=2)

    def open(self) -> None:
        super().open()
        self.planes.bind(self)


def play(seed: int) -> None:
    """Fail, send letters again, crash, go from plane to plane, be mended; then check.

    Whoever sends dies at times, and sends again what is in the sink.
    """
    rng = random.Random(seed)
    with mock.patch("millrace.injectors.dead_letters._LETTERS", rng.randrange(1, 4)):
        _play(rng)


def _play(rng: random.Random) -> None:
    trips = [(f"T{n}", rng.choice((-1.0, 1.0)) * n, mr.HOUR + n) for n in range(1, 13)]
    planes = Planes(native=rng.random() < 0.5, trips=trips)
    live = _Bound(planes)
    mended = rng.randrange(1, 5)
    for phase in range(6):
        if phase == mended:
            live.pipeline = planes.pipeline(Mended)
        if rng.random() < 0.4:
            epochs = InEpochs(live)
            bind_letters(live.topology, planes.mailbox)
            for _ in range(rng.randrange(1, 4)):
                live.feed(planes.feeds.limit + rng.randrange(5))
                epochs.run(live.clock_us)
                _send(planes, rng)
                live.clock_us += mr.SECOND
            continue
        live.open()
        live.boot()
        for _ in range(3):
            live.play(rng, turns=rng.randrange(40), crash=0.04, mark=0.1)
            _send(planes, rng)
        live.boot()
        live.plane.end(live.clock_us)
    live.pipeline = planes.pipeline(Mended)
    live.open()
    live.boot()
    live.feed(len(trips))
    for _ in range(3):  # what failed before it was mended is in the sink with the first mark
        live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
        planes.send()
    live.finish()
    assert live.coordinator.ended
    planes.check()


def _send(planes: Planes, rng: random.Random) -> None:
    """Send what is in the sink, or die over it."""
    planes.mailbox.left = rng.choice((0, 1, 2, 3, float("inf")))
    try:
        planes.send()
    except ConnectionError:
        pass
    finally:
        planes.mailbox.left = float("inf")
