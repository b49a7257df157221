"""Processes of live tasks that wait for others, and those that nobody waits for any more."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.entries import processes_of
from millrace.inspect.watermark import explain_watermark
from millrace.model.time import format_duration
from millrace.runtime.realtime.messages import Hold, SourceProgress
from tests.live import Feeds, InEpochs, Kept, Live

SCHEMA = "key long, at long"
STEP = 10 * mr.SECOND
#: Rows that a process is asked for at once.
LOT = 3


class Event(msgspec.Struct):
    key: int
    at: int


class Keeps(mr.Computation):
    """Keeps each record until the low watermark has passed it."""

    inputs = {"events": mr.by("key")}
    outputs = {"passed": int}
    waiting = mr.BagState(int)

    def process_record(self, record: mr.Record) -> None:
        self.waiting.add(record.value.at)
        self.set_timer(record.value.at, at=record.value.at)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("passed", timer.at)


class KeepsBoth(Keeps):
    inputs = {"events": mr.by("key"), "others": mr.by("key")}


class Paced(Feeds):
    """Each process has a limit of its own, and is read in lots; one may say that it has ended."""

    ends: frozenset[str] = frozenset()

    def __init__(self, feeds: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        super().__init__(SCHEMA, feeds)
        self.there = dict.fromkeys(feeds, 0)

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        start, rows = offset or 0, self.feeds[process]
        end = max(start, min(max(self.there[process], self.limit), start + LOT, len(rows)))
        ended = process in self.ends and end == len(rows)
        return mr.sources.Advance(
            end, mr.MAX_TIMESTAMP if ended else rows[end - 1][1] if end else None
        )


def every(count: int, keys: int = 0) -> list[tuple[int, int]]:
    return [(keys + n % 7, n * STEP) for n in range(1, count + 1)]


def keeping(
    feeds: Paced, others: Paced | None = None, **options: Any
) -> tuple[mr.Pipeline, Kept, Live]:
    p, kept = mr.Pipeline("keeping"), Kept()
    p.inject("events", feeds, timestamp="at", format=Event, **options)
    if others is not None:
        p.inject("others", others, timestamp="at", format=Event)
    p.add(Keeps if others is None else KeepsBoth)
    p.sink("passed", kept)
    return p, kept, Live(p)


def go_on(live: Live, rounds: int = 40) -> None:
    for _ in range(rounds):
        live.clock_us += 100 * mr.MILLISECOND
        live.plane.tick(live.clock_us)
        live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)


def read(live: Live, stream: str = "events") -> dict[str, int]:
    return {name: place.count for name, place in live.run_log.source_offsets[stream].items()}


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_who_is_ahead_is_read_no_further_than_the_limit(tasks: int) -> None:
    feeds = Paced({"fast": every(300), "slow": every(300, 10)})
    p, kept, _ = keeping(feeds, skew="2 min")
    live = Live(p, tasks=tasks)
    feeds.there = {"fast": 300, "slow": 10}
    live.boot()
    for slow in (10, 20, 150):
        feeds.there["slow"] = slow
        go_on(live, 150)
        counts = read(live)
        assert counts["slow"] == slow
        # Twelve steps ahead, and the lot that passes it.
        assert slow + 12 < counts["fast"] <= slow + 12 + LOT
    feeds.there["slow"] = 300
    go_on(live, 200)
    assert read(live) == {"fast": 300, "slow": 300}
    live.plane.end(live.clock_us, draining=True)
    assert len(kept.rows) == 600


def test_what_is_kept_in_state_is_bounded_by_it() -> None:
    most = {}
    for skew in (None, "2 min"):
        feeds = Paced({"fast": every(150), "slow": every(150, 10)})
        _, kept, live = keeping(feeds, **({} if skew is None else {"skew": skew}))
        live.boot()
        feeds.there["fast"] = 150
        most[skew] = 0
        for slow in range(0, 151, 30):
            feeds.there["slow"] = slow
            for _ in range(3):
                go_on(live, 10)
                most[skew] = max(most[skew], sum(read(live).values()) - len(kept.rows))
        go_on(live, 20)
        assert read(live) == {"fast": 150, "slow": 150}
    assert most[None] > 100
    assert most["2 min"] <= 12 + LOT


def test_another_stream_is_waited_for() -> None:
    feeds, others = Paced({"a": every(100)}), Paced({"b": every(100, 10)})
    _, _, live = keeping(feeds, others, skew="1 min")
    feeds.there["a"], others.there["b"] = 100, 20
    live.boot()
    go_on(live, 100)
    assert read(live, "others") == {"b": 20}
    assert 26 < read(live)["a"] <= 26 + LOT


@pytest.mark.parametrize("skew", [{}, {"skew": "1 min"}])
@pytest.mark.parametrize("tasks", [1, 2])
def test_who_falls_silent_holds_nobody_when_its_time_is_out(
    tasks: int, skew: dict[str, str]
) -> None:
    feeds = Paced({"a": every(100), "b": every(100, 10)})
    p, kept, _ = keeping(feeds, idle="20 s", **skew)
    live = Live(p, tasks=tasks)
    feeds.there = {"a": 100, "b": 10}
    live.boot()
    go_on(live, 100)
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 10 * STEP
    go_on(live, 200)
    assert read(live)["a"] == 100
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 100 * STEP
    # What it sends now is late, and it counts again.
    feeds.there["b"] = 20
    go_on(live, 50)
    assert live.run_log.counters["Keeps"].late == 10
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 100 * STEP
    assert len(kept.rows) == 120


def test_when_all_are_silent_the_low_watermark_stays() -> None:
    feeds = Paced({"a": every(30), "b": every(10)})
    _, _, live = keeping(feeds, idle="5 s", skew="1 min")
    feeds.there = {"a": 30, "b": 10}
    live.boot()
    go_on(live, 300)
    assert read(live) == {"a": 30, "b": 10}
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 30 * STEP


@pytest.mark.parametrize("tasks", [1, 2])
def test_when_all_that_have_not_ended_are_silent_the_low_watermark_stays(tasks: int) -> None:
    feeds = Paced({"a": every(30), "b": every(20, 10)})
    feeds.ends = frozenset("a")
    p, kept, _ = keeping(feeds, idle="5 s")
    live = Live(p, tasks=tasks)
    feeds.there = {"a": 30, "b": 10}
    live.boot()
    go_on(live, 300)
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 10 * STEP
    feeds.there["b"] = 20
    go_on(live, 50)
    assert not live.run_log.counters["Keeps"].late
    assert len(kept.rows) == 40


def test_who_has_ended_holds_nobody() -> None:
    feeds = Paced({"a": every(100), "b": every(10)})
    feeds.ends = frozenset("b")
    _, _, live = keeping(feeds, skew="1 min")
    feeds.there = {"a": 100, "b": 10}
    live.boot()
    go_on(live, 150)
    assert read(live)["a"] == 100


def test_after_a_restart_who_says_nothing_new_is_where_it_was() -> None:
    feeds = Paced({"a": every(100), "b": every(100), "c": every(100)})
    _, _, live = keeping(feeds, skew="1 min", low_watermark=mr.BoundedDelay(0))
    feeds.there = {"a": 14, "b": 10, "c": 100}
    live.boot()
    go_on(live, 20)
    live.boot()
    feeds.there["b"] = 20
    go_on(live, 20)
    assert live.run_log.authority.low_watermarks.inputs["Keeps"] == 14 * STEP
    assert 20 < read(live)["c"] <= 20 + LOT


@pytest.mark.parametrize("seed", range(2))
def test_no_schedule_and_no_crash_reads_too_far_or_changes_the_outputs(seed: int) -> None:
    feeds = Paced({name: every(60, 10 * n) for n, name in enumerate("abc")})
    _, kept, live = keeping(feeds, skew="1 min")
    rng = random.Random(seed)
    live.boot()
    for _ in range(30):
        feeds.there[rng.choice("abc")] += rng.randrange(12)
        live.play(rng, turns=25, crash=0.02)
        feeds.limit = 0
        live.boot()
        go_on(live, 8)  # what was decided before is read again, before the others have come so far
        counts = read(live)
        least = live.run_log.authority.low_watermarks.outputs["injector:events"]
        assert all(n * STEP <= max(0, least) + mr.MINUTE + LOT * STEP for n in counts.values())
    feeds.there = dict.fromkeys("abc", 60)
    go_on(live, 100)
    live.plane.end(live.clock_us, draining=True)
    assert sorted(row["value"] for row in kept.rows) == sorted(at for _, at in 3 * every(60))


def test_nobody_goes_by_what_a_task_of_an_older_incarnation_says() -> None:
    feeds = Paced({"a": every(100), "b": every(100)})
    _, _, live = keeping(feeds, idle="5 s")
    live.boot()
    old = live.coordinator.incarnation
    live.boot()
    for incarnation, heard in ((old, False), (live.coordinator.incarnation, True)):
        orders = []
        for task in range(2):
            word = SourceProgress(0, task, incarnation, {"events": 70})
            orders += live.coordinator.receive(word, live.clock_us)
        assert bool(orders) == heard


@pytest.mark.parametrize("policy", [None, mr.BoundedDelay("30 s")])
def test_both_planes_hold_the_same_back_and_say_so(policy: mr.BoundedDelay | None) -> None:
    feeds = Paced({"fast": every(100), "slow": every(100, 10)})
    _, _, live = keeping(feeds, skew="1 min", low_watermark=policy)
    feeds.there = {"fast": 100, "slow": 10}
    live.boot()
    go_on(live, 20)
    live.plane.end(live.clock_us)
    held = read(live)
    (live_held,) = explain_watermark(live.state).held
    assert (live_held.stream, live_held.process) == ("events", "fast")
    assert live_held.ahead == (held["fast"] - held["slow"]) * STEP > live_held.limit == mr.MINUTE
    said = (
        f"Process 'fast' of stream 'events' is held back: it is {format_duration(live_held.ahead)} "
        "ahead of the low watermark, and skew= allows 1 min."
    )
    assert said in str(explain_watermark(live.state))

    epochs, delay_us = InEpochs(live), 0 if policy is None else policy.delay_us
    sources, low_watermark = epochs.run_log.sources, held["slow"] * STEP - delay_us
    assert epochs.driver.publisher.waiting(
        "events", processes_of(sources), {"events": low_watermark}
    ) == {"fast"}


def hold(live: Live, paused: list[str], rates: dict[str, float]) -> None:
    for where, task in live.plane._tasks.items():
        if where[0] == 0:
            task.tell(Hold(paused, rates))


def test_a_stream_is_held_back_by_an_operator_and_read_again() -> None:
    feeds, others = Paced({"a": every(60), "b": every(60)}), Paced({"c": every(60)})
    _, kept, live = keeping(feeds, others)
    live.boot()
    others.there["c"] = 60
    feeds.there = {"a": 10, "b": 10}
    go_on(live)
    hold(live, ["events"], {})
    feeds.there = {"a": 60, "b": 60}
    go_on(live)
    assert (read(live), read(live, "others")) == ({"a": 10, "b": 10}, {"c": 60})
    # Time waits with it: nothing of the other stream is taken for being on time.
    assert max(row["value"] for row in kept.rows) <= 10 * STEP

    hold(live, [], {})
    go_on(live)
    assert read(live) == {"a": 60, "b": 60}


def test_a_rate_is_kept_on_the_average() -> None:
    feeds = Paced({"a": every(600), "b": every(600)})
    _, _, live = keeping(feeds)
    live.boot()
    feeds.there = {"a": 600, "b": 600}
    hold(live, [], {"events": 10.0})  # of each process
    began = live.clock_us
    counts = []
    for _ in range(5):
        go_on(live, 40)
        seconds = (live.clock_us - began) / mr.SECOND
        counts.append(sum(read(live).values()) / seconds)
    # No more than one lot of each above it, and not much less.
    assert all(18 <= count <= 20 + 4 * LOT for count in counts), counts
    assert counts[-1] <= 21
