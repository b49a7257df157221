"""What holds for the segments of every kind of hard state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from logs import append
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointUnwritable, DamagedStore, ZombieWriter
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    CommitGroup,
    GrownSegment,
    HardState,
    LocalHardState,
    MemoryBlobs,
    MemoryCache,
    MemoryHardState,
    ObjectBlobs,
    ObjectHardState,
    SegmentName,
    bring,
)

Make = Callable[..., Commit]


def begun(state: HardState, incarnation: int = 1) -> None:
    assert state.incarnations.seal(incarnation) is not None


def written(state: HardState, segment: GrownSegment, *groups: CommitGroup) -> None:
    for group in groups:
        segment.append(group.commits, group.note)


def read(state: HardState) -> dict[SegmentName, list[CommitGroup]]:
    return {name: list(state.incarnations.groups(name)) for name in state.incarnations.names()}


def test_names_sort_as_groups_came_and_are_told_from_other_names() -> None:
    names = [SegmentName(1, 1, 0, 2), SegmentName(1, 2, 0, 1), SegmentName(2, 0, 0, 1)]
    assert sorted(names, key=str) == sorted(names) == names
    assert SegmentName.parse(str(SegmentName(10**9, 100, 10**5, 10**9))) == (
        10**9, 100, 10**5, 10**9,
    )  # fmt: skip
    for other in ("00000008.seal", "lost+found", "1-1-1-1", "00000007-02-0003-00000012.tmp"):
        assert SegmentName.parse(other) is None


def test_a_checkpoint_without_segments(state: HardState) -> None:
    assert (state.incarnations.last(), state.incarnations.names()) == (0, [])
    assert not state.commits.exists("count", 0, 1)


def test_a_task_whose_checkpoint_has_gone_is_not_told_that_another_has_begun(
    state: HardState,
) -> None:
    """A run tries again until a directory is mounted again, and ends where another has begun."""
    begun(state)
    blobs = state.incarnations.blobs
    blobs.remove(blobs.names("incarnations"))
    with pytest.raises(DamagedStore, match="it has gone, with all incarnations"):
        state.incarnations.superseded(1)


def test_a_incarnation_begins_once(state: HardState) -> None:
    seal = state.incarnations.seal(1)
    assert seal is not None
    assert (seal.incarnation, seal.lengths, seal.notes) == (1, {}, {})
    assert state.incarnations.seal(1) is None
    assert state.incarnations.last() == 1
    assert not state.incarnations.superseded(1)
    begun(state, 2)
    assert state.incarnations.superseded(1)
    assert state.incarnations.seal(1) is None
    assert (state.incarnations.last(), state.incarnations.superseded(2)) == (2, False)


def test_a_incarnation_whose_begin_was_cut_off_has_used_its_number(state: HardState) -> None:
    begun(state, 1)
    begun(state, 3)
    assert state.incarnations.seal(2) is None
    assert state.incarnations.last() == 3


def test_groups_are_there_once_they_are_sealed(state: HardState, commit: Make) -> None:
    begun(state)
    first = CommitGroup([commit(1, (b"Sk", b"v"), (b"Sk", None)), commit(1, interval=7)], b"one")
    second, third = CommitGroup([commit(2)], b""), CommitGroup([], b"a note alone")
    segment = state.incarnations.grow(1, 2, 3, 1)
    written(state, segment, first, second, third)
    assert segment.name == SegmentName(1, 2, 3, 1)
    assert read(state) == {}
    assert state.commits.read("count", 0, 1) is None
    seal = state.incarnations.seal(2)
    assert seal is not None
    assert seal.notes == {"00000001-02-0003-00000001": b"a note alone"}
    assert read(state) == {segment.name: [first, second, third]}


def test_what_is_appended_after_the_seal_does_not_exist(state: HardState, commit: Make) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(1)], b"in time")
    begun(state, 2)
    segment.append([commit(2)], b"late")
    state.incarnations.grow(1, 1, 0, 2).append([commit(3)], b"later")
    for incarnation in (3, 4):
        seal = state.incarnations.seal(incarnation)
        assert seal is not None
        assert seal.notes == {str(segment.name): b"in time"}
        assert read(state) == {segment.name: [CommitGroup([commit(1)], b"in time")]}
        assert state.commits.numbers("count") == {0: [1]}


def test_a_seal_says_what_the_seals_before_it_said(state: HardState, commit: Make) -> None:
    groups = {}
    for incarnation in (1, 2, 3):
        begun(state, incarnation)
        segment = state.incarnations.grow(incarnation, 1, 0, 1)
        group = groups[segment.name] = CommitGroup([commit(incarnation)], b"%d" % incarnation)
        written(state, segment, group)
    begun(state, 4)
    assert read(state) == {name: [group] for name, group in groups.items()}
    assert [state.commits.read("count", 0, n) for n in (1, 2, 3, 4)] == [
        commit(1), commit(2), commit(3), None,
    ]  # fmt: skip


def test_a_note_is_of_the_last_group_of_a_task_whatever_part_it_is_in(
    state: HardState, commit: Make
) -> None:
    begun(state)
    state.incarnations.grow(1, 1, 0, 1).append([commit(1)], b"old")
    state.incarnations.grow(1, 1, 0, 2).append([commit(2)], b"last")
    state.incarnations.grow(1, 1, 0, 3).close()
    state.incarnations.grow(1, 1, 1, 1).append([], b"another task's")
    seal = state.incarnations.seal(2)
    assert seal is not None
    assert seal.notes == {
        "00000001-01-0000-00000002": b"last",
        "00000001-01-0001-00000001": b"another task's",
    }
    assert [name.epoch for name in state.incarnations.names() if name.task == 0] == [1, 2]


def test_incarnations_that_write_nothing_leave_nothing(state: HardState) -> None:
    for incarnation in range(1, 5):
        begun(state, incarnation)
        state.incarnations.grow(incarnation, 1, 0, 1).close()
    begun(state, 5)
    assert (state.incarnations.names(), state.incarnations.last()) == ([], 5)


def test_a_segment_has_one_writer(state: HardState, commit: Make) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(1)])
    with pytest.raises(ZombieWriter, match="another attempt at task 0 of level 1"):
        state.incarnations.grow(1, 1, 0, 1).append([commit(1)])
    segment.append([commit(2)])
    begun(state, 2)
    assert state.commits.numbers("count") == {0: [1, 2]}


def test_a_closed_segment_takes_nothing(state: HardState, commit: Make) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(1)])
    segment.close()
    segment.close()
    with pytest.raises(CheckpointUnwritable, match="closed"):
        segment.append([commit(2)])
    begun(state, 2)
    assert state.commits.numbers("count") == {0: [1]}


def test_a_put_segment_comes_before_a_grown_one(state: HardState, commit: Make) -> None:
    append(state, [commit(1), commit(2)])
    begun(state)
    state.incarnations.grow(1, 1, 0, 1).append([commit(3), commit(1, interval=4)])
    begun(state, 2)
    assert append(state, [commit(4)]) == [True]
    assert [state.commits.exists("count", 0, n) for n in range(6)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4], 4: [1]}
    assert state.commits.numbers("other") == {}


def test_commits_are_found_in_grown_segments_before_and_after_put_ones(
    state: HardState, commit: Make
) -> None:
    """As after a checkpoint has gone from live tasks to epochs and back."""
    begun(state)
    state.incarnations.grow(1, 1, 0, 1).append([commit(1), commit(2)])
    begun(state, 2)
    append(state, [commit(3)])
    state.incarnations.grow(2, 1, 0, 1).append([commit(4)])
    begun(state, 3)
    assert [n for n in range(6) if state.commits.exists("count", 0, n)] == [1, 2, 3, 4]
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4]}
    assert state.commits.remove("count", 0, [1, 2, 3, 4]) == 1
    assert state.commits.numbers("count") == {0: [4]}


def test_a_cache_is_brought_through_segments_of_both_kinds(state: HardState, commit: Make) -> None:
    append(state, [commit(1, (b"Sa", b"put"))])
    begun(state)
    for part in (1, 2):
        state.incarnations.grow(1, 1, 0, part).append([commit(part + 1, (b"Sb", b"%d" % part))])
    begun(state, 2)
    cache = MemoryCache("count", 0)
    assert bring(cache, state, "count", 0, 3).deltas_applied == 3
    with cache.view() as view:
        assert list(view.scan(b"A", b"[")) == [(b"Sa", b"put"), (b"Sb", b"2")]


def test_commits_in_segments_are_removed_with_the_segment(state: HardState, commit: Make) -> None:
    append(state, [commit(1)])
    begun(state)
    for part in (1, 2):
        state.incarnations.grow(1, 1, 0, part).append([commit(part + 1)])
    begun(state, 2)
    assert state.commits.remove("count", 0, [1, 2, 3]) == 1
    assert [state.commits.exists("count", 0, n) for n in (1, 2, 3)] == [False, True, True]
    first, second = state.incarnations.names()
    state.incarnations.remove([first, first, SegmentName(9, 9, 9, 9)])
    assert state.incarnations.names() == [second]
    assert [state.commits.exists("count", 0, n) for n in (1, 2, 3)] == [False, False, True]
    seal = state.incarnations.seal(3)
    assert seal is not None
    assert list(seal.lengths) == [str(second)]


def test_the_index_is_of_the_last_seal_that_was_asked_for(state: HardState, commit: Make) -> None:
    begun(state)
    state.incarnations.grow(1, 1, 0, 1).append([commit(1)])
    begun(state, 2)
    state.incarnations.grow(2, 1, 0, 1).append([commit(2)])
    assert not state.commits.exists("count", 0, 2)
    begun(state, 3)
    assert state.commits.read("count", 0, 2) == commit(2)


def test_what_segments_cover(state: HardState, commit: Make) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(3), commit(8, interval=2)])
    segment.append([commit(4), Commit("sum", 0, 1, 1, 1, [])])
    state.incarnations.grow(1, 1, 1, 1).append([], b"note")
    begun(state, 2)
    assert state.commits.covered() == {
        SegmentName(1, 1, 0, 1): {"count": {0: 4, 2: 8}, "sum": {0: 1}},
        SegmentName(1, 1, 1, 1): {},
    }


def test_a_commit_in_two_segments_is_damage(state: HardState, commit: Make) -> None:
    begun(state)
    for task in (0, 1):
        state.incarnations.grow(1, 1, task, 1).append([commit(1)])
    begun(state, 2)
    with pytest.raises(DamagedStore, match=r"commit 1 of interval 0 of computation 'count' is in"):
        state.commits.exists("count", 0, 1)


def test_groups_of_a_segment_that_is_not_sealed_or_gone(state: HardState, commit: Make) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(1)])
    with pytest.raises(DamagedStore, match="seal 1 does not name it"):
        state.incarnations.groups(segment.name)
    begun(state, 2)
    state.incarnations.remove([segment.name])
    with pytest.raises(DamagedStore, match="it has gone"):
        state.incarnations.groups(segment.name)


def test_a_segment_that_is_collected_while_it_is_read_is_no_damage(
    state: HardState, commit: Make
) -> None:
    begun(state)
    groups = [CommitGroup([commit(1)], b""), CommitGroup([commit(2)], b"")]
    segment = state.incarnations.grow(1, 1, 0, 1)
    written(state, segment, *groups)
    begun(state, 2)
    read = state.incarnations.groups(segment.name)
    state.incarnations.remove([segment.name])
    assert list(read) in ([], groups)


def test_a_large_group(state: HardState, commit: Make) -> None:
    begun(state)
    commits = [commit(1, (b"Sk", bytes(3_000_000)), interval=interval) for interval in range(3)]
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append(commits, bytes(1_000))
    segment.append([commit(2)])
    begun(state, 2)
    assert [state.commits.read("count", interval, 1) for interval in range(3)] == commits
    assert state.commits.read("count", 0, 2) == commit(2)


def test_sealing_while_tasks_of_the_incarnation_before_go_on(
    state: HardState, commit: Make
) -> None:
    """Level 2 has a commit of what level 1 committed, whenever lengths are taken."""
    begun(state)
    up, down = (state.incarnations.grow(1, level, 0, 1) for level in (1, 2))
    incarnations = state.incarnations
    sizes, written = incarnations._sizes, 0

    def going_on(listed: dict[str, int] | None = None) -> dict[SegmentName, int]:
        nonlocal up, down, written
        found = sizes(listed)
        written += 1
        up = incarnations.grow(1, 1, 0, written + 1)
        up.append([Commit("up", 0, written, 1, 1, [])])
        down.append([Commit("down", 0, written, 1, 1, [])])
        down = incarnations.grow(1, 2, 0, written + 1)
        return found

    for _ in range(3):
        going_on()
    incarnations._sizes = going_on  # type: ignore[method-assign]
    begun(state, 2)
    del incarnations._sizes
    ups, downs = (state.commits.numbers(name).get(0, []) for name in ("up", "down"))
    assert written > 5
    assert downs == list(range(1, len(downs) + 1))
    assert ups == list(range(1, len(ups) + 1))
    assert 3 <= len(downs) <= len(ups)


def test_an_index_is_written_with_the_mark_and_says_what_is_there(
    state: HardState, commit: Make
) -> None:
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    groups = [
        CommitGroup([commit(1), commit(1, interval=3)], b"one"),
        CommitGroup([], b""),
        CommitGroup([commit(2)], b""),
    ]
    written(state, segment, *groups)
    size = state.incarnations._sizes()[segment.name]
    segment.finish()
    assert state.incarnations._sizes()[segment.name] > size
    seal = state.incarnations.seal(2)
    assert seal is not None
    # What is before the index is durable: nothing of it is kept in the seal.
    assert (seal.lengths, seal.tails) == ({str(segment.name): size}, {})
    assert state.incarnations._index(segment.name) is not None
    assert read(state) == {segment.name: groups}
    assert state.commits.numbers("count") == {0: [1, 2], 3: [1]}
    with pytest.raises(CheckpointUnwritable, match="closed"):
        segment.append([commit(3)])


def test_an_index_is_not_believed_beyond_the_seal(state: HardState, commit: Make) -> None:
    """R2: who was left behind goes on appending, and passes its mark."""
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([commit(1)])
    begun(state, 2)
    segment.append([commit(2)])
    segment.finish()
    assert state.commits.numbers("count") == {0: [1]}
    assert not state.commits.exists("count", 0, 2)
    begun(state, 3)
    assert read(state) == {segment.name: [CommitGroup([commit(1)], b"")]}
    assert state.commits.numbers("count") == {0: [1]}


def test_mutations_that_all_commits_of_a_group_begin_with_are_written_once(
    state: HardState, commit: Make
) -> None:
    begun(state)
    shared = [(b"B%d" % n, bytes(1_000)) for n in range(100)]
    commits = [
        commit(1, *shared, (b"Sk", b"%d" % interval), interval=interval) for interval in range(8)
    ]
    segment = state.incarnations.grow(1, 1, 0, 1)
    written(state, segment, CommitGroup(commits, b""), CommitGroup([commit(2)], b""))
    segment.finish()
    assert state.incarnations._sizes()[segment.name] < 130_000
    begun(state, 2)
    assert [state.commits.read("count", interval, 1) for interval in range(8)] == commits
    assert read(state)[segment.name][0].commits == commits


# -- copies ----------------------------------------------------------------------------------------


def bucket() -> ObjectBlobs:
    return ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())


def grown(state: HardState, commit: Make) -> None:
    """Put a segment, and grow three: one that passed its mark, one that did not, one unsealed."""
    append(state, [commit(1)])
    begun(state)
    for epoch in (1, 2):
        segment = state.incarnations.grow(1, 1, 0, epoch)
        for n in (0, 1):
            segment.append([commit(2 * epoch + n)], b"note")
        if epoch == 1:
            segment.finish()
    begun(state, 2)
    state.incarnations.grow(2, 1, 0, 3).append([commit(6)])


def check_copy(state: HardState, commit: Make) -> None:
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4, 5]}
    begun(state, 3)
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4, 5, 6]}
    assert [state.commits.read("count", 0, n) for n in range(1, 7)] == [
        commit(n) for n in range(1, 7)
    ]
    # It goes on, and goes when it may.
    state.incarnations.grow(3, 1, 0, 4).append([commit(7)])
    begun(state, 4)
    state.incarnations.remove(state.incarnations.names())
    assert state.commits.numbers("count") == {0: [1]}
    assert [name for name in state.blobs.names("incarnations") if "-" in name] == []


def test_a_buckets_checkpoint_is_copied_file_by_file_to_a_directory(
    tmp_path: Path, commit: Make
) -> None:
    blobs = bucket()
    grown(ObjectHardState.create_or_open(blobs, pipeline="p"), commit)
    for name in blobs.names(""):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(blobs.read(name) or b"")
    check_copy(LocalHardState.create_or_open(tmp_path, pipeline="p"), commit)


def test_a_directorys_checkpoint_is_copied_file_by_file_to_a_bucket(
    tmp_path: Path, commit: Make
) -> None:
    grown(LocalHardState.create_or_open(tmp_path, pipeline="p"), commit)
    blobs = bucket()
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            blobs.put_if_absent(str(path.relative_to(tmp_path)), path.read_bytes())
    check_copy(ObjectHardState.create_or_open(blobs, pipeline="p"), commit)


@pytest.mark.parametrize("left", [1, 2])
def test_a_seal_passes_over_a_segment_that_is_collected_while_it_looks(
    state: HardState, commit: Make, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(state)
    for task in (0, 1):
        segment = state.incarnations.grow(1, 1, task, 1)
        written(state, segment, CommitGroup([commit(1, interval=task)], b"note"))
        segment.finish()
    blobs = state.incarnations.blobs
    read_range = type(blobs).read_range
    gone, reads = f"incarnations/{SegmentName(1, 1, 1, 1)}", Counter[str]()

    def collected(self: object, name: str, start: int, stop: int) -> bytes | None:
        reads[name] += 1
        if reads[name] == left and name == gone:
            blobs.remove([name])
        return read_range(blobs, name, start, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(type(blobs), "read_range", collected)
    seal = state.incarnations.seal(2)

    assert seal is not None
    assert [*seal.lengths] == [*seal.notes] == [str(SegmentName(1, 1, 0, 1))]


def test_a_segment_that_is_collected_between_two_pages_of_a_listing_is_no_damage(
    commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryHardState()
    begun(state)
    segment = state.incarnations.grow(1, 1, 0, 1)
    for number in (1, 2, 3):
        written(state, segment, CommitGroup([commit(number)], b"note"))
    begun(state, 2)
    first, second, third = (name for name in state.blobs.names("incarnations") if "-" in name)
    sizes = MemoryBlobs.sizes

    def paged(blobs: MemoryBlobs, folder: str) -> dict[str, int]:
        pages = sizes(blobs, folder)
        blobs.remove([first, second])
        return {name: size for name, size in pages.items() if name != second}

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBlobs, "sizes", paged)
        assert state.incarnations.names() == []

    begun(state, 3)
    assert state.blobs.names("incarnations") == [
        "incarnations/00000003.begun",
        "incarnations/00000003.seal",
    ], f"{third} goes with the next seal"
