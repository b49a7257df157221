"""A pipeline changes between two runs in real time, or of one plane and the other."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch
from tests.live import Feeds, InEpochs, Kept, Live


class Event(msgspec.Struct):
    key: int
    value: int
    at: int


def feeds(seed: int = 1) -> Feeds:
    rng = random.Random(seed)
    rows = [
        [(rng.randrange(12), rng.randrange(100), 1_000_000 * i) for i in range(60)]
        for _ in range(3)
    ]
    return Feeds("key long, value long, at long", {f"p{n}": one for n, one in enumerate(rows)})


class Counted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("counts", self.count.get())


class Passed(mr.Computation):
    """Stands in front of who counts: everybody else is a level deeper."""

    inputs = {"events": mr.by("key")}
    outputs = {"passed": Event}

    def process_record(self, record: mr.Record) -> None:
        self.produce("passed", record.value)


class CountedBehind(Counted):
    inputs = {"passed": mr.by("key")}


class InHundreds(Counted):
    """Counts hundredths, and how often since it does."""

    count = mr.ValueState(int)
    since = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.since.add(1)
        self.count.set(self.count.get(0) + 100)
        self.produce("counts", self.count.get() // 100)


def to_hundreds(count: int) -> int:
    return 100 * count


class Parity(mr.Computation):
    inputs = {"counts": mr.by(lambda count: count % 2)}
    outputs = {"parities": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("parities", f"{self.key}: {self.count.get()}")


def pipeline(source: Feeds, kept: Kept, counting: Any, *more: Any, **how: Any) -> mr.Pipeline:
    p = mr.Pipeline("changing")
    policy = mr.BoundedDelay("5 s")
    p.inject("events", source, timestamp="at", low_watermark=policy, format=Event)
    p.add(counting, name="Counted", **how)
    for computation in more:
        p.add(computation)
    p.sink("counts", kept)
    return p


def versions(source: Feeds, kept: Kept) -> list[mr.Pipeline]:
    found = [
        pipeline(source, kept, Counted),
        pipeline(source, kept, Counted, Parity),
        pipeline(source, kept, CountedBehind, Parity, Passed),
        pipeline(source, kept, InHundreds, Parity, migrate={"count": to_hundreds}),
        pipeline(source, kept, InHundreds),
    ]
    found[3].remove("Passed")
    found[4].remove("Parity")
    found[4].remove("Passed")
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("planes", ["live", "both"])
def test_no_event_is_lost_or_counted_twice_through_changes_and_crashes(
    seed: int, planes: str
) -> None:
    source, kept, rng = feeds(), Kept(), random.Random(seed)
    first, *changed = versions(source, kept)
    live = Live(first)
    live.boot()
    for n, version in enumerate([first, *changed]):
        live.pipeline = version
        if planes == "both" and n % 2:
            epochs = InEpochs(live)
            for _ in range(3):
                source.limit += rng.randrange(1, 6)
                epochs.run(live.clock_us)
            continue
        if n:
            live.open()
            live.boot()
        live.play(rng, turns=200, crash=0.02, mark=0.1)
        live.boot()
        live.plane.settle(live.clock_us)
        live.plane.end(live.clock_us)
        assert live.coordinator.ended
    live.open()
    live.boot()
    live.finish()

    keys = Counter(row[0] for rows in source.feeds.values() for row in rows)
    expected = Counter(n for count in keys.values() for n in range(1, count + 1))
    assert Counter(row["value"] for row in kept.rows) == expected
    assert len({row["_id"] for row in kept.rows}) == len(kept.rows)


def test_after_a_crash_in_real_time_the_pipeline_as_it_was_goes_on_first() -> None:
    source, kept = feeds(), Kept()
    first, second, *_ = versions(source, kept)
    live = Live(first)
    live.boot()
    live.feed(9)
    live.plane.settle(live.clock_us)
    live.plane.crash()
    live.pipeline = second
    with pytest.raises(CheckpointMismatch, match=r"epoch 0 .* is unfinished"):
        live.open()
    live.pipeline = first
    live.open()
    live.boot()
    live.plane.settle(live.clock_us)
    live.plane.end(live.clock_us)
    live.pipeline = second
    live.open()


class Died(Exception):
    """The driver has."""


@pytest.mark.parametrize("seed", range(4))
def test_tasks_that_went_on_beyond_a_mark_whose_driver_died_then_are_gone_on_with_as_they_were(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks do not wait for the driver, and know nothing of it."""
    source, kept, rng = feeds(), Kept(), random.Random(seed)
    first, second, *_ = versions(source, kept)
    live = Live(first)
    live.boot()
    live.feed(9)
    live.coordinator.mark_soon()

    def died() -> None:
        raise Died

    monkeypatch.setattr(live.run_log, "renew_claim", died)
    with pytest.raises(Died):
        live.play(rng, turns=10_000)
    assert live.run_log.completed == 0
    for _ in range(3):
        live.feed(3 + max(one.limit for one in live.fed()))
        for level, task in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            live.plane.turn((level, task), live.clock_us, 4)
    live.plane.crash()

    live.pipeline = second
    with pytest.raises(CheckpointMismatch, match=r"epoch 1 .* is unfinished"):
        live.open()
    live.pipeline = first
    with pytest.raises(CheckpointMismatch, match=r"epoch 1 .* was begun in real time"):
        InEpochs(live)
    live.tasks = 1
    live.open()
    with pytest.raises(CheckpointMismatch, match="a run with 2 tasks a level that was not stopped"):
        live.boot()
    live.tasks = 2
    live.open()
    live.boot()
    live.finish()
    keys = Counter(row[0] for rows in source.feeds.values() for row in rows)
    expected = Counter(n for count in keys.values() for n in range(1, count + 1))
    assert Counter(row["value"] for row in kept.rows) == expected
    assert len({row["_id"] for row in kept.rows}) == len(kept.rows)
