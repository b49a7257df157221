"""What the real-time plane does when something fails at the worst moment."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.entries import Completion, LiveMark, decode_entry
from millrace.epochlog.positions import Positions
from millrace.kernel.results import Counters, IntervalResult, footing
from millrace.kernel.router import RowsBuilder
from millrace.model.errors import (
    CheckpointUnwritable,
    DamagedCache,
    DamagedStore,
    StoreError,
    ZombieWriter,
)
from millrace.runtime.commit_writer import commits_again
from millrace.runtime.realtime.coordinator import Marked
from millrace.runtime.realtime.incarnation_start import TaskNote, encode_note, known_to, last_notes
from millrace.runtime.reports import MarkReport
from millrace.store import (
    NOTHING,
    Commit,
    GrownSegment,
    MemoryCache,
    MemoryCaches,
    MemoryHardState,
    Repair,
    Seal,
    SegmentName,
)
from millrace.watermark.authority import Bulletin
from millrace.watermark.report import NOTHING_PENDING
from tests.live import Feeds, Kept, Live

FOOTING = footing(NOTHING_PENDING, Counters(), weak=False)


class CountByKey(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"seen": list}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("seen", [self.key, record.value["value"], self.count.get()])


class Last(mr.Computation):
    inputs = {"seen": mr.by(lambda value: value[0] // 9)}
    outputs = {"last": list}

    def process_record(self, record: mr.Record) -> None:
        self.produce("last", record.value)


class NewestFirst(Feeds):
    """What comes at once is read newest first, as files may be."""

    def read(self, process: str, start: Any, end: Any) -> Any:
        return list(reversed(self.feeds[process][start or 0 : end]))


def pipeline(
    feeds: Feeds | None = None, *, sink: Any = None, stream: str = "seen"
) -> tuple[mr.Pipeline, Any]:
    p = mr.Pipeline("failing")
    kept = Kept() if sink is None else sink
    rows = [(n % 5, n, 1_000_000 * n) for n in range(12)]
    p.inject(
        "events",
        feeds or Feeds("key long, value long, at long", {"a": rows}),
        timestamp="at",
        low_watermark=mr.BoundedDelay("5 s"),
    )
    p.add(CountByKey)
    p.add(Last)
    p.sink(stream, kept)
    return p, kept


class Refusing:
    """An epoch log that refuses one kind of entry once."""

    def __init__(self, log: Any, kind: type, *, written: bool = False) -> None:
        self._log = log
        self._kind = kind
        self._written = written
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, number: int, entry: bytes) -> bool:
        if self.armed and isinstance(decode_entry(entry), self._kind):
            self.armed = False
            if self._written:
                self._log.append(number, entry)
            raise CheckpointUnwritable("the test refuses it")
        return bool(self._log.append(number, entry))


def test_marks_are_made_as_often_as_ever_when_the_wall_clock_is_set_back() -> None:
    p, kept = pipeline()
    elapsed = [0]
    live = Live(p, elapsed_us=lambda: elapsed[0])
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    live.clock_us -= 5 * mr.HOUR
    elapsed[0] += 2 * mr.HOUR
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)

    assert len(kept.rows) == 12


def test_a_mark_that_was_under_way_when_a_incarnation_failed_is_made_in_the_next() -> None:
    """Who asked for it waits for it; the clock would have it made in an hour."""
    p, kept = pipeline()
    live = Live(p)
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.boot()
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)

    assert len(kept.rows) == 12


@pytest.mark.parametrize("written", [False, True])
def test_a_completion_that_was_refused_is_written_by_the_next_incarnation_and_counts_once(written):
    p, kept = pipeline()
    live = Live(p)
    log = Refusing(live.run_log._log._log, Completion, written=written)
    live.run_log._log._log = log
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    log.armed = True
    with pytest.raises(CheckpointUnwritable):
        live.plane.mark(live.clock_us)
    assert not kept.rows
    live.boot()
    assert live.run_log.completed == 0
    assert len(kept.rows) == 12
    live.finish()
    assert live.run_log.sources["events"].records == 12
    assert live.run_log.counters["CountByKey"].records == 12
    assert len(kept.rows) == 12


class Failing(Kept):
    """A sink that lasts, and cannot be published to once."""

    armed = False

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        if self.armed:
            self.armed = False
            raise StoreError("the test refuses it")
        super().publish(epoch, receipts)

    publish_again = publish


def test_a_last_mark_that_could_not_be_published_is_still_the_last():
    p, kept = pipeline(sink=Failing())
    live = Live(p)
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    kept.armed = True
    with pytest.raises(StoreError):
        live.plane.end(live.clock_us, draining=True)
    live.boot()
    assert live.coordinator.ended
    assert live.run_log.completed == 0
    assert len(kept.rows) == 12


def test_who_finds_the_input_ended_publishes_what_its_driver_had_not():
    p, kept = pipeline(sink=Failing())
    live = Live(p)
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    kept.armed = True
    with pytest.raises(StoreError):
        live.plane.end(live.clock_us, draining=True)
    assert not kept.rows
    live.open()
    assert live.coordinator.ended
    assert len(kept.rows) == 12


@pytest.mark.parametrize("marked_first", [False, True])
def test_what_was_decided_before_a_mark_is_read_in_that_order_after_two_failures(marked_first):
    rows = [(n % 5, n, 1_000_000 * n) for n in range(6)]
    p, kept = pipeline(NewestFirst("key long, value long, at long", {"a": rows}))
    live = Live(p, tasks=1)
    live.boot()
    live.feed(3)
    if marked_first:
        # The injector task has passed a mark that is never complete.
        live.coordinator.mark_soon()
        live.plane.tick(live.clock_us)
        live.plane.turn((0, 0), live.clock_us)
    live.plane.turn((0, 0), live.clock_us)  # three rows are decided, and none is read
    live.boot()
    live.plane.mark(live.clock_us) if marked_first else live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)
    live.feed(6)
    live.plane.settle(live.clock_us)
    live.boot()
    live.finish()
    seen = sorted(row["value"] for row in kept.rows)
    assert len(seen) == 6
    assert live.run_log.sources["events"].records == 6


class Turns:
    """A live sink in memory."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def live(self) -> Turns:
        return self

    def begin(self, incarnation: int, generation: int, task: int) -> Turns:
        return self

    def write(self, rows: Any, origins: Any, sequences: Any) -> None:
        self.rows += rows.to_pylist()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, *_: Any) -> None:
        """Stand for a sink of the epoch plane."""


