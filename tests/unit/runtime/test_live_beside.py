"""Keys that begin by themselves, and what stands beside inputs, on live tasks that crash."""

import datetime as dt
import itertools
import random
from collections import defaultdict
from itertools import pairwise

import msgspec
import pytest

import millrace as mr
from millrace.injectors.follower import Polling
from millrace.injectors.signal_injector import SignalInjector, put_call
from millrace.store import LocalHardState
from tests.live import Feeds, Kept, Live


class Beat(mr.Computation):
    outputs = {"beats": int}
    n = mr.CombiningState(int)

    def process_start(self):
        self.n.add(1000)
        self.set_timer("beat", at=self.wall_time + mr.SECOND // 10, domain=mr.WALL_TIME)

    def process_timer(self, timer):
        self.n.add(1)
        self.produce("beats", self.n.get())
        self.set_timer("beat", at=timer.at + mr.SECOND // 10, domain=mr.WALL_TIME)


@pytest.mark.parametrize("seed", range(4))
def test_keys_begin_once_and_miss_no_beat(seed):
    p, kept = mr.Pipeline("alive"), Kept()
    p.add(Beat, keys=["a", "b", "c"])
    p.sink("beats", kept)
    live = Live(p)
    live.boot()
    live.play(random.Random(seed), turns=400, crash=0.03, mark=0.1)
    live.boot()
    live.finish()

    beats = defaultdict(list)
    for row in kept.rows:
        beats[row["_key"]].append((row["value"], row["_timestamp"]))
    assert beats.keys() == {"a", "b", "c"}
    for found in map(sorted, beats.values()):
        assert [n for n, _ in found] == list(range(1001, 1001 + len(found)))
        apart = {later[1] - one[1] for one, later in pairwise(found)}
        assert apart == {dt.timedelta(seconds=0.1)}


class Converted(msgspec.Struct):
    n: int
    percent: int | None


class Rates(mr.Computation):
    inputs = {"raw": mr.by("currency")}
    outputs = {"rates": dict}

    def process_record(self, record):
        self.produce("rates", record.value)


class Convert(mr.Computation):
    inputs = {"sales": mr.by("shop")}
    outputs = {"converted": Converted}
    rates = mr.SideInput("rates", "currency")

    def process_record(self, record):
        rate = self.rates.get(record.value["currency"])
        self.produce("converted", Converted(record.value["n"], rate and rate["percent"]))


def converting(seed, *, direct):
    """Return a pipeline of records that wait for rates, its sink, and what must come of it."""
    rng = random.Random(seed)
    at = [1_000_000 * n + rng.randrange(900_000) for n in range(30)]
    changes = [(rng.randrange(3), n, when) for n, when in enumerate(at) if rng.random() < 0.4]
    sold = [(n % 7, rng.randrange(3), n, rng.choice(at)) for n in range(30)]
    expected = {}
    for _, currency, n, when in sold:
        rows = [(time, percent) for of, percent, time in changes if of == currency and time <= when]
        expected[n] = max(rows)[1] if rows else None
    p, kept = mr.Pipeline("convert"), Kept()
    ahead = {"timestamp": "at", "low_watermark": mr.BoundedDelay("1 min")}
    feeds = Feeds("shop long, currency long, n long, at long", {"a": sold[::2], "b": sold[1::2]})
    p.inject("sales", feeds, **ahead)
    schema = "currency long, percent long, at long"
    feeds = Feeds(schema, {"a": changes[::2], "b": changes[1::2]})
    p.inject("rates" if direct else "raw", feeds, **ahead)
    if not direct:
        p.add(Rates)
    p.add(Convert)
    p.sink("converted", kept)
    return p, kept, expected


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_each_record_sees_the_rows_of_its_time_whatever_crashes(seed, direct):
    pipeline, kept, expected = converting(seed, direct=direct)
    live = Live(pipeline)
    live.boot()
    live.play(random.Random(seed), turns=300, crash=0.02, mark=0.1)
    live.boot()
    live.finish()

    found = [(row["n"], row["percent"]) for row in kept.rows]
    assert len(found) == len(expected)
    assert dict(found) == expected


def test_a_call_fires_once_also_where_all_crash_before_the_next_mark(tmp_path, monkeypatch):
    def follow(self, places, *, most=100_000):
        return Polling(self, places, most=most, clock=itertools.count().__next__)

    monkeypatch.setattr(SignalInjector, "follow", follow)
    mailbox = LocalHardState.create_or_open(tmp_path, pipeline="calls").mailbox
    p, kept = mr.Pipeline("calls"), Kept()
    rows = [("red" if n % 2 else "blue", 1_000_000 * n) for n in range(40)]
    scores = p.inject(
        "scores", Feeds("team string, at long", {"f": rows}), timestamp="at", unit="us"
    )
    on_call = mr.Repeat(mr.OnCall("look"))
    scores.key_by("team").window(trigger=on_call, mode=mr.DISCARDING).count().to("look")
    p.sink("look", kept)
    for source in (injection.source for injection in p.injections.values()):
        if isinstance(source, SignalInjector):
            source.bind(str(tmp_path))
    live = Live(p)

    def settled():
        live.plane.settle(live.clock_us)

    def seen():
        live.coordinator.mark_soon()
        live.plane.tick(live.clock_us)
        settled()
        return sorted((row["_key"], row["value"]) for row in kept.rows)

    live.boot()
    live.feed(10)
    settled()
    put_call(mailbox, "look.calls", [b"sred"])
    settled()
    live.plane.crash()
    live.open()
    live.boot()
    settled()
    assert seen() == [("red", 5)]

    live.feed(20)
    settled()
    put_call(mailbox, "look.calls-for-all", [b""])
    settled()
    live.boot()
    settled()
    assert seen() == [("blue", 10), ("red", 5), ("red", 5)]
