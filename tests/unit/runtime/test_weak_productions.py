"""Weak productions on live tasks: they leave before the commit; none is lost or counted twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.runtime.commit_writer import WEAK_TURNS
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.task import Sent
from millrace.runtime.realtime.weak import weak_computations, why_strong
from millrace.store import MemoryBlobs
from tests.live import Feeds, InEpochs, Kept, Live, undisturbed


class Spread(mr.Computation):
    """Sends two of each record, to other keys; what it keeps does not show in what it sends."""

    inputs = {"events": mr.by("key")}
    outputs = {"halves": list}
    count = mr.ValueState(int)
    kept = mr.BagState(int)

    def process_record(self, record: mr.Record) -> None:
        value = record.value
        self.count.set(self.count.get(0) + 1)
        self.kept.add(value["value"])
        for half in (0, 1):
            self.produce("halves", [value["value"], half, record.late])


class Count(mr.Computation):
    inputs = {"halves": mr.by(lambda value: (value[0] + value[1]) % 3)}
    outputs = {"totals": list}
    count = mr.ValueState(int)
    sum = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        value, _, late = record.value
        self.count.set(self.count.get(0) + 1)
        self.sum.set(self.sum.get(0) + value)
        self.produce("totals", [self.key, self.count.get(), late or record.late])


class Relay(mr.Computation):
    """A second weak computation, over the productions of the first."""

    inputs = {"halves": mr.by(lambda value: value[0] % 4)}
    outputs = {"again": list}

    def process_record(self, record: mr.Record) -> None:
        self.produce("again", record.value)


class Seen(mr.Computation):
    inputs = {"again": mr.by(lambda value: value[0] % 2)}
    outputs = {"seen": list}

    def process_record(self, record: mr.Record) -> None:
        self.produce("seen", record.value)


def feeds(rows: int = 60) -> Feeds:
    rng = random.Random(4)
    return Feeds(
        "key long, value long, at long",
        {
            f"p{n}": [
                (rng.randrange(12), rng.randrange(100), 1_000_000 * i + rng.randrange(3_000_000))
                for i in range(rows)
            ]
            for n in range(3)
        },
    )


def begun(name: str, rows: int = 60) -> mr.Pipeline:
    p = mr.Pipeline(name)
    p.inject("events", feeds(rows), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
    p.add(Spread, productions=mr.WEAK)
    return p


def counting() -> tuple[mr.Pipeline, Kept]:
    """A weak computation before a strong one."""
    p, kept = begun("counting"), Kept()
    p.add(Count)
    p.sink("totals", kept)
    return p, kept


def weak_to_the_end() -> tuple[mr.Pipeline, Kept]:
    """The second is weak as well: it has no consumers but a sink."""
    p, kept = begun("weak to the end"), Kept()
    p.add(Count, productions=mr.WEAK)
    p.sink("totals", kept)
    return p, kept


def summed() -> tuple[mr.Pipeline, Kept]:
    """What comes after is combined before it is sent where that can be."""
    p, kept = begun("summed"), Kept()
    halves = p.stream("halves").key_by(lambda value: value[0] % 5)
    halves.map(lambda value: value[0]).to("values", format=int).window(
        mr.FixedWindows("10 s")
    ).sum().to("sums")
    p.sink("sums", kept)
    return p, kept


def passing() -> tuple[mr.Pipeline, Kept]:
    """Rows of the weak computation pass a level, to a computation below it."""
    p, kept = begun("passing"), Kept()
    p.add(Count)

    class Both(mr.Computation):
        inputs = {"halves": mr.by(lambda value: value[0] % 2), "totals": mr.by(lambda _: 0)}
        outputs = {"both": list}
        count = mr.ValueState(int)

        def process_record(self, record: mr.Record) -> None:
            self.count.set(self.count.get(0) + 1)
            self.produce("both", [self.key, record.stream, self.count.get()])

    p.add(Both, name="Both")
    p.sink("totals", kept)
    return p, kept


def values(rows: list[dict[str, Any]]) -> Counter[str]:
    left_out = {"_id", "_production_time"} | (
        set() if rows and "_window_end" in rows[0] else {"_timestamp"}
    )
    return Counter(str({k: v for k, v in row.items() if k not in left_out}) for row in rows)


class Together:
    """Several sinks, as one to look at."""

    def __init__(self, p: mr.Pipeline, *streams: str) -> None:
        self._kept = [Kept() for _ in streams]
        for stream, kept in zip(streams, self._kept, strict=True):
            p.sink(stream, kept)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for kept in self._kept for row in kept.rows]


PIPELINES: list[Callable[[], tuple[mr.Pipeline, Kept]]] = [
    counting, weak_to_the_end, summed, passing,
]  # fmt: skip


@pytest.mark.parametrize("make", PIPELINES)
@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_and_no_crash_changes_the_outputs(make, seed):
    expected = values(undisturbed(make))
    assert len(expected) > 20
    pipeline, kept = make()
    live = Live(pipeline)
    assert "Spread" in weak_computations(live.topology, tasks=2, live=())
    live.boot()
    live.play(random.Random(seed), turns=500, crash=0.03, mark=0.05)
    live.boot()
    live.finish()
    assert live.coordinator.ended
    assert values(kept.rows) == expected


def turns(live: Live, *where: tuple[int, int]) -> None:
    live.clock_us += 20_000
    for one in where:
        live.plane.turn(one, live.clock_us)


def durable(live: Live) -> set[int]:
    """The levels of the computations of which something is durable."""
    live.plane.crash()
    live.state.incarnations.seal(live.state.incarnations.last() + 1)
    return {name.level for name in live.state.incarnations.names()} - {0}


def test_productions_leave_before_the_append_that_takes_what_waited(monkeypatch):
    """Of every turn: also of the one in which so much has waited that all of it is appended."""
    p = begun("appended", rows=3 * WEAK_TURNS)
    p.add(Count)
    live = Live(p, tasks=1)
    live.boot()
    after_turn, seen = IncarnationHost.after_turn, list[tuple[int, int, int, int]]()

    def watched(self: IncarnationHost) -> Iterator[Sent]:
        left, before = len(live.plane._arrived[2, 0]), self.stats.groups
        yield from after_turn(self)
        seen.append((left, len(live.plane._arrived[2, 0]), before, self.stats.groups))

    monkeypatch.setattr(IncarnationHost, "after_turn", watched)
    for limit in range(1, 3 * WEAK_TURNS):
        live.feed(limit)
        turns(live, (0, 0), (1, 0))
        if seen[-1][3]:
            break
    groups = [(before, after) for _, _, before, after in seen]
    assert groups == [(0, 0)] * (len(seen) - 1) + [(0, 1)]
    # What was there when the rest of the last turn began had left in that turn, and nothing since.
    (_, turn_before, *_), (left, there, *_) = seen[-2:]
    assert turn_before < left == there


def test_productions_leave_before_anything_is_durable():
    pipeline, _ = counting()
    live = Live(pipeline, tasks=1)
    live.boot()
    live.feed(5)
    for _ in range(3):
        turns(live, (0, 0), (1, 0), (2, 0))
    assert durable(live) == {2}
    live.boot()
    turns(live, (0, 0), (1, 0))
    live.plane.mark(live.clock_us)
    assert durable(live) == {1, 2}


@pytest.mark.parametrize(
    ("far", "rows", "levels"),
    [(False, WEAK_TURNS, set()), (False, 3 * WEAK_TURNS, {1}), (True, 3 * WEAK_TURNS, set())],
)
def test_what_waits_is_durable_some_turns_later_where_that_is_quick(far, rows, levels, monkeypatch):
    monkeypatch.setattr(MemoryBlobs, "far", far)
    p = begun("kept", rows=rows)
    p.sink("halves", Kept())
    live = Live(p, tasks=1)
    live.boot()
    for limit in range(rows):
        live.feed(limit + 1)
        turns(live, (0, 0), (1, 0))
    assert durable(live) == levels


def test_what_comes_again_to_a_weak_computation_is_not_late():
    """Though who reads from it has noted a low watermark that it cannot know any more."""
    pipeline, kept = counting()
    live = Live(pipeline)
    live.boot()
    for limit in range(40):
        live.feed(limit)
        turns(live, (0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    live.boot()
    live.finish()
    assert kept.rows
    assert not [row for row in kept.rows if "true" in row["value"]]


def crashed_once(pipeline: mr.Pipeline, tasks: int = 2) -> None:
    live = Live(pipeline, tasks=tasks)
    live.boot()
    live.feed(20)
    live.plane.settle(live.clock_us)
    live.boot()
    live.finish()


def test_a_consumer_that_wants_records_at_least_once_has_them_again():
    def relayed(delivery: mr.DeliveryMode) -> Counter[str]:
        p, kept = begun("relayed"), Kept()
        p.add(Relay, productions=mr.WEAK, delivery=delivery)
        p.add(Seen, delivery=delivery)
        p.sink("seen", kept)
        crashed_once(p)
        return values(kept.rows)

    once, again = relayed(mr.EXACTLY_ONCE), relayed(mr.AT_LEAST_ONCE)
    assert sum(once.values()) == 360
    assert again.keys() == once.keys()
    assert sum(again.values()) == 360 + 2 * 3 * 20  # Seen is strong, and had them


def test_weak_and_strong_computations_of_one_task_are_durable_together():
    def beside() -> tuple[mr.Pipeline, Any]:
        p = begun("beside")

        class Strong(mr.Computation):
            inputs = {"events": mr.by("key")}
            outputs = {"numbers": list}
            count = mr.ValueState(int)

            def process_record(self, record: mr.Record) -> None:
                self.count.set(self.count.get(0) + 1)
                self.produce("numbers", [self.key, self.count.get()])

        p.add(Strong, name="Strong")
        p.add(Count)
        return p, Together(p, "totals", "numbers")

    expected = values(undisturbed(beside))
    for seed in range(3):
        pipeline, kept = beside()
        live = Live(pipeline)
        live.boot()
        live.play(random.Random(seed), turns=500, crash=0.03, mark=0.05)
        live.boot()
        live.finish()
        assert values(kept.rows) == expected


class Failing(mr.Computation):
    """Weak, and fails on some records, sometimes after it has sent something."""

    inputs = {"events": mr.by("key")}
    outputs = {"halves": list}

    def process_record(self, record: mr.Record) -> None:
        value = record.value["value"]
        self.produce("halves", [value, 0, record.late])
        if value % 5 == 3:
            raise ValueError(f"{value} is not to be had")
        self.produce("halves", [value, 1, record.late])


@pytest.mark.parametrize("seed", range(3))
def test_dead_letters_of_a_weak_computation_come_once(seed):
    def failing() -> tuple[mr.Pipeline, Any]:
        p = mr.Pipeline("failing")
        p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
        p.add(Failing, productions=mr.WEAK)
        p.add(Count)
        p.dead_letter("refused")
        return p, Together(p, "totals", "refused")

    def seen(rows: list[dict[str, Any]]) -> Counter[str]:
        letters = [row for row in rows if "computation" in row]
        found = values([row for row in rows if "computation" not in row])
        return found + Counter(f"{row['key']} {row['value']}" for row in letters)

    expected = seen(undisturbed(failing))
    assert any("value" in row for row in expected)
    pipeline, kept = failing()
    live = Live(pipeline)
    assert "Failing" in weak_computations(live.topology, tasks=2, live=())
    live.boot()
    live.play(random.Random(seed), turns=500, crash=0.03, mark=0.05)
    live.boot()
    live.finish()
    assert seen(kept.rows) == expected


@pytest.mark.parametrize("make", [counting, summed])
def test_a_checkpoint_with_weak_productions_goes_from_plane_to_plane(make):
    expected = values(undisturbed(make))
    pipeline, kept = make()
    live, rng = Live(pipeline), random.Random(3)
    for _ in range(2):
        live.open()
        live.boot()
        live.play(rng, turns=150, crash=0.02, mark=0.05)
        live.boot()
        live.plane.settle(live.clock_us)
        live.plane.end(live.clock_us)
        assert live.coordinator.ended
        epochs = InEpochs(live)
        live.feed(live.injectors["events"].limit + rng.randrange(1, 9))
        epochs.run(live.clock_us)
    live.open()
    live.boot()
    live.finish()
    assert values(kept.rows) == expected


def reasons(pipeline: mr.Pipeline, live: Any = (), tasks: int = 2) -> dict[str, str | None]:
    topology = Live(pipeline).topology
    return {
        spec.name: why_strong(topology, spec, tasks=tasks, live=live)
        for spec in topology.computations
    }


def test_productions_are_strong_where_what_comes_again_could_not_be_told(tmp_path):
    class Timed(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"timed": list}

        def process_record(self, record: mr.Record) -> None:
            self.set_timer("t", at=record.timestamp)

        def process_timer(self, timer: mr.Timer) -> None:
            self.produce("timed", [timer.at])

    p = begun("reasons")
    p.add(Timed, name="Timed", productions=mr.WEAK)
    p.add(Relay, productions=mr.WEAK)
    p.add(Seen)
    p.sink("seen", Kept())
    found = reasons(p)
    assert found["Spread"] is None
    assert "timers" in str(found["Timed"])
    assert "each record once" in str(found["Relay"])
    assert "does not ask" in str(found["Seen"])
    (to_sink,) = [edge.number for edge in Live(p).topology.edges if edge.sink is not None]
    q = begun("reasons")
    q.sink("halves", Kept())
    assert reasons(q)["Spread"] is None
    assert "every turn" in str(reasons(q, live={to_sink, 0, 1})["Spread"])
    q.sink("halves", mr.sinks.Parquet(tmp_path, key="_key"))
    assert "table by key" in str(reasons(q)["Spread"])
    assert "256 tasks" in str(reasons(p, tasks=257)["Spread"])
