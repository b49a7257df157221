"""Key intervals of live tasks split and merge where all have stopped, and nothing comes of it."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.balance.preparation import Preparation
from millrace.balance.transfer import remap, rows_at
from millrace.epochlog.fence import seal_left
from millrace.kernel import families
from millrace.model.errors import PipelineError, StoreError, ZombieWriter
from millrace.runtime.realtime.incarnation_start import decode_note, to_other_intervals
from millrace.runtime.realtime.messages import RenewTask, StartTask, StopTask, TaskReady
from millrace.store import Collector, CommitLog, MemoryHardState
from millrace.testing.faults import Crash, CrashingState
from millrace.watermark.map_change import Merge, Split
from tests.live import Feeds, InEpochs, Kept, Live, undisturbed


class Event(msgspec.Struct):
    key: int
    value: int
    at: int


class Counted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.set_timer(f"of {record.value.value}", at=record.timestamp + mr.SECOND)
        self.produce("counts", f"{self.key}: {self.count.get()}")

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("counts", f"{self.key}: {timer.tag}")


class Parity(mr.Computation):
    inputs = {"counts": mr.by(lambda count: count.partition(":")[0][-1])}
    outputs = {"parities": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("parities", f"{self.key}: {self.count.get()}")


def feeds(seed: int = 1) -> Feeds:
    rng = random.Random(seed)
    rows = [[(rng.randrange(12), 100 * n + i, 1_000_000 * i) for i in range(60)] for n in range(3)]
    return Feeds("key long, value long, at long", {f"p{n}": one for n, one in enumerate(rows)})


class Both:
    """What two sinks got."""

    def __init__(self) -> None:
        self.sinks = [Kept(), Kept()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for sink in self.sinks for row in sink.rows]


def counting(productions: Any = mr.STRONG) -> tuple[mr.Pipeline, Both]:
    p, kept = mr.Pipeline("counting"), Both()
    policy = mr.BoundedDelay("5 s")
    events = p.inject("events", feeds(), timestamp="at", low_watermark=policy, format=Event)
    p.add(Counted)
    p.add(Parity, productions=productions)
    events.key_by("key").window(mr.FixedWindows("10 s")).sum("value").to("sums")
    p.sink("parities", kept.sinks[0])
    p.sink("sums", kept.sinks[1])
    return p, kept


def values(rows: list[dict[str, Any]]) -> Counter[str]:
    left_out = {"_id", "_production_time", "_timestamp"}
    return Counter(str({k: v for k, v in row.items() if k not in left_out}) for row in rows)


def to_rest(live: Live) -> None:
    live.coordinator.rest()
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)
    assert live.coordinator.ended
    assert live.run_log.open is None


def on(live: Live, *, anew: bool = False) -> None:
    """Let the run go on: with the tasks that there are, or after all have died at the rest."""
    assert not live.plane.running
    live.coordinator.go_on()
    if anew:
        live.boot()
    else:
        live.plane.tick(live.clock_us)
    assert live.plane.running


def some_remap(live: Live, rng: random.Random) -> dict[str, list[Split | Merge]]:
    name = rng.choice(sorted(live.run_log.positions.maps))
    there = live.run_log.positions.maps[name].intervals
    at = rng.randrange(len(there))
    if at + 1 < len(there) and rng.random() < 0.5:
        return {name: [Merge(there[at].id, there[at + 1].id)]}
    return {name: [Split(there[at].id)]}


@pytest.mark.parametrize("productions", [mr.STRONG, mr.WEAK])
@pytest.mark.parametrize("seed", range(6))
def test_no_remap_between_incarnations_and_no_crash_changes_an_output(
    seed: int, productions: Any
) -> None:
    expected = values(undisturbed(lambda: counting(productions)))
    pipeline, kept = counting(productions)
    live, rng = Live(pipeline), random.Random(seed)
    live.boot()
    ever = 0
    for n in range(5):
        live.play(rng, turns=120, crash=0.02, mark=0.08)
        live.boot()
        live.plane.settle(live.clock_us)
        to_rest(live)
        seal_left(live.state.incarnations)
        for _ in range(rng.randrange(1, 4)):
            remap(live.run_log, some_remap(live, rng))
            ever += 1
        if n % 2:
            live.open()  # the driver was killed: another takes up what it left
            live.boot()
        else:
            on(live, anew=rng.random() < 0.3)
        Collector(live.state).collect(live.coordinator.collectable())
    live.finish()
    assert live.coordinator.ended
    assert ever >= 5
    assert values(kept.rows) == expected


def test_nothing_is_kept_of_senders_that_a_remap_has_ended() -> None:
    pipeline, kept = counting()
    live = Live(pipeline)
    live.boot()
    for rows in range(10, 70, 10):
        live.feed(rows)
        live.plane.settle(live.clock_us)
        to_rest(live)
        seal_left(live.state.incarnations)
        if rows < 60:
            low, high, *_ = [one.id for one in live.run_log.positions.maps["Counted"].intervals]
            remap(live.run_log, {"Counted": [Merge(low, high) if rows % 20 else Split(low)]})
            on(live)
    positions, read = live.run_log.positions, rows_at(live.state, "Parity")
    number = live.run_log.topology.computation("Counted").number
    channels = set[int]()
    for one in positions.maps["Parity"].intervals:
        stands = positions.of("Parity", one.id)
        rows = [families.unpack(*pair) for pair in read(one, stands.number, stands.chain)]
        channels |= {
            row.part for row in rows if isinstance(row, families.ChannelRow) and row.who == number
        }
    assert channels
    assert channels <= {one.id for one in positions.maps["Counted"].intervals}
    on(live)
    live.finish()
    assert values(kept.rows) == values(undisturbed(counting))


def test_what_a_remap_reads_is_read_beside_live_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = values(undisturbed(counting))
    pipeline, kept = counting()
    live = Live(pipeline)
    live.boot()
    for rows in (20, 40):
        live.feed(rows)
        live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
    remaps = {"Counted": [Split(0), Merge(2, 3)]}
    preparation, positions = Preparation(live.run_log, remaps), live.run_log.positions
    assert preparation.changes()
    assert not preparation.is_near_a_mark()
    preparation.read()
    stood = {one: cache.position for one, cache in preparation.ready["Counted"].items()}
    assert stood == {one: positions.of("Counted", one).number for one in (0, 2, 3)}
    live.feed(50)
    live.plane.settle(live.clock_us)
    to_rest(live)
    read = list[tuple[int, int]]()
    log_read = CommitLog.read

    def reading(self: Any, computation: str, interval: int, number: int) -> Any:
        read.append((interval, number))
        return log_read(self, computation, interval, number)

    monkeypatch.setattr(CommitLog, "read", reading)
    due = [
        (one, number + 1)
        for one, last in stood.items()
        for number in range(last, positions.of("Counted", one).number)
    ]
    made = to_other_intervals(live.run_log, remaps, ready=preparation.ready)
    assert len(made["Counted"].intervals) == 4
    assert due
    assert read == due
    on(live)
    live.finish()
    assert values(kept.rows) == expected


def test_a_crash_at_any_write_of_a_remap_leaves_the_intervals_before_or_those_after() -> None:
    expected = values(undisturbed(counting))
    found = list[int]()
    # Two markers and two seals, a claim, a snapshot for each of four, and the completion.
    for writes in range(13):
        pipeline, kept = counting()
        state = CrashingState(MemoryHardState())
        live = Live(pipeline, state=state)  # type: ignore[arg-type]
        live.feed(20)
        live.boot()
        live.plane.settle(live.clock_us)
        to_rest(live)
        state.writes = writes
        with contextlib.suppress(Crash):
            seal_left(state.incarnations)
            remap(live.run_log, {"Counted": [Split(0), Split(1)]})
        state.writes = None
        live.open()
        found.append(len(live.run_log.positions.maps["Counted"].intervals))
        live.boot()
        live.finish()
        assert values(kept.rows) == expected
    assert found[0] == 4
    assert found[-1] == 6
    assert found == sorted(found)


def test_a_drain_that_is_asked_for_at_a_rest_is_not_forgotten() -> None:
    pipeline, kept = counting()
    live = Live(pipeline)
    live.feed(60)
    live.boot()
    live.plane.settle(live.clock_us)
    live.coordinator.rest()
    live.plane.tick(live.clock_us)
    live.coordinator.end(draining=True)
    live.plane.settle(live.clock_us)
    assert live.coordinator.ended
    assert not live.run_log.drained
    on(live)
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)
    assert live.run_log.drained
    assert values(kept.rows) == values(undisturbed(counting))


def test_all_tasks_end_at_the_last_mark_at_one_low_watermark() -> None:
    """Or a key would go back where it goes to another task: after another remap, say."""
    p, kept = mr.Pipeline("counting"), Kept()
    policy = mr.ArrivalTime(0)
    p.inject("events", feeds(), timestamp=mr.INGRESS, low_watermark=policy, format=Event)
    p.add(Counted)
    p.sink("counts", kept)
    live = Live(p)
    live.feed(20)
    live.boot()
    live.plane.settle(live.clock_us)
    live.coordinator.rest()
    live.plane.tick(live.clock_us)
    for injector in range(2):
        live.plane.turn((0, injector), live.clock_us)
    live.plane.turn((1, 1), live.clock_us)
    # One task has passed the mark, the other has not, and time goes on.
    for injector in range(2):
        live.plane.turn((0, injector), live.clock_us + mr.MINUTE)
    live.plane.settle(live.clock_us + mr.MINUTE)
    assert live.coordinator.ended
    assert live.run_log.live is not None
    notes = [decode_note(note) for note in live.run_log.live.notes.values()]
    assert [note.inputs["Counted"][100] for note in notes] == [live.clock_us] * 2


def test_a_mark_that_stops_nothing_can_be_neither_remapped_nor_taken_for_the_last() -> None:
    live = Live(counting()[0])
    live.feed(20)
    live.boot()
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    with pytest.raises(PipelineError, match=r"epoch 1 is under way in real time"):
        remap(live.run_log, {"Counted": [Split(0)]})
    to_rest(live)
    assert live.run_log.open is None


def test_intervals_that_live_tasks_left_are_remapped_by_who_goes_on_in_epochs() -> None:
    expected = values(undisturbed(counting))
    pipeline, kept = counting()
    live = Live(pipeline)
    live.feed(9)
    live.boot()
    live.plane.settle(live.clock_us)
    live.plane.end(live.clock_us)
    epochs = InEpochs(live)
    assert (
        len(remap(epochs.run_log, {"Counted": [Split(0), Merge(2, 3)]})["Counted"].intervals) == 4
    )
    live.feed(25)
    epochs.run(live.clock_us)
    live.open()
    live.boot()
    live.finish()
    assert values(kept.rows) == expected


def test_a_newer_incarnation_is_not_sealed_away_twice() -> None:
    live = Live(counting()[0])
    live.feed(9)
    live.boot()
    live.plane.settle(live.clock_us)
    to_rest(live)
    newer = Live(live.pipeline, state=live.state)
    with contextlib.suppress(StoreError):
        seal_left(live.state.incarnations)
    with pytest.raises(ZombieWriter):
        remap(live.run_log, {"Counted": [Split(0)]})
    newer.boot()
    newer.finish()
    assert newer.run_log.drained


def test_a_incarnation_begins_when_all_are_there_and_it_may_whichever_comes_last() -> None:
    live = Live(counting()[0])
    live.boot()
    to_rest(live)
    coordinator, where = live.coordinator, [(n, k) for n in range(3) for k in range(2)]
    # A task is there, is gone without an error, as when Spark ends its batch, and there again.
    assert coordinator.lost(1, 1, None) == []
    coordinator.go_on()
    assert coordinator.tick(live.clock_us) == []
    begun = coordinator.receive(TaskReady(1, 1), live.clock_us)
    assert [at for at, message in begun if isinstance(message, StartTask)] == where


def test_a_task_that_is_lost_at_a_rest_ends_it_for_all() -> None:
    live = Live(counting()[0])
    live.boot()
    to_rest(live)
    orders = live.coordinator.lost(1, 1, ConnectionError("killed"))
    assert orders == [((n, k), StopTask()) for n in range(3) for k in range(2) if (n, k) != (1, 1)]
    assert isinstance(live.coordinator.failed, ConnectionError)
    # The next query's tasks are waited for, and until they are there none of them is missed.
    assert live.coordinator.lost(0, 0, ConnectionError("again")) == []
    live.coordinator.go_on()
    live.boot()
    assert live.coordinator.failed is None


def test_who_stops_for_good_is_halted_and_who_rests_is_told_to_stay() -> None:
    for resting in (False, True):
        live = Live(counting()[0])
        live.boot()
        told: list[Any] = []
        carry = live.plane._carry

        def noting(orders: Any, wall_us: int, told: Any = told, carry: Any = carry) -> None:
            told += [message for _, message in orders]
            carry(orders, wall_us)

        live.plane._carry = noting  # type: ignore[method-assign]
        (live.coordinator.rest if resting else live.coordinator.end)()
        live.plane.tick(live.clock_us)
        live.plane.settle(live.clock_us)
        assert live.coordinator.ended
        assert told[-6:] == [RenewTask() if resting else StopTask()] * 6


def test_packets_on_their_way_when_processes_join_are_passed_over() -> None:
    expected = values(undisturbed(counting))
    pipeline, kept = counting()
    live = Live(pipeline)
    injector = live.injectors["events"]
    rows = injector.feeds.pop("p2")
    live.boot()
    live.feed(2)
    live.plane.settle(live.clock_us)
    injector.feeds["p2"] = rows
    live.clock_us += 11 * mr.SECOND
    live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.feed(5)  # within the delay: what joins is not late
    incarnation = live.coordinator.incarnation
    # Injectors run ahead: when the last task passes the mark, what they sent after it has not come.
    while live.coordinator.incarnation == incarnation:
        for level in (0, 0, 0, 1, 2):
            for n in range(2):
                live.plane.turn((level, n), live.clock_us, 1)
    assert live.coordinator.failed is None
    assert any(live.plane._arrived.values())
    live.finish()
    assert values(kept.rows) == expected
