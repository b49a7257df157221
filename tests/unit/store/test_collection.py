from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.store import (
    Cache,
    Collectable,
    Collector,
    Commit,
    HardState,
    MemoryCache,
    MemoryHardState,
    SnapshotPolicy,
    bring,
    chain_of,
    write_if_due,
)
from millrace.testing.crash import Crash, CrashingState

ALWAYS = SnapshotPolicy(fixed_bytes=0)


def extend(state: HardState, cache: Cache, commits: int) -> None:
    """Make commits; row ``Sn`` says how many there were, ``Si`` remains of each."""
    for _ in range(commits):
        position, chain, _debt = cache.standing
        number = position + 1
        rows: list[tuple[bytes, bytes | None]] = [
            (b"Sn", b"%d" % number),
            (b"Si%d" % number, b""),
        ]
        commit = Commit("count", 0, number, number, 1, rows, b"", b"", chain, chain_of(chain, rows))
        assert state.commits.append([commit]) == [True]
        cache.apply(commit)


def snapshot(state: HardState, cache: Cache) -> None:
    assert write_if_due(cache, state.snapshots, "count", 0, ALWAYS).snapshots == 1


def contents(cache: Cache, at: int) -> list[tuple[bytes, bytes]]:
    with cache.view(at=at) as view:
        return list(view.scan(b"A", b"["))


def listed(state: HardState) -> tuple[list[int], list[int]]:
    return (
        list(state.snapshots.numbers("count").get(0, ())),
        list(state.commits.numbers("count").get(0, ())),
    )


def test_with_one_snapshot_everything_stays(state: HardState) -> None:
    cache = MemoryCache("count", 0)
    extend(state, cache, 3)
    snapshot(state, cache)
    assert Collector(state).collect(Collectable({"count": {0: 3}}, 0)).commits == 0
    assert listed(state) == ([3], [1, 2, 3])


def test_with_two_what_the_older_covers_goes(state: HardState) -> None:
    cache = MemoryCache("count", 0)
    for _ in range(3):
        extend(state, cache, 2)
        snapshot(state, cache)
    collector = Collector(state)
    collected = collector.collect(Collectable({"count": {0: 6}}, 0))
    assert (collected.commits, collected.snapshots) == (4, 1)
    assert listed(state) == ([4, 6], [5, 6])
    assert collector.collect(Collectable({"count": {0: 6}}, 0)).commits == 0


def test_snapshots_of_the_open_epoch_do_not_count(state: HardState) -> None:
    """An epoch that is tried again begins at commit 4, whatever was snapshotted at 5."""
    cache = MemoryCache("count", 0)
    extend(state, cache, 2)
    snapshot(state, cache)
    extend(state, cache, 2)
    snapshot(state, cache)
    extend(state, cache, 1)
    snapshot(state, cache)
    Collector(state).collect(Collectable({"count": {0: 4}}, 0))
    assert listed(state) == ([2, 4, 5], [3, 4, 5])
    again = MemoryCache("count", 0)
    assert bring(again, state, "count", 0, 4).snapshot == 4


def test_what_a_zombie_left_in_a_collected_slot_goes_with_the_next_collection(
    state: HardState,
) -> None:
    cache = MemoryCache("count", 0)
    collector = Collector(state)
    for _ in range(2):
        extend(state, cache, 2)
        snapshot(state, cache)
    collector.collect(Collectable({"count": {0: 4}}, 0))
    state.commits.append([Commit("count", 0, 2, 9, 9, [])])
    extend(state, cache, 2)
    snapshot(state, cache)
    collector.collect(Collectable({"count": {0: 6}}, 0))
    assert listed(state) == ([4, 6], [5, 6])


def test_entries_before_the_first_needed_go(state: HardState) -> None:
    for number in range(1, 8):
        state.epochs.append(number, b"{}")
    assert Collector(state).collect(Collectable({}, 5)).entries == 4
    assert (state.epochs.first(), state.epochs.last()) == (5, 7)


def test_a_snapshot_of_a_busy_cache_owes_what_came_meanwhile(state: HardState) -> None:
    cache = MemoryCache("count", 0)
    extend(state, cache, 3)
    paused: list[int] = []

    def pause() -> None:
        if not paused:
            extend(state, cache, 2)
        paused.append(1)

    write_if_due(cache, state.snapshots, "count", 0, ALWAYS, pause)
    assert listed(state)[0] == [3]
    assert 2 * 64 * 1024 < cache.standing.debt < 3 * 64 * 1024


def test_a_snapshot_waits_until_the_log_costs_as_much() -> None:
    state, cache = MemoryHardState(), MemoryCache("count", 0)
    policy = SnapshotPolicy(fixed_bytes=200_000)
    due = []
    for number in range(1, 8):
        extend(state, cache, 1)
        if write_if_due(cache, state.snapshots, "count", 0, policy).snapshots:
            due.append(number)
    assert due == [4]


STEPS = st.lists(st.sampled_from(["commit", "snapshot", "collect"]), max_size=30)


@given(STEPS, st.integers(0, 60), st.integers(0, 3), st.booleans())
def test_recovery_gives_the_same_state_after_any_crash(
    steps: list[str], writes: int, behind: int, encoded: bool
) -> None:
    """Commits, snapshots and collections, with a crash at any write, and a cache of any age."""
    durable = MemoryHardState(encoded=encoded)
    state = CrashingState(durable, writes)
    cache, old = MemoryCache("count", 0), MemoryCache("count", 0)
    completed = 0
    rows: list[list[tuple[bytes, bytes]]] = [[]]
    try:
        for step in steps:
            if step == "commit":
                extend(state, cache, 1)
                rows.append(contents(cache, cache.position))
                if cache.position <= behind:
                    bring(old, durable, "count", 0, cache.position)
                completed = max(completed, cache.position - 1)  # the last one's epoch is open
            elif step == "snapshot":
                write_if_due(cache, state.snapshots, "count", 0, ALWAYS)
            else:
                Collector(state).collect(Collectable({"count": {0: completed}}, 0))
    except Crash:
        pass
    made = len(rows) - 1
    for number in {completed, made} - {0}:
        for recovered in (MemoryCache("count", 0), old):
            bring(recovered, durable, "count", 0, number)
            assert contents(recovered, number) == rows[number]
    if made:
        assert durable.commits.exists("count", 0, made) or completed == made


@pytest.mark.parametrize("kept", [0, 1])
def test_either_of_two_snapshots_may_be_damaged(state: HardState, kept: int) -> None:
    cache = MemoryCache("count", 0)
    for _ in range(3):
        extend(state, cache, 2)
        snapshot(state, cache)
    extend(state, cache, 1)
    Collector(state).collect(Collectable({"count": {0: 7}}, 0))
    damaged = listed(state)[0][1 - kept]
    state.snapshots.remove("count", 0, [damaged])
    state.snapshots.put("count", 0, damaged, [b"garbage"])
    again = MemoryCache("count", 0)
    repair = bring(again, state, "count", 0, 7)
    assert repair.snapshot != damaged
    assert contents(again, 7) == contents(cache, 7)
