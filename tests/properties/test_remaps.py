"""A run whose key intervals split and merge between its epochs: the same outputs, through crashes.

MillWheel 7.1: intervals split and merge; 7.2: no low watermark passes a hole in the map.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.balance import transfer
from millrace.balance.transfer import remap
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import PipelineError, ZombieWriter
from millrace.store import Collector, decode_segment
from millrace.testing.faults import Crash, CrashingState
from tests.everything import Everything

NAMES = ["Everything", "counted", "visits"]
STREAMS = ["said", "counted", "visits"]


class Event(msgspec.Struct):
    key: int
    n: int


def harness(productions: Any = mr.STRONG) -> mr.testing.Harness:
    p = mr.Pipeline("shop")
    events = p.inject("events", format=Event, id="n", slack=40)
    p.add(Everything, productions=productions)
    by = events.key_by("key")
    by.window(mr.FixedWindows(10)).count().to("counted")
    by.window(mr.Sessions(6)).sum("n").to("visits")
    return mr.testing.Harness(p, intervals=4)


def step(h: mr.testing.Harness, n: int) -> None:
    """Deliver some records, a few of them again, and let time pass."""
    numbers = [*range(n * 8, n * 8 + 8), *range(max(0, n * 8 - 3), n * 8)]
    h.inject("events", [(Event(one * 5 % 7, one), one + one * 7 % 3) for one in numbers])
    h.advance_watermark("events", max(0, n * 8 - 4))


def end(h: mr.testing.Harness) -> Counter[tuple[Any, ...]]:
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    h.close()
    return Counter(
        (stream, repr(one.key), repr(one.value), one.timestamp, repr(one.pane))
        for stream in STREAMS
        for one in h.outputs(stream)
    )


STEPS = 5


def plain() -> Counter[tuple[Any, ...]]:
    h = harness()
    for n in range(STEPS):
        step(h, n)
    return end(h)


PLAIN = plain()


def places(h: mr.testing.Harness, name: str) -> list[int]:
    return [one.id for one in h.checkpoint()[name].intervals]


def draw_remaps(
    h: mr.testing.Harness, name: str, drawn: list[int]
) -> list[mr.ops.Split | mr.ops.Merge]:
    """Return what a few numbers say of the intervals that are there."""
    left = places(h, name)
    asked: list[mr.ops.Split | mr.ops.Merge] = []
    for number in drawn:
        at = number // 2 % len(left)
        if number % 2 and at + 1 < len(left):
            asked.append(mr.ops.Merge(left.pop(at), left[at]))
            # What lies on either side of one that is gone are no neighbours here.
            del left[at]
            left = left[at:] or left[:at]
        else:
            asked.append(mr.ops.Split(left.pop(at)))
            left = left[at:] or left[:at]
        if not left:
            break
    return asked


drawn = st.tuples(
    st.sampled_from(NAMES),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 6)),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(drawn, max_size=2), min_size=STEPS, max_size=STEPS))
@example([[], [("Everything", [0, 2, 4, 6], None)], [("Everything", [1, 1], 1)], [], []])
def test_no_sequence_of_remaps_changes_an_output(
    rounds: list[list[tuple[str, list[int], int | None]]],
) -> None:
    h = harness()
    ever = {name: {one.id: one for one in map_of(h, name)} for name in NAMES}
    for n in range(STEPS):
        step(h, n)
        for name, numbers, crash in rounds[n]:
            if crash is not None:
                h.crash_in_next_epoch(crash)
            h.remap(name, draw_remaps(h, name, numbers))
            event(f"{len(map_of(h, name))} intervals")
            for one in map_of(h, name):
                # An id is never another interval's.
                assert (ever[name].setdefault(one.id, one).start, ever[name][one.id].end) == (
                    one.start,
                    one.end,
                )
            h.check()
    assert end(h) == PLAIN


def map_of(h: mr.testing.Harness, name: str) -> Any:
    return h._run_log.positions.maps[h._topology.name_of(name)].intervals


def test_a_crash_at_any_write_of_a_remap_leaves_the_old_map_or_the_new() -> None:
    seen = set()
    # A claim, a snapshot for each of three that are made, and the completion.
    for writes in range(6):
        h = harness()
        for n in range(3):
            step(h, n)
        before = h._run_log.positions.maps["Everything"]
        h._process.state.writes = writes
        with contextlib.suppress(Crash):
            remap(h._run_log, {"Everything": [mr.ops.Split(0), mr.ops.Merge(2, 3)]})
        h._recover()
        after = h._run_log.positions.maps["Everything"]
        seen.add((writes, after == before))
        assert after == before or len(after) == 4
        for n in range(3, STEPS):
            step(h, n)
        assert end(h) == PLAIN
    assert seen == {(writes, writes < 5) for writes in range(6)}


@pytest.mark.parametrize("productions", [mr.STRONG, mr.WEAK], ids=["strong", "weak"])
def test_what_was_of_intervals_that_are_no_more_is_collected(productions: Any) -> None:
    h = harness(productions)
    step(h, 0)
    h.remap("Everything", [mr.ops.Split(0), mr.ops.Merge(2, 3)])
    h._process.state.writes = 2  # dies when it has written one of the two
    with pytest.raises(Crash):
        remap(h._run_log, {"Everything": [mr.ops.Split(1)]})
    h._recover()
    for n in range(1, STEPS):
        step(h, n)
    there = {one.id for one in map_of(h, "Everything")}
    assert there == {1, 4, 5, 6}
    state = h._durable
    assert set(state.snapshots.numbers("Everything")) <= there
    for name in state.blobs.names("commits/Everything"):
        commits = decode_segment(state.blobs.read(name) or b"")
        assert any(commit.interval in there for commit in commits), "or it would have gone"
    assert end(h) == PLAIN


def test_an_interval_is_read_once_however_many_it_is_divided_into(monkeypatch: Any) -> None:
    h = harness()
    for n in range(3):
        step(h, n)
    read_of, asked = transfer.rows_at, list[tuple[str, int]]()

    def counting(state: Any, name: str, *ready: Any) -> Any:
        read = read_of(state, name, *ready)

        def counted(interval: Any, number: int, last: int) -> Any:
            asked.append((name, interval.id))
            return read(interval, number, last)

        return counted

    monkeypatch.setattr(transfer, "rows_at", counting)
    h.remap("Everything", [mr.ops.Split(0), mr.ops.Merge(2, 3)])
    assert asked == [("Everything", 0), ("Everything", 2), ("Everything", 3)]
    for n in range(3, STEPS):
        step(h, n)
    assert end(h) == PLAIN


def test_two_drivers_never_write_under_one_name() -> None:
    h = harness()
    for n in range(3):
        step(h, n)
    zombie = h._run_log
    state = CrashingState(h._durable)
    heir = RunLog(h._topology, state, intervals=4)
    made = remap(heir, {"Everything": [mr.ops.Split(0)]})
    with pytest.raises(ZombieWriter):
        remap(zombie, {"Everything": [mr.ops.Split(0)]})
    assert sorted(made["Everything"].parents) == [4, 5]
    # One that reserved ids and slept: the next knows of them, and takes others.
    heir._claim()
    claimed = RunLog(h._topology, state, intervals=4)
    made = remap(claimed, {"Everything": [mr.ops.Merge(4, 5)]})
    assert made["Everything"].parents == {6: (4, 5)}
    claim = end_of(state.epochs).claim
    assert claim is not None
    assert claim.ids == {"Everything": 7}


def test_a_driver_that_is_superseded_while_it_carries_says_so(monkeypatch: Any) -> None:
    h = harness()
    for n in range(3):
        step(h, n)
    zombie, state, whole = h._run_log, CrashingState(h._durable), transfer.all_carried

    def others_come_first(*of: Any) -> Any:
        monkeypatch.undo()
        heir = RunLog(h._topology, state, intervals=4)
        remap(heir, {"Everything": [mr.ops.Split(0)]})
        Collector(state).collect(heir.collectable())
        return whole(*of)

    monkeypatch.setattr(transfer, "all_carried", others_come_first)
    with pytest.raises(ZombieWriter):
        remap(zombie, {"Everything": [mr.ops.Split(0)]})


def test_a_remap_that_cannot_be_says_why() -> None:
    h = harness()
    with pytest.raises(PipelineError, match="no complete epoch yet"):
        h.remap("Everything", [mr.ops.Split(0)])
    step(h, 0)
    last = h._durable.epochs.last()
    for remaps, said in [
        ([mr.ops.Split(9)], "interval 9 is not there"),
        ([mr.ops.Split(0, 1 << 63)], "expected a hash above 0 and below"),
        ([mr.ops.Merge(0, 2)], "expected neighbours"),
        ([mr.ops.Split(0), mr.ops.Merge(0, 1)], "interval 0 is in another"),
    ]:
        with pytest.raises(PipelineError, match=said):
            h.remap("Everything", remaps)
    with pytest.raises(PipelineError, match="no computation 'Nobody'"):
        remap(h._run_log, {"Nobody": [mr.ops.Split(0)]})
    # Nor does one of nothing write: the epochs before a remap are not kept.
    assert remap(h._run_log, {"Everything": []})["Everything"].parents == {}
    assert h._durable.epochs.last() == last


def test_nothing_is_remapped_while_an_epoch_is_tried_again() -> None:
    h = harness()
    step(h, 0)
    driver = RunLog(h._topology, h._durable, intervals=4)
    driver.begin(driver.completed + 1, wall_time_us=0, injectors={})
    # The one that began it and fails, and the one that is to finish it.
    for one in (driver, RunLog(h._topology, h._durable, intervals=4)):
        last = h._durable.epochs.last()
        with pytest.raises(PipelineError, match=f"epoch {one.completed + 1} is unfinished"):
            remap(one, {"Everything": [mr.ops.Split(0)]})
        assert h._durable.epochs.last() == last


def _forgetting(letters: bytes) -> Any:
    whole = transfer.remade

    def remade(interval: Any, before: Any, cut: Any) -> Any:
        made = whole(interval, before, cut)
        if made is None:
            return None
        pairs = [pair for pair in made.pairs if pair[0][:1] not in letters]
        return type(made)(made.interval, made.number, made.chain, made.report, pairs)

    return remade


def _reported_as_nothing(interval: Any, before: Any, cut: Any) -> Any:
    made = REMADE(interval, before, cut)
    if made is None:
        return None
    return type(made)(made.interval, made.number, made.chain, transfer.NOTHING_PENDING, made.pairs)


REMADE = transfer.remade


@pytest.mark.parametrize(
    "bug",
    [
        _forgetting(b"TU"),
        _forgetting(b"IJ"),
        _forgetting(b"B"),
        _forgetting(b"C"),
        _reported_as_nothing,
    ],
    ids=["timers", "ids", "bags", "chunks", "hole"],
)
def test_a_remap_that_forgets_something_is_found(bug: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(transfer, "remade", bug)
    h = harness()
    try:
        for n in range(STEPS):
            step(h, n)
            for name in NAMES:
                h.remap(name, [mr.ops.Split(one) for one in places(h, name)[:2]])
            h.check()
        found = end(h)
    except (mr.MillraceError, AssertionError):
        return
    assert found != PLAIN
