"""Segments in an object store: a task's commits of an epoch in one object, found by an index."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Collectable,
    Collector,
    Commit,
    LocalHardState,
    ObjectBlobs,
    ObjectHardState,
    chain_of,
)

URL = BucketUrl.parse("s3://bucket/c")


class Counting:
    """A store in memory that counts requests."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self.store, name)

    def state(self) -> ObjectHardState:
        """The checkpoint, as another process sees it."""
        bucket = ObjectBlobs(URL, BucketOptions(requests=1), store=self)
        return ObjectHardState.create_or_open(bucket, pipeline="p")

    def segments(self) -> list[str]:
        pages = self.store.list("segments")
        return sorted(entry["path"].rpartition("/")[2] for page in pages for entry in page)


def commit(interval: int, number: int, value: bytes = b"v", *, epoch: int | None = None) -> Commit:
    mutations = [(b"Sk", value)]
    at = number if epoch is None else epoch
    return Commit(
        "count", interval, number, at, 1, mutations, chain=chain_of(0, [(b"n", b"%d" % number)])
    )


@pytest.fixture
def store() -> Counting:
    return Counting()


def put(state: ObjectHardState, epoch: int, task: int, *commits: Commit) -> list[bool]:
    return state.commits.of_task("count", epoch, task).append(commits)


def test_of_two_attempts_one_counts_whole(store: Counting) -> None:
    first, second = (store.state().commits.of_task("count", 7, 0) for _ in range(2))
    assert first.read(0, 1) is None
    assert second.read(0, 1) is None
    assert first.append([commit(0, 1), commit(1, 1)]) == [True, True]
    assert second.append([commit(0, 1, b"w"), commit(2, 1, b"w")]) == [False, False]
    assert second.read(0, 1) == commit(0, 1)
    assert second.read(2, 1) is None
    assert (first.over, second.over) == (False, True)
    assert store.segments() == ["000000000007-00000000"]


def test_an_attempt_that_comes_later_finds_what_was_committed(store: Counting) -> None:
    put(store.state(), 7, 3, commit(0, 1))
    again = store.state().commits.of_task("count", 7, 3)
    assert again.over
    assert again.read(0, 1) == commit(0, 1)
    other = store.state().commits.of_task("count", 7, 2)
    assert not other.over


def test_a_write_is_one_request_however_many_intervals(store: Counting) -> None:
    state = store.state()
    store.requests.clear()
    mine = state.commits.of_task("count", 1, 0)
    assert [mine.read(interval, 1) for interval in range(500)] == [None] * 500
    assert all(mine.append([commit(interval, 1) for interval in range(500)]))
    assert store.requests == {"get": 1, "put": 1}


def test_commits_are_found_by_number_by_who_has_not_written_them(store: Counting) -> None:
    state = store.state()
    for number in range(1, 6):
        put(state, number, 0, commit(0, number), commit(1, number))
    put(state, 6, 1, commit(5, 1, epoch=6))
    reader = store.state()
    store.requests.clear()
    assert [reader.commits.read("count", 0, n) for n in range(1, 6)] == [
        commit(0, n) for n in range(1, 6)
    ]
    # Are there journals; a slot; then an index. Small segments stay in memory.
    assert store.requests == {"list": 2, "get": 1, "get_range": 6}
    put(state, 7, 0, commit(0, 6, epoch=7))
    assert reader.commits.read("count", 0, 6) == commit(0, 6, epoch=7)
    assert reader.commits.read("count", 0, 7) is None
    assert reader.commits.numbers("count") == {0: [1, 2, 3, 4, 5, 6], 1: [1, 2, 3, 4, 5], 5: [1]}


def test_a_commit_that_was_moved_to_a_slot_is_found_beside_segments(store: Counting) -> None:
    state = store.state()
    put(state, 1, 0, commit(0, 1))
    assert state.commits.append([commit(0, 2)]) == [True]
    put(state, 3, 0, commit(0, 3))
    reader = store.state()
    assert [reader.commits.read("count", 0, n) for n in (1, 2, 3)] == [
        commit(0, n) for n in (1, 2, 3)
    ]
    assert reader.commits.numbers("count") == {0: [1, 2, 3]}
    assert state.commits.remove("count", 0, [1, 2]) == 2
    assert store.state().commits.numbers("count") == {0: [3]}


