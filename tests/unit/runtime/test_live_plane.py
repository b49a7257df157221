"""The real-time plane, all of it in one process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import ZombieWriter
from millrace.runtime import rows
from millrace.runtime.commit_writer import GrownWriter
from millrace.store import SegmentName
from tests.live import Feeds, InEpochs, Kept, Live, undisturbed


class Event(msgspec.Struct):
    key: int
    value: int
    at: int


class Seen(msgspec.Struct):
    key: int
    count: int


class CountByKey(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"seen": Seen}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("seen", Seen(self.key, self.count.get()))


class CountByParity(mr.Computation):
    inputs = {"seen": mr.by(lambda seen: seen.key % 2)}
    outputs = {"totals": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("totals", f"{self.key}: {self.count.get()}")


def feeds(seed: int = 1, processes: int = 3, rows: int = 60) -> Feeds:
    rng = random.Random(seed)
    return Feeds(
        "key long, value long, at long",
        {
            f"p{n}": [
                (rng.randrange(12), rng.randrange(100), 1_000_000 * i + rng.randrange(3_000_000))
                for i in range(rows)
            ]
            for n in range(processes)
        },
    )


def counting() -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("counting"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(CountByKey)
    p.add(CountByParity)
    p.sink("totals", kept)
    return p, kept


def passing() -> tuple[mr.Pipeline, Kept]:
    """Rows for a sink pass a level: what comes after a mark must not overtake it."""
    p, kept = mr.Pipeline("passing"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(CountByKey)
    p.add(CountByParity)
    p.sink("seen", kept)
    return p, kept


def windowed() -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("windowed"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    (p.stream("events").key_by("key").window(mr.FixedWindows("10 s")).sum("value").to("sums"))
    p.sink("sums", kept)
    return p, kept


class Copy(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"copies": Event}

    def process_record(self, record: mr.Record) -> None:
        self.produce("copies", record.value)


def two_ways() -> tuple[mr.Pipeline, Kept]:
    """Events are summed twice: as copies, and combined in an injector task, past the copying."""
    p, kept = mr.Pipeline("two_ways"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Copy)
    both = p.stream("events").flatten(p.stream("copies")).key_by("key")
    both.window(mr.FixedWindows("10 s")).sum("value").to("sums")
    p.sink("sums", kept)
    return p, kept


def values(rows: list[dict]) -> Counter:
    """The rows, but for what depends on how streams were merged."""
    left_out = {"_id", "_production_time"}
    if rows and "_window_end" not in rows[0]:
        left_out.add("_timestamp")
    return Counter(str({k: v for k, v in row.items() if k not in left_out}) for row in rows)


@pytest.mark.parametrize("make", [counting, passing, windowed])
def test_an_undisturbed_run_gives_what_the_harness_gives(make):
    rows = undisturbed(make)
    assert len(rows) > 20
    assert len({row["_id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("make", [counting, passing, windowed])
@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_and_no_crash_changes_the_outputs(make, seed):
    expected = values(undisturbed(make))
    pipeline, kept = make()
    live = Live(pipeline)
    live.boot()
    live.play(random.Random(seed), turns=600, crash=0.02, mark=0.1)
    live.boot()
    live.finish()
    assert live.coordinator.ended
    assert values(kept.rows) == expected


@pytest.mark.parametrize("seed", [0, 4, 6])
def test_partials_that_pass_a_level_say_how_far_they_go(seed, monkeypatch):
    monkeypatch.setattr(rows, "FEW", 0)  # a few rows would go as they are
    test_no_schedule_and_no_crash_changes_the_outputs(two_ways, seed)


@pytest.mark.parametrize("make", [counting, windowed])
@pytest.mark.parametrize("first", ["epochs", "live"])
def test_a_checkpoint_goes_from_one_plane_to_the_other_in_mid_stream(make, first):
    expected = values(undisturbed(make))
    pipeline, kept = make()
    live = Live(pipeline)
    rng = random.Random(3)
    planes = ["epochs", "live"] if first == "epochs" else ["live", "epochs"]
    for plane in planes * 2:
        if plane == "epochs":
            epochs = InEpochs(live)
            for _ in range(2):
                live.feed(live.injectors["events"].limit + rng.randrange(1, 9))
                epochs.run(live.clock_us)
        else:
            live.open()
            live.boot()
            live.play(rng, turns=150, mark=0.05)
            live.plane.settle(live.clock_us)
            live.plane.end(live.clock_us)
            assert live.coordinator.ended
    live.open()
    live.boot()
    live.finish()
    assert values(kept.rows) == expected


def test_a_stop_soon_after_a_crash_leaves_nothing_consumed_that_epochs_would_read_again():
    expected = values(undisturbed(counting))
    pipeline, kept = counting()
    live = Live(pipeline)
    live.injectors["events"].seamless = True
    live.feed(9)
    live.boot()
    live.plane.settle(live.clock_us)
    live.boot()  # a crash, before any mark
    live.plane.end(live.clock_us)
    assert live.coordinator.ended
    InEpochs(live).run(live.clock_us)
    live.open()
    live.boot()
    live.finish()
    assert values(kept.rows) == expected


class Clocked(Live):
    """A run whose clock goes on by seconds, in each of which its tasks have turns."""

    def goes_on(self, seconds: int) -> int:
        """Let so many pass; return how many marks were completed in them."""
        before = len(self.marks)
        for _ in range(seconds):
            self.clock_us += mr.SECOND
            self.plane.tick(self.clock_us)
            self.plane.settle(self.clock_us)
        return len(self.marks) - before


def test_while_tasks_do_nothing_a_mark_is_made_once_a_minute_and_else_as_often_as_is_wanted():
    pipeline, kept = counting()
    live = Clocked(pipeline, mark_every_us=5 * mr.SECOND)
    live.boot()
    live.feed(10)
    live.goes_on(15)
    assert (len(kept.rows), live.goes_on(40)) == (30, 0)
    assert live.goes_on(60) == 1
    live.feed(15)
    live.goes_on(6)
    assert len(kept.rows) == 45, "what comes does not wait for a minute"
    made = 0
    for n in range(16, 46):
        live.feed(n)
        made += live.goes_on(1)
    assert made == 6


def test_processes_that_join_while_tasks_do_nothing_are_read_soon():
    pipeline, kept = counting()
    live = Clocked(pipeline, mark_every_us=5 * mr.SECOND)
    injector = live.injectors["events"]
    rows = injector.feeds.pop("p2")
    live.boot()
    live.feed(10)
    live.goes_on(30)
    injector.feeds["p2"] = rows
    live.goes_on(18)
    assert len(kept.rows) == 30


def test_one_that_was_superseded_while_tasks_do_nothing_finds_out_with_the_mark_that_is_asked_for():
    pipeline, _ = counting()
    live = Clocked(pipeline, mark_every_us=5 * mr.SECOND)
    live.boot()
    live.feed(10)
    live.goes_on(15)
    live.pipeline, _ = counting()
    RunLog(live.pipeline.build(), live.state, intervals=live.intervals)
    assert live.goes_on(30) == 0
    live.coordinator.mark_soon()
    with pytest.raises(ZombieWriter):
        live.goes_on(1)


def test_processes_that_join_are_read_soon_and_those_that_go_hold_the_low_watermark(caplog):
    pipeline, kept = counting()
    live = Live(pipeline)
    injector = live.injectors["events"]
    rows = injector.feeds.pop("p2")
    live.boot()
    live.feed(20)
    live.plane.settle(live.clock_us)
    injector.feeds["p2"] = rows
    live.clock_us += 11 * mr.SECOND
    before = live.coordinator.incarnation
    with caplog.at_level("INFO"):
        live.plane.mark(live.clock_us)
    assert "processes have joined: ['p2'] of stream 'events'" in caplog.text
    # The same tasks have begun anew, by themselves, and nothing has failed.
    assert live.coordinator.failed is None
    assert (live.plane.running, live.coordinator.incarnation) == (True, before + 1)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    places = live.run_log.source_offsets["events"]
    assert {name: (one.number, one.count) for name, one in places.items()} == {
        "p0": (0, 20), "p1": (1, 20), "p2": (2, 20)
    }  # fmt: skip

    gone = injector.feeds.pop("p1")
    before = live.run_log.authority.low_watermarks.inputs["CountByKey"]
    live.boot()
    live.feed(60)
    live.clock_us += mr.SECOND
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    # What is known of who is gone still holds.
    held = max(at for *_, at in gone[:20]) - 5 * mr.SECOND
    assert live.run_log.authority.low_watermarks.inputs["CountByKey"] == held >= before
    assert live.run_log.source_offsets["events"]["p1"].count == 20

    injector.feeds["p1"] = gone
    live.boot()
    live.finish()
    assert values(kept.rows) == values(undisturbed(counting))


class Reminds(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"reminders": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("later", at=self.wall_time + mr.HOUR, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("reminders", "now")


def test_a_task_wakes_for_its_own_timers_only():
    p = mr.Pipeline("reminding")
    feed = Feeds("key long, value long, at long", {"a": [(1, 1, 1_000_000)]})
    p.inject("events", feed, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Reminds)
    p.sink("reminders", Kept())
    live = Live(p)
    live.boot()
    live.feed(1)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    assert live.marks[-1].report.injected_bytes == {"events": 3 * 8}
    # The next incarnation's tasks read of all intervals in the completion.
    live.boot()
    live.plane.settle(live.clock_us)
    wakes = sorted(live.plane._tasks[1, n].wake_us for n in range(2))
    assert wakes == [live.clock_us + mr.HOUR, mr.MAX_TIMESTAMP]


def test_rows_leave_before_a_mark_that_came_with_them_is_passed(monkeypatch):
    """What a mark takes, an fsync and caches brought forward, they need not wait for."""
    p = mr.Pipeline("marked")
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(CountByKey)
    p.add(CountByParity)
    live = Live(p, tasks=1)
    live.boot()
    live.feed(10)
    for _ in range(3):  # what was decided is read later
        live.plane.turn((0, 0), live.clock_us)
    live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.plane.turn((0, 0), live.clock_us)
    end_part, passed = GrownWriter.end, list[str]()

    def watched(self: GrownWriter) -> str:
        passed.append(end_part(self))
        return passed[-1]

    monkeypatch.setattr(GrownWriter, "end", watched)
    task = live.plane._tasks[1, 0]
    task.receive(list(live.plane._arrived[1, 0]))
    assert len(list(task.turn(live.clock_us, 0.0))) == 1
    assert not passed
    assert len(list(task.after_turn())) == 1  # the mark's own
    assert len(passed) == 1


@pytest.mark.parametrize("draining", [False, True])
def test_nothing_is_done_after_the_last_mark(draining):
    p, kept = mr.Pipeline("reminding"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Reminds)
    p.sink("reminders", kept)
    live = Live(p)
    live.boot()
    live.feed(10)
    live.plane.settle(live.clock_us)
    live.coordinator.end(draining=draining)
    live.plane.tick(live.clock_us)
    for where in ((0, 0), (0, 1), (1, 0)):
        live.plane.turn(where, live.clock_us)
    # Time goes on before the last task has passed the mark.
    live.plane.turn((1, 0), live.clock_us + 2 * mr.HOUR)
    live.plane.turn((1, 1), live.clock_us)
    assert live.coordinator.ended
    found = live.state.incarnations.seal(live.state.incarnations.last() + 1)
    last: dict[tuple[str, int], int] = {}
    for name in sorted(found.lengths):
        for group in live.state.incarnations.groups(SegmentName.parse(name)):
            for commit in group.commits:
                last[commit.computation, commit.interval] = commit.number
    numbers = live.run_log.positions.numbers
    assert last == {(name, n): number for name, of in numbers.items() for n, number in of.items()}


class Asking(mr.Computation):
    """Asks all tasks what they are doing, as the driver may at any moment."""

    inputs = {"events": mr.by("key")}
    outputs = {"totals": str}

    def __init__(self, ask: Callable[[], list[str]]) -> None:
        self.ask = ask

    def process_record(self, record: mr.Record) -> None:
        assert f"computation 'Asking', key {self.key}" in self.ask()


def test_a_task_says_which_computation_and_key_it_is_at():
    p, kept = mr.Pipeline("asking"), Kept()
    p.inject("events", feeds(), timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    asked = list[str]()

    def ask() -> list[str]:
        asked.extend(task.at_hand() for task in live.plane._tasks.values())
        return asked

    p.add(Asking(ask))
    p.sink("totals", kept)
    live = Live(p)
    live.boot()
    live.finish()
    assert live.coordinator.ended
    assert set(asked) - {""} == {f"computation 'Asking', key {key}" for key in range(12)}
    assert {task.at_hand() for task in live.plane._tasks.values()} <= {""}
