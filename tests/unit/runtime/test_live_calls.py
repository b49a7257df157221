"""Calls on the real-time plane: pending over turns, marks and crashes, in this process."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.balance.transfer import remap
from millrace.compile.topology import ComputationSpec
from millrace.epochlog.run_log import RunLog
from millrace.inspect import explain_watermark
from millrace.model.calls import Call
from millrace.model.errors import CheckpointMismatch
from millrace.runtime.calls import CallPools, TaskCalls
from millrace.runtime.commit_writer import GrownWriter
from millrace.runtime.worker_process import WorkerProcess
from millrace.store import Commit
from millrace.watermark.map_change import Merge, Split
from simulation.call_pool import DrawnPool
from tests.live import Feeds, InEpochs, Kept, Live


class Spend(mr.AsyncComputation):
    """Asks with the total of its key so far; a request must see all responses before it."""

    inputs = {"events": mr.by("key")}
    outputs = {"told": str}
    calls = mr.CallPolicy(concurrency=4)
    total = mr.ValueState(int)
    seen = mr.BagState(int)

    def request(self, record: mr.Record) -> Any:
        if record.value["value"] % 7 == 0:
            return None
        return record.value["value"], self.total.get(0)

    async def call(self, request: Any) -> Any:
        if request[0] == 13:
            raise ValueError("13 is refused")
        return request[1]

    def process_response(self, record: mr.Record, response: Any) -> None:
        before = self.total.get(0)
        assert response in (None, before), (response, before)
        self.total.set(before + record.value["value"])
        self.seen.add(record.value["value"])
        assert sum(self.seen) == self.total.get()
        self.produce("told", f"{self.key}: {self.total.get()}")


def feeds(seed: int = 1, rows: int = 40) -> Feeds:
    rng = random.Random(seed)
    return Feeds(
        "key long, value long, at long",
        {
            f"p{n}": [
                (rng.randrange(6), rng.randrange(1, 40), 1_000_000 * i + rng.randrange(3_000_000))
                for i in range(rows)
            ]
            for n in range(3)
        },
    )


def spending(seed: int) -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("spending"), Kept()
    p.inject("events", feeds(seed), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
    p.add(Spend)
    p.dead_letter("letters")
    p.sink("told", kept)
    return p, kept


async def double(event: dict[str, Any]) -> dict[str, Any]:
    return {"key": event["key"], "value": 2 * event["value"]}


def windowed(seed: int) -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("windowed"), Kept()
    p.inject("events", feeds(seed), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
    doubled = p.stream("events").key_by("key").map_async(double, order="none", name="doubled")
    doubled.window(mr.FixedWindows("10 s")).sum("value").to("sums", int)
    p.sink("sums", kept)
    return p, kept


class LiveWithCalls(Live):
    """A live run whose calls return when they are drawn."""

    def __init__(self, pipeline: mr.Pipeline, seed: int, *, idle: float = 0.4, **more: Any) -> None:
        self.drawn = random.Random(seed)
        self.idle = idle
        self.made: list[Call] = []
        super().__init__(pipeline, **more)

    def runtime(self, task: int, *, live: bool = True) -> WorkerProcess:
        def pool(spec: ComputationSpec) -> Any:
            return DrawnPool(spec.instance, self.drawn, self.made.append, idle=self.idle)

        runtime = super().runtime(task, live=live)
        runtime.call_pools = CallPools(make=pool)
        return runtime

    def feed_by_and_by(self, rows: int) -> None:
        """Have so many rows of each process there, one after the other."""
        for n in range(rows):
            self.clock_us += 1000
            self.feed(n + 1)
            self.plane.settle(self.clock_us)

    def calls(self) -> list[TaskCalls]:
        """Return the calls of the tasks of the first level."""
        return [one for n in range(2) for one in self.plane._tasks[1, n]._task.calls.values()]

    def finish(self) -> None:
        super().finish()
        self.until_ended()

    def until_ended(self) -> None:
        for _ in range(10_000):
            if self.coordinator.ended:
                return
            self.clock_us += 1000
            self.plane.tick(self.clock_us)
            self.plane.settle(self.clock_us)
        raise AssertionError("the input has not ended")


def expected_totals(seed: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for rows_of in feeds(seed).feeds.values():
        for key, value, _ in rows_of:
            found[str(key)] += value if value != 13 else 0
    return dict(found)


def last_totals(kept: Kept) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in kept.rows:
        key, _, total = row["value"].partition(": ")
        found[key] = max(found.get(key, 0), int(total))
    return found


class Changes(mr.AsyncComputation):
    inputs = {"events": mr.by("key")}
    outputs = {"told": str}

    async def call(self, request: Any) -> Any:
        request["value"] = -1

    def process_response(self, record: mr.Record, response: Any) -> None:
        self.produce("told", f"{self.key}: {record.value['value']}")


def test_the_response_does_not_see_what_a_call_changed_of_its_record() -> None:
    p, kept = mr.Pipeline("changes"), Kept()
    p.inject("events", feeds(rows=3), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
    p.add(Changes)
    p.sink("told", kept)
    live = LiveWithCalls(p, 1)
    live.boot()
    live.finish()
    rows = [row for rows_of in feeds(rows=3).feeds.values() for row in rows_of]
    told = sorted(row["value"] for row in kept.rows)
    assert told == sorted(f"{key}: {value}" for key, value, _ in rows)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("crash", [0.0, 0.05])
def test_state_and_outputs_count_each_call_once(seed: int, crash: float) -> None:
    pipeline, kept = spending(seed)
    live = LiveWithCalls(pipeline, seed)
    live.boot()
    live.play(random.Random(seed), turns=400, crash=crash)
    live.finish()
    assert last_totals(kept) == expected_totals(seed)
    count = sum(value != 13 for of in feeds(seed).feeds.values() for _, value, _ in of)
    assert len(kept.rows) == count


@pytest.mark.parametrize("seed", range(4))
def test_windows_behind_calls_have_all_that_was_asked(seed: int) -> None:
    pipeline, kept = windowed(seed)
    live = LiveWithCalls(pipeline, seed, idle=0.8)
    live.boot()
    live.play(random.Random(seed), turns=400, crash=0.03)
    live.finish()
    expected: Counter[tuple[str, int]] = Counter()
    for of in feeds(seed).feeds.values():
        for key, value, at in of:
            expected[str(key), at // (10 * mr.SECOND)] += 2 * value
    found: Counter[tuple[str, int]] = Counter()
    for row in kept.rows:
        window = int(row["_window_start"].timestamp()) // 10
        found[row["_key"], window] = max(found[row["_key"], window], row["value"])
    assert found == expected


def test_pending_calls_are_state_and_hold_the_low_watermark() -> None:
    pipeline, _ = windowed(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)  # nothing ever returns
    live.boot()
    live.feed(20)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    assert live.marks, "a mark goes over what is pending"
    assert len(live.made) == 60
    reports = live.run_log.authority
    held = min(
        reports.report("doubled", one.id).hold_us
        for one in live.run_log.positions.maps["doubled"].intervals
    )
    earliest = min(at for of in live.fed()[0].feeds.values() for _, _, at in of[:20])
    assert held == earliest
    assert reports.low_watermarks.outputs["doubled"] <= earliest
    explained = str(explain_watermark(live.state, "doubled"))
    assert "Pinned by a call that is pending, of a record at" in explained, explained


def test_after_a_crash_pending_calls_are_made_again_with_their_ids() -> None:
    pipeline, _ = windowed(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)
    live.boot()
    live.feed(5)
    live.plane.settle(live.clock_us)
    first = {call.id for call in live.made}
    live.made.clear()
    live.boot()
    live.plane.settle(live.clock_us)
    assert len(live.made) == 15
    assert {call.id for call in live.made} == first


def test_no_call_is_made_before_its_pending_record_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline, _ = windowed(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)
    live.boot()
    made: list[int] = []
    append = GrownWriter._append

    def appending(self: GrownWriter, commits: list[Commit]) -> None:
        made.append(len(live.made))
        append(self, commits)
        made.append(len(live.made))

    monkeypatch.setattr(GrownWriter, "_append", appending)
    live.feed(1)
    live.plane.settle(live.clock_us)
    assert made[:2] == [0, 0]
    assert len(live.made) == 3


def test_the_source_waits_for_a_service_that_is_down_and_marks_and_a_stop_do_not() -> None:
    pipeline, _ = spending(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)  # nothing ever returns
    live.boot()
    live.feed_by_and_by(40)
    calls = live.calls()
    # Eight times as many are pending as may be in flight, in one of the tasks at the least.
    assert 8 * Spend.calls.concurrency <= max(one.kept for one in calls) < 120
    live.plane.mark(live.clock_us)
    assert live.marks
    read = sum(one.count for of in live.run_log.source_offsets.values() for one in of.values())
    assert read == sum(one.kept for one in calls) < 120
    # In another incarnation they are still waited for.
    live.boot()
    live.plane.settle(live.clock_us)
    live.plane.end(live.clock_us)
    assert live.coordinator.ended
    assert read == sum(
        one.count for of in live.run_log.source_offsets.values() for one in of.values()
    )


def test_the_source_goes_on_when_half_of_the_calls_have_returned() -> None:
    pipeline, kept = spending(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)
    live.boot()
    live.feed_by_and_by(40)
    read = sum(one.kept for one in live.calls())
    for calls in live.calls():
        calls.pool._idle = 0.0
    while any(calls.pending for calls in live.calls()):
        live.plane.settle(live.clock_us)
    live.finish()
    assert last_totals(kept) == expected_totals(1)
    assert (
        read
        < 120
        == sum(one.count for of in live.run_log.source_offsets.values() for one in of.values())
    )


def test_a_mark_with_pending_calls_is_not_quiet_though_all_input_is_read() -> None:
    """Else ``process_available`` returned before what was asked for had come."""
    pipeline, _ = windowed(1)
    live = LiveWithCalls(pipeline, 1, idle=1.0)
    live.boot()
    live.feed(20)
    quiet = []
    for idle in (1.0, 1.0, 0.0, 0.0):
        for calls in live.calls():
            calls.pool._idle = idle
        for _ in range(200):
            live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
        quiet.append(live.marks[-1].report.is_quiet)
    assert quiet == [False, False, True, True]


def test_wall_clock_expiry_of_a_cell_is_no_pending_call() -> None:
    class Remembering(Spend):
        remembered = mr.ValueState(int, expires="1 day", domain=mr.WALL_TIME)

        def process_response(self, record: mr.Record, response: Any) -> None:
            super().process_response(record, response)
            self.remembered.set(1)

    p, kept = mr.Pipeline("remembering"), Kept()
    p.inject("events", feeds(1), timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
    p.add(Remembering)
    p.dead_letter("letters")
    p.sink("told", kept)
    live = LiveWithCalls(p, 1)
    live.boot()
    live.play(random.Random(1), turns=400)
    live.finish()
    assert any(
        live.run_log.authority.report("Remembering", one.id).wall_timers
        for one in live.run_log.positions.maps["Remembering"].intervals
    )
    assert [calls.kept for calls in live.calls()] == [0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_epochs_take_over_what_real_time_left_pending(seed: int) -> None:
    pipeline, kept = spending(seed)
    live = LiveWithCalls(pipeline, seed, idle=0.9)
    live.boot()
    live.play(random.Random(seed), turns=200)
    live.plane.end(live.clock_us)
    live.until_ended()
    left = [
        live.run_log.authority.report("Spend", one.id).wall_timers
        for one in live.run_log.positions.maps["Spend"].intervals
    ]
    assert any(left), "the last mark goes over what is pending"
    epochs = InEpochs(live)
    live.feed(100)
    epochs.run(live.clock_us + mr.SECOND)
    assert last_totals(kept) == expected_totals(seed)


def every(event: Any) -> bool:
    return bool(event)


def filtered(
    source: Feeds, kept: Kept, *, beside: int = 0, steps: int = 1, format: Any = dict
) -> mr.Pipeline:
    """Calls behind filters, and other filters of the same stream."""
    p = mr.Pipeline("filtered")
    policy = mr.BoundedDelay("5 s")
    events = p.inject("events", source, timestamp="at", low_watermark=policy, format=format)
    for _ in range(beside):
        p.sink(events.filter(every).name, Kept())
    for _ in range(steps):
        events = events.filter(every)
    called = events.key_by("key").map_async(double, order="none", name="doubled")
    p.sink(called.name, kept)
    return p


def test_pending_calls_go_on_behind_other_steps_under_their_ids() -> None:
    source, kept = feeds(), Kept()
    live = LiveWithCalls(filtered(source, kept), 1, idle=0.9)
    for change in ({"beside": 1}, {"steps": 2}):
        live.boot()
        live.play(random.Random(1), turns=60)
        live.plane.end(live.clock_us)
        live.until_ended()
        reports = live.run_log.authority.bulletins["doubled"].reports.values()
        assert any(report.wall_timers for report in reports), "calls are pending"
        live.pipeline = filtered(source, kept, **change)
        live.open()
    live.boot()
    live.finish()
    doubled = [msgspec.json.decode(row["value"])["value"] for row in kept.rows]
    assert Counter(doubled) == Counter(
        2 * value for given in source.feeds.values() for _, value, _ in given
    )
    assert len({call.id for call in live.made}) == len(doubled), "a call has one id"


class Event(msgspec.Struct):
    key: int
    value: int


class Longer(Event):
    name: str = ""


def test_what_pending_calls_are_of_has_a_format_that_stays() -> None:
    live = Live(filtered(feeds(), Kept(), format=Event))
    RunLog(filtered(feeds(), Kept(), format=Longer).build(), live.state, intervals=4)
    with pytest.raises(CheckpointMismatch, match="'doubled', input 'events > filter': was Longer"):
        RunLog(filtered(feeds(), Kept(), format=dict).build(), live.state, intervals=4)


@pytest.mark.parametrize("seed", range(2))
def test_pending_calls_move_with_their_keys_to_other_intervals(seed: int) -> None:
    pipeline, kept = spending(seed)
    live = LiveWithCalls(pipeline, seed, idle=0.9)
    live.boot()
    live.play(random.Random(seed), turns=200)
    live.plane.end(live.clock_us)
    live.until_ended()
    epochs = InEpochs(live)
    remap(epochs.run_log, {"Spend": [Split(0), Merge(2, 3)]})
    live.open()
    live.boot()
    live.finish()
    assert last_totals(kept) == expected_totals(seed)