def test_a_segment_goes_with_the_last_commit_that_is_needed(store: Counting) -> None:
    state = store.state()
    for number in (1, 2, 3):
        put(state, number, 0, commit(0, number), commit(1, number))
    assert state.commits.numbers("count") == {0: [1, 2, 3], 1: [1, 2, 3]}
    state.commits.remove("count", 0, [1, 2])
    assert len(store.segments()) == 3
    state.commits.remove("count", 1, [1])
    assert store.segments() == ["000000000002-00000000", "000000000003-00000000"]
    # Who begins anew finds what is there for another's sake, and it goes with the next that may.
    fresh = store.state()
    assert fresh.commits.numbers("count") == {0: [2, 3], 1: [2, 3]}
    fresh.commits.remove("count", 1, [2])
    fresh.commits.remove("count", 0, [2])
    assert store.segments() == ["000000000003-00000000"]


def test_what_is_old_and_mostly_not_needed_is_put_again(store: Counting) -> None:
    state = store.state()
    epochs = 80
    put(state, 1, 0, *(commit(interval, 1, b"x" * 100) for interval in range(16)))
    for epoch in range(2, epochs + 1):
        put(state, epoch, 0, *(commit(interval, epoch) for interval in range(15)))
    reader = store.state()
    assert reader.commits.read("count", 15, 1) is not None
    for interval in range(15):
        for number in (epochs - 1, epochs):
            state.snapshots.put("count", interval, number, [b""])
    before = len(store.store.get("segments/count/000000000001-00000000").bytes())
    collected = Collector(state).collect(
        Collectable({"count": dict.fromkeys(range(15), epochs) | {15: 1}}, first_entry=0)
    )
    assert collected.commits == 15 * (epochs - 1)
    assert store.segments() == ["000000000001-00000000", f"{epochs:012x}-00000000"]
    assert len(store.store.get("segments/count/000000000001-00000000").bytes()) < before / 8
    # Readers find it, with the index of before and with a new one; its name stays taken.
    for one in (reader, state, store.state()):
        assert one.commits.read("count", 15, 1) == commit(15, 1, b"x" * 100)
    assert put(store.state(), 1, 0, commit(0, 1, b"of a zombie")) == [False]
    assert store.state().commits.read("count", 0, 1) is None


def test_a_segment_that_is_damaged_is_said_to_be(store: Counting) -> None:
    put(store.state(), 1, 0, commit(0, 1, b"x" * 100))
    name = "segments/count/000000000001-00000000"
    data = bytearray(store.store.get(name).bytes())
    data[40] ^= 1
    store.store.put(name, bytes(data))
    with pytest.raises(DamagedStore, match=r"segments/count/0{11}1-0{8}: commit .* damaged at"):
        store.state().commits.read("count", 0, 1)


def test_a_bucket_that_was_copied_to_a_directory_file_by_file_is_refused(
    store: Counting, tmp_path: Path
) -> None:
    put(store.state(), 1, 0, commit(0, 1))
    for name in ("FORMAT", f"segments/count/{store.segments()[0]}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(store.store.get(name).bytes()))
    with pytest.raises(CheckpointMismatch, match=r"object store.*millrace checkpoint copy s3://"):
        LocalHardState.open(tmp_path)


def test_of_two_segments_with_one_commit_the_one_of_the_later_epoch_counts(store: Counting) -> None:
    """The other is an attempt's that was left behind: its task had no work in that epoch."""
    state = store.state()
    put(state, 2, 0, commit(0, 1, epoch=2))
    seen = store.state()
    assert seen.commits.read("count", 0, 1) == commit(0, 1, epoch=2)
    put(state, 1, 0, commit(0, 1, b"of a zombie", epoch=1))
    for one in (seen, state, store.state()):
        assert one.commits.numbers("count") == {0: [1]}
        assert one.commits.read("count", 0, 1) == commit(0, 1, epoch=2)
    state.commits.remove("count", 0, [1])
    assert store.segments() == []