def test_a_task_of_an_older_incarnation_writes_nothing_to_a_live_sink():
    p, sink = pipeline(sink=Turns())
    live = Live(p, tasks=1)
    live.boot()
    live.feed(12)
    for _ in range(3):
        live.plane.turn((0, 0), live.clock_us)
    live.plane.turn((1, 0), live.clock_us)
    assert not sink.rows
    live.state.incarnations.seal(live.state.incarnations.last() + 1)
    with pytest.raises(ZombieWriter):
        live.plane.turn((2, 0), live.clock_us)
    assert not sink.rows


@pytest.mark.parametrize("written", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("turns", range(6))
def test_a_full_disk_ends_the_incarnation_and_no_row_is_lost_or_doubled(
    monkeypatch, turns, written
):
    p, kept = pipeline(stream="last")
    live = Live(p, tasks=1)
    live.boot()
    append, left = GrownSegment.append, turns

    def refused(self: GrownSegment, commits: Any, note: bytes = b"") -> None:
        nonlocal left
        left -= 1
        if left >= 0 or written:
            append(self, commits, note)
        if left < 0:
            raise CheckpointUnwritable("The disk is full: free room, or extend the volume")

    with monkeypatch.context() as patched:
        patched.setattr(GrownSegment, "append", refused)
        with pytest.raises(CheckpointUnwritable, match="free room"):
            _row_by_row(live)
    live.boot()
    live.finish()
    seen = sorted(json.loads(row["value"])[1:] for row in kept.rows)
    assert seen == [[n, n // 5 + 1] for n in range(12)]


def _row_by_row(live: Live) -> None:
    for limit in range(1, 13):
        live.feed(limit)
        live.plane.settle(live.clock_us)


def test_a_task_of_an_older_incarnation_brings_no_cache_to_commits_that_no_seal_has():
    """A snapshot of such a cache would stand for commits that do not exist."""
    p, kept = pipeline()
    live = Live(p, tasks=1)
    live.boot()
    live.feed(6)
    live.plane.settle(live.clock_us)
    caches = live.caches[0]._open
    before = {at: cache.cache_position for at, cache in caches.items()}
    live.feed(12)
    for _ in range(3):
        live.plane.turn((0, 0), live.clock_us)
    live.state.incarnations.seal(live.state.incarnations.last() + 1)
    with pytest.raises(ZombieWriter):
        live.plane.turn((1, 0), live.clock_us)
    assert {at: cache.cache_position for at, cache in caches.items()} == before
    live.boot()
    live.finish()
    assert len(kept.rows) == 12


def test_a_cache_that_is_lost_in_mid_incarnation_ends_it_and_says_that_nothing_is_lost():
    p, kept = pipeline()
    live = Live(p, tasks=1)
    live.boot()

    def read(*limits: int) -> None:
        for limit in limits:
            live.feed(limit)
            live.plane.settle(live.clock_us)
            live.coordinator.mark_soon()
            live.plane.tick(live.clock_us)
            live.plane.settle(live.clock_us)

    read(9)  # and caches have everything, as a mark has passed
    for name, interval in list(live.caches[0]._open):
        live.caches[0].open(name, interval).clear()
    # A task goes on with rows that it has in memory, until it asks its cache, or tells it.
    with pytest.raises(StoreError, match="Nothing was lost") as caught:
        read(12)
    assert not isinstance(caught.value, DamagedStore)
    live.boot()
    live.finish()
    assert len(kept.rows) == 12


class Altered:
    """A view whose rows are found altered by one way of reading them; its cache is wiped then.

    Args:
        cache: The cache.
        by: ``scan`` or ``get_many``.
    """

    def __init__(self, cache: MemoryCache, by: str) -> None:
        self._cache = cache
        self._by = by
        self._whole = MemoryCache.view(cache)

    def __enter__(self):
        self._view = self._whole.__enter__()
        return self

    def __exit__(self, *raised):
        return self._whole.__exit__(*raised)

    def __getattr__(self, name):
        if name == self._by:
            del self._cache.view
            self._cache.clear()
            raise DamagedCache("a row was altered")
        return getattr(self._view, name)


@pytest.mark.parametrize("by", ["scan", "get_many"])
def test_caches_that_are_found_damaged_are_made_again_and_the_incarnation_goes_on(by):
    p, kept = pipeline()
    live = Live(p, tasks=1)
    live.boot()
    live.feed(6)
    live.plane.settle(live.clock_us)
    live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)  # caches have everything
    live.boot()
    found = [cache for cache in live.caches[0]._open.values() if cache.position]
    for cache in found:
        cache.view = lambda at=None, cache=cache: Altered(cache, by)  # noqa: ARG005  as it is called
    live.feed(12)
    live.plane.settle(live.clock_us)
    assert any("view" not in vars(cache) for cache in found)  # it was found out
    live.finish()
    assert len(kept.rows) == 12


def test_a_task_without_commits_knows_how_far_its_readers_had_come():
    p, _ = pipeline()
    known = encode_note(TaskNote(7, {"Last": {100: 5, 80: 6}}, []))
    found = known_to(p.build(), 2, {(2, 1): known}, None, {})
    floors = [found[1, n].floor(()) for n in (0, 1)]
    assert floors == [{"CountByKey": {100: 5, 80: 6}}] * 2
    assert found[1, 0].floor({"CountByKey"}) == {}  # what comes again to it must not be late
    again = known_to(p.build(), 1, {}, LiveMark(tasks=2, notes={"2-0": known}, incarnation=1), {})
    assert again[1, 0].floor(()) == {"CountByKey": {100: 5, 80: 6}}


def test_what_an_injector_task_decided_before_the_incarnation_of_the_last_mark_is_in_that_mark():
    older, newer = SegmentName(1, 0, 0, 1), SegmentName(2, 0, 1, 1)
    deeper = SegmentName(1, 1, 0, 1)
    names = [str(name) for name in (older, newer, deeper)]
    # A power cut has brought the older one back; the newer one of task 0 is gone.
    sealing = Seal(3, dict.fromkeys(names, 9), {name: name.encode() for name in names})
    assert last_notes(sealing, LiveMark(tasks=2, incarnation=2)).keys() == {
        (0, 1),
        (1, 0),
    }
    assert last_notes(sealing, None).keys() == {(0, 0), (0, 1), (1, 0)}


@pytest.mark.parametrize("listed_again", [True, False])
def test_a_segment_may_be_collected_while_a_task_takes_up_its_commits(
    listed_again: bool, monkeypatch: pytest.MonkeyPatch
):
    incarnations = MemoryHardState().incarnations
    incarnations.seal(1)
    for part, number in ((1, 1), (2, 2)):
        incarnations.grow(1, 1, 0, part).append(
            [Commit("count", 0, number, 1, 1, [], RowsBuilder().pack(), FOOTING)]
        )
    incarnations.seal(2)
    first, _ = listed = incarnations.names()
    incarnations.remove([first])
    positions = Positions({"count": Bulletin("count")})
    positions.numbers["count"][0] = 1
    monkeypatch.setattr(incarnations, "names", iter([listed, listed[not listed_again :]]).__next__)
    found = commits_again(incarnations, 1, 0, positions)
    if listed_again:  # somebody else has taken it away
        with pytest.raises(DamagedStore, match="00000001-01-0000-00000001: it has gone"):
            list(found)
    else:
        assert [result.number for result, _ in found] == [2]


def test_a_mark_is_not_complete_behind_the_seal_of_a_run_that_was_superseded():
    p, kept = pipeline()
    live = Live(p)
    live.boot()
    live.feed(6)
    live.plane.settle(live.clock_us)
    # It slept since it looked whether it is the last, and seals an incarnation of its own.
    assert live.state.incarnations.seal(live.state.incarnations.last() + 1) is not None
    live.feed(12)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    assert live.run_log.completed == -1
    assert not isinstance(live.coordinator.failed, ZombieWriter)
    live.boot()
    live.finish()
    assert live.run_log.sources["events"].records == 12
    assert live.run_log.counters["CountByKey"].records == 12
    assert len(kept.rows) == 12


def test_a_run_that_is_superseded_while_it_seals_begins_no_incarnation():
    p, _ = pipeline()
    live = Live(p)
    live.boot()
    incarnations = live.state.incarnations
    seal = incarnations.seal

    def meanwhile(incarnation: int) -> Any:
        incarnations.seal = seal
        sealing = seal(incarnation)
        Live(p, state=live.state)
        return sealing

    incarnations.seal = meanwhile
    with pytest.raises(ZombieWriter):
        live.boot()
    assert live.coordinator.incarnation is None


class Waking(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"woken": int}

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("later", at=self.wall_time + 10 * mr.SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("woken", self.wall_time - timer.at)


@pytest.mark.parametrize("again", [False, True], ids=["in an incarnation", "between two"])
def test_a_clock_that_is_set_back_fires_no_timer_early_and_none_twice(again):
    p, kept = mr.Pipeline("clock"), Kept()
    rows = [(n, 0, 1_000_000 * n) for n in range(4)]
    p.inject(
        "events",
        Feeds("key long, value long, at long", {"a": rows}),
        timestamp="at",
        low_watermark=mr.BoundedDelay("5 s"),
    )
    p.add(Waking)
    p.sink("woken", kept)
    live = Live(p)
    live.boot()
    live.feed(4)
    live.plane.settle(live.clock_us)
    begun_us = live.clock_us
    fired = []
    for seconds in (-3600, 5, 9, -60, 11, -3600, 30):
        live.clock_us = begun_us + seconds * mr.SECOND
        if again:
            live.boot()
        live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
        fired.append(len(kept.rows))
    assert fired == [0, 0, 0, 0, 4, 4, 4]
    assert {row["value"] for row in kept.rows} == {mr.SECOND}


def test_caches_that_a_incarnation_has_to_build_are_reported_with_its_first_mark() -> None:
    p, _ = pipeline()
    live = Live(p)
    live.boot()
    live.feed(4)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    live.feed(8)
    live.plane.settle(live.clock_us)  # what comes after the mark is in a segment alone
    live.caches = [MemoryCaches() for _ in live.caches]
    marks: list[Marked] = []
    live.coordinator._completed = marks.append
    live.boot()
    live.feed(12)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)

    results = marks[0].report.results
    assert max(result.number for result in results) > 1
    # Of each interval all commits but the one that is new, if there were any.
    assert [(one.repair.deltas_applied, one.repair.rebuilt) for one in results] == [
        (one.number - 1, one.number > 1) for one in results
    ]


def test_all_that_was_done_to_a_cache_between_two_marks_is_reported() -> None:
    report = MarkReport()
    result = IntervalResult("Counting", 3, 7, NOTHING_PENDING, Counters(), repair=Repair(2))
    report.repaired("Counting", 3, Repair(1, rebuilt=True, bytes_read=10, snapshot=4))
    report.add(result)
    report.add(result)
    report.repaired("Counting", 3, Repair(damaged=1))
    report.repaired("Counting", 4, Repair(5))

    (interval,) = report.take().results
    assert interval.repair == Repair(5, rebuilt=True, bytes_read=10, snapshot=4, damaged=1)
    report.add(msgspec.structs.replace(result, interval=4, repair=NOTHING))
    (interval,) = report.take().results
    assert interval.repair == Repair(5), "what had no commit yet is reported with the next"
