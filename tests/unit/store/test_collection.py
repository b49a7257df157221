from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import append

from millrace.model.errors import DamagedStore
from millrace.store import (
    Cache,
    Collectable,
    Collector,
    Commit,
    Given,
    HardState,
    MemoryBlobs,
    MemoryCache,
    MemoryHardState,
    SegmentName,
    SnapshotPolicy,
    bring,
    chain_of,
    write_if_due,
)
from millrace.testing.faults import Crash, CrashingState

ALWAYS = SnapshotPolicy(fixed_bytes=0)


def extend(state: HardState, cache: Cache, commits: int) -> None:
    """Make commits; row ``Sn`` says how many there were, ``Si`` remains of each."""
    for _ in range(commits):
        position, chain, _debt = cache.cache_position
        number = position + 1
        rows: list[tuple[bytes, bytes | None]] = [
            (b"Sn", b"%d" % number),
            (b"Si%d" % number, b""),
        ]
        commit = Commit("count", 0, number, number, 1, rows, b"", b"", chain, chain_of(chain, rows))
        assert append(state, [commit]) == [True]
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


def test_what_a_zombie_put_after_collection_goes_with_the_next_collection(
    state: HardState,
) -> None:
    cache = MemoryCache("count", 0)
    collector = Collector(state)
    for _ in range(2):
        extend(state, cache, 2)
        snapshot(state, cache)
    collector.collect(Collectable({"count": {0: 4}}, 0))
    append(state, [Commit("count", 0, 2, 9, 9, [])])
    extend(state, cache, 2)
    snapshot(state, cache)
    collector.collect(Collectable({"count": {0: 6}}, 0))
    assert listed(state) == ([4, 6], [5, 6])


def test_what_is_written_late_of_an_interval_that_was_split_goes_with_the_next_collection(
    state: HardState,
) -> None:
    cache = MemoryCache("count", 0)
    for _ in range(2):
        extend(state, cache, 2)
        snapshot(state, cache)
    split = {"count": Given(3, frozenset({1, 2}))}
    collector = Collector(state)
    collector.collect(Collectable({"count": {1: 5, 2: 5}}, 0, given=split))
    assert listed(state) == ([], [])
    snapshot_of = [b"written by a process that was late"]
    assert state.snapshots.put("count", 0, 4, snapshot_of)
    assert append(state, [Commit("count", 0, 5, 5, 1, [(b"Sn", b"5")])]) == [True]
    for number in (5, 6):
        state.snapshots.put("count", 1, number, snapshot_of)
    collected = collector.collect(Collectable({"count": {1: 6, 2: 5}}, 0, given=split))
    assert (collected.snapshots, collected.commits) == (1, 1)
    assert listed(state) == ([], [])
    assert state.snapshots.numbers("count") == {1: [5, 6]}


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
    assert 2 * 64 * 1024 < cache.cache_position.debt < 3 * 64 * 1024


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


@given(STEPS, st.integers(0, 60), st.integers(0, 3))
def test_recovery_gives_the_same_state_after_any_crash(
    steps: list[str], writes: int, behind: int
) -> None:
    """Commits, snapshots and collections, with a crash at any write, and a cache of any age."""
    durable = MemoryHardState()
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


# -- grown segments --------------------------------------------------------------------------------


def in_segment(
    state: HardState, name: SegmentName, *numbers: int, interval: int = 0
) -> dict[str, dict[int, int]]:
    """Write commits into a new segment, and return what it covers."""
    segment = state.incarnations.grow(*name)
    for number in numbers:
        segment.append([Commit("count", interval, number, 1, 1, [])], b"note")
    segment.close()
    return {"count": {interval: numbers[-1]}} if numbers else {}


def two_snapshots(state: HardState, older: int, newer: int, interval: int = 0) -> None:
    for number in (older, newer):
        assert state.snapshots.put("count", interval, number, [b""])


def test_a_part_goes_when_the_older_snapshot_covers_all_of_it(state: HardState) -> None:
    state.incarnations.seal(1)
    parts = {}
    for part, numbers in enumerate(([1, 2], [3, 4], [5, 6]), 1):
        name = SegmentName(1, 1, 0, part)
        parts[str(name)] = in_segment(state, name, *numbers)
    other = SegmentName(1, 1, 1, 1)
    parts[str(other)] = in_segment(state, other, 1, interval=9)
    two_snapshots(state, 4, 6)
    collectable = Collectable(
        {"count": {0: 6, 9: 1}},
        0,
        incarnation=1,
        segments=parts,
        forget=lambda names: forgotten(names),
    )

    def forgotten(names: Iterable[str]) -> None:
        for name in list(names):
            del parts[name]

    collector = Collector(state)
    collected = collector.collect(collectable)
    assert (collected.segments, collected.commits, collected.files) == (2, 0, 2)
    assert list(parts) == ["00000001-01-0000-00000003", str(other)]
    assert collector.collect(collectable).files == 0
    state.incarnations.seal(2)
    assert state.incarnations.names() == [SegmentName(1, 1, 0, 3), other]
    assert state.commits.numbers("count") == {0: [5, 6], 9: [1]}


def test_what_was_sealed_stays_until_a_mark_of_the_incarnation_after_it(state: HardState) -> None:
    """Its notes are taken up again until then, also where its commits are covered."""
    state.incarnations.seal(1)
    in_segment(state, SegmentName(1, 1, 0, 1), 1, 2)
    state.incarnations.grow(1, 0, 0, 1).append([], b"what is to be read")
    state.incarnations.seal(2)
    in_segment(state, SegmentName(2, 1, 0, 1), 3)
    two_snapshots(state, 3, 3 + 1)
    numbers = {"count": {0: 4}}
    assert Collector(state).collect(Collectable(numbers, 0)).segments == 0
    assert Collector(state).collect(Collectable(numbers, 0, incarnation=1)).segments == 0
    assert Collector(state).collect(Collectable(numbers, 0, incarnation=2)).segments == 2
    seal = state.incarnations.seal(3)
    assert seal is not None
    assert list(seal.lengths) == ["00000002-01-0000-00000001"]


def test_commits_in_segments_go_beside_grown_ones(state: HardState) -> None:
    cache = MemoryCache("count", 0)
    extend(state, cache, 3)
    state.incarnations.seal(1)
    in_segment(state, SegmentName(1, 1, 0, 1), 4, 5)
    state.incarnations.seal(2)
    two_snapshots(state, 4, 5)
    collected = Collector(state).collect(Collectable({"count": {0: 5}}, 0, incarnation=2))
    assert (collected.commits, collected.segments) == (3, 0)
    assert state.commits.numbers("count") == {0: [4, 5]}
    assert state.incarnations.names() == [SegmentName(1, 1, 0, 1)]


def test_parts_with_notes_alone_go_before_there_are_snapshots(state: HardState) -> None:
    state.incarnations.seal(1)
    parts = {str(SegmentName(1, 0, 0, 1)): in_segment(state, SegmentName(1, 0, 0, 1))}
    assert Collector(state).collect(Collectable({}, 0, incarnation=1, segments=parts)).segments == 1


def test_nothing_is_remembered_of_segments_that_no_seal_names(state: HardState) -> None:
    """Else a run of days would have a name for each task and mark."""
    collector = Collector(state)
    state.incarnations.seal(1)
    name = SegmentName(1, 0, 0, 1)
    parts = {str(name): in_segment(state, name)}
    collector.collect(Collectable({}, 0, incarnation=1, segments=parts))
    assert not state.incarnations.removed
    state.incarnations.grow(1, 0, 0, 2).append([], b"note")
    state.incarnations.seal(2)
    collector.collect(Collectable({}, 0, incarnation=2, segments=parts))
    assert state.incarnations.removed == {SegmentName(1, 0, 0, 2)}


class Parts:
    """Parts of one task, one a mark: interval 0 commits ten times in each, 9 in the second only."""

    def __init__(self, state: HardState, parts: int) -> None:
        self.state = state
        self.parts: dict[str, dict[str, dict[int, int]]] = {}
        self.chains = {0: [0], 9: [0]}
        state.incarnations.seal(1)
        for part in range(1, parts + 1):
            name = SegmentName(1, 1, 0, part)
            segment = state.incarnations.grow(*name)
            for _ in range(10):
                segment.append([self._commit(0)], b"note")
            if part == 2:
                segment.append([self._commit(9)], b"note")
            segment.close()
            self.parts[str(name)] = {
                "count": {n: len(self.chains[n]) - 1 for n in ((0, 9) if part == 2 else (0,))}
            }

    def _commit(self, interval: int) -> Commit:
        chains = self.chains[interval]
        rows: list[tuple[bytes, bytes | None]] = [(b"Sk", b"%d" % len(chains))]
        commit = Commit("count", interval, len(chains), 1, 1, rows, b"", b"", chains[-1])
        commit.chain = chain_of(chains[-1], rows)
        chains.append(commit.chain)
        return commit

    def collectable(self, incarnation: int = 1) -> Collectable:
        def forget(names: Iterable[str]) -> None:
            for name in list(names):
                self.parts.pop(name, None)

        numbers = {"count": {n: len(chains) - 1 for n, chains in self.chains.items()}}
        return Collectable(numbers, 0, incarnation=incarnation, segments=self.parts, forget=forget)


@pytest.mark.parametrize("sealed", [False, True])
def test_the_few_commits_that_keep_an_old_part_are_moved_to_a_segment(
    state: HardState, sealed: bool
) -> None:
    made = Parts(state, 6)
    two_snapshots(state, 40, 50)
    parts = list(made.parts)
    if sealed:
        state.incarnations.seal(2)
        made.parts.clear()
    collector = Collector(state, kept=2)
    collected = collector.collect(made.collectable(incarnation=2 if sealed else 1))
    # Parts 1, 3 and 4 are covered; of the second, one commit of eleven is left.
    assert (collected.segments, collected.moved) == (4, 1)
    found = state.commits.read("count", 9, 1)
    assert found is not None
    assert found.chain == made.chains[9][1]
    assert collector.collect(made.collectable(incarnation=2 if sealed else 1)).files == 0
    state.incarnations.seal(3)
    assert [str(name) for name in state.incarnations.names()] == parts[4:]
    assert state.commits.numbers("count") == {0: list(range(41, 61)), 9: [1]}


@pytest.mark.parametrize("tasks", [1, 3])
def test_parts_that_are_emptied_are_removed_together(
    tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, all segments are listed: a request for each thousand pieces, in a bucket."""
    state, parts = MemoryHardState(), {}
    state.incarnations.seal(1)
    for task in range(tasks):
        for part, numbers in ((1, range(1, 11)), (2, range(11, 21))):
            name = SegmentName(1, 1, task, part)
            commits = [Commit("count", task, number, 1, 1, []) for number in numbers]
            if part == 1:
                commits.append(Commit("count", 90 + task, 1, 1, 1, []))
            state.incarnations.grow(*name).append(commits, b"note")
            last = {commit.interval: commit.number for commit in commits}
            parts[str(name)] = {"count": last}
        two_snapshots(state, 15, 20, interval=task)
    numbers = dict.fromkeys(range(tasks), 20) | {90 + task: 1 for task in range(tasks)}
    sizes, lists = MemoryBlobs.sizes, list[str]()

    def listed_too(blobs: MemoryBlobs, folder: str) -> dict[str, int]:
        lists.append(folder)
        return sizes(blobs, folder)

    monkeypatch.setattr(MemoryBlobs, "sizes", listed_too)
    collected = Collector(state, kept=1).collect(
        Collectable({"count": numbers}, 0, incarnation=1, segments=parts)
    )
    assert (collected.segments, collected.moved) == (tasks, tasks)
    assert lists.count("incarnations") == 2, "to read them, and to remove them"


def test_a_moved_commit_goes_when_it_is_covered_before_anybody_seals(state: HardState) -> None:
    made = Parts(state, 6)
    two_snapshots(state, 40, 50)
    state.incarnations.seal(2)
    made.parts.clear()
    collector = Collector(state, kept=2)
    assert collector.collect(made.collectable(incarnation=2)).moved == 1
    made.chains[9].append(1)
    two_snapshots(state, 1, 2, interval=9)
    assert collector.collect(made.collectable(incarnation=2)).commits >= 1
    state.incarnations.seal(3)
    assert 9 not in state.commits.numbers("count")


def test_commits_before_one_that_was_moved_are_found_in_their_segment(state: HardState) -> None:
    state.incarnations.seal(1)
    for part in (1, 2, 3):
        in_segment(state, SegmentName(1, 1, 0, part), part)
    append(state, [Commit("count", 0, 2, 1, 1, [])])
    state.incarnations.remove([SegmentName(1, 1, 0, 2)])
    state.incarnations.seal(2)
    assert state.commits.numbers("count") == {0: [1, 2, 3]}
    assert all(state.commits.exists("count", 0, number) for number in (1, 2, 3))


def test_a_part_that_is_mostly_needed_is_left_alone(state: HardState) -> None:
    made = Parts(state, 6)
    collected = Collector(state, kept=2).collect(made.collectable())
    assert (collected.segments, collected.moved) == (0, 0)


def test_a_part_is_kept_whose_segment_has_another_history(state: HardState) -> None:
    made = Parts(state, 6)
    two_snapshots(state, 40, 50)
    other = Commit("count", 9, 1, 1, 1, [(b"Sk", b"other")], chain=7)
    assert state.commits.of_grown("count", SegmentName(1, 1, 0, 2)).put([other])
    with pytest.raises(DamagedStore, match="two histories"):
        Collector(state, kept=2).collect(made.collectable())
    assert SegmentName(1, 1, 0, 2) in [SegmentName.parse(name) for name in made.parts]


@given(st.integers(0, 9))
def test_a_crash_while_commits_are_moved_loses_none(writes: int) -> None:
    durable = MemoryHardState()
    made = Parts(durable, 6)
    two_snapshots(durable, 40, 50)
    parts = dict(made.parts)
    with contextlib.suppress(Crash):
        Collector(CrashingState(durable, writes), kept=2).collect(made.collectable())
    # The next driver finds an incarnation that is over.
    durable.incarnations.seal(2)
    made.parts.clear()
    for _ in range(2):
        found = durable.commits.numbers("count")
        assert found[9] == [1]
        assert {*range(41, 61)} <= {*found[0]}
        Collector(durable, kept=2).collect(made.collectable(incarnation=2))
    assert [str(name) for name in durable.incarnations.names()] == list(parts)[4:]
