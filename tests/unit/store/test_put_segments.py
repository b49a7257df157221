"""What it costs to find and to free commits in segments, and what damage does; by requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.model.errors import DamagedStore
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Collectable,
    Collector,
    Commit,
    CommitLog,
    HardState,
    ObjectBlobs,
    ObjectHardState,
    SegmentName,
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
        pages = self.store.list("commits")
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


def put(state: HardState, epoch: int, task: int, *commits: Commit) -> bool:
    return state.commits.of_task("count", epoch, task).put(commits)


def test_a_write_is_one_request_however_many_intervals(store: Counting) -> None:
    state = store.state()
    store.requests.clear()
    mine = state.commits.of_task("count", 1, 0)
    assert [mine.read(interval, 1) for interval in range(500)] == [None] * 500
    assert mine.put([commit(interval, 1) for interval in range(500)])
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
    # Are there grown segments; then an index. Small segments stay in memory.
    assert store.requests == {"list": 2, "get_range": 6}
    put(state, 7, 0, commit(0, 6, epoch=7))
    assert reader.commits.read("count", 0, 6) == commit(0, 6, epoch=7)
    assert reader.commits.read("count", 0, 7) is None
    assert reader.commits.numbers("count") == {0: [1, 2, 3, 4, 5, 6], 1: [1, 2, 3, 4, 5], 5: [1]}


def test_a_commit_that_was_left_of_a_grown_segment_is_found(store: Counting) -> None:
    state = store.state()
    put(state, 1, 0, commit(0, 1))
    assert state.commits.of_grown("count", SegmentName(1, 1, 0, 1)).put([commit(0, 2)])
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
    before = len(store.store.get("commits/count/000000000001-00000000").bytes())
    collected = Collector(state).collect(
        Collectable({"count": dict.fromkeys(range(15), epochs) | {15: 1}}, first_entry=0)
    )
    assert collected.commits == 15 * (epochs - 1)
    assert store.segments() == ["000000000001-00000000", f"{epochs:012x}-00000000"]
    assert len(store.store.get("commits/count/000000000001-00000000").bytes()) < before / 8
    # Readers find it, with the index of before and with a new one; its name stays taken.
    for one in (reader, state, store.state()):
        assert one.commits.read("count", 15, 1) == commit(15, 1, b"x" * 100)
    assert not put(store.state(), 1, 0, commit(0, 1, b"of a zombie"))
    assert store.state().commits.read("count", 0, 1) is None


def test_a_segment_that_is_damaged_is_said_to_be(store: Counting) -> None:
    put(store.state(), 1, 0, commit(0, 1, b"x" * 100))
    name = "commits/count/000000000001-00000000"
    data = bytearray(store.store.get(name).bytes())
    data[data.index(b"x" * 100)] ^= 1
    store.store.put(name, bytes(data))
    with pytest.raises(DamagedStore, match=r"commits/count/0{11}1-0{8}: damaged at .* a block"):
        store.state().commits.read("count", 0, 1)


@pytest.mark.parametrize("place", ["header", "block", "trailer"])
def test_a_damaged_segment_takes_no_commit_but_its_own(state: HardState, place: str) -> None:
    for number in (1, 2, 3):
        put(state, number, 0, commit(0, number, b"x" * 100))
    data = bytearray(state.blobs.read(f"commits/count/{2:012x}-{0:08x}") or b"")
    offset = {"header": 0, "block": data.index(b"x" * 100), "trailer": -1}[place]
    data[offset] ^= 1
    state.blobs.replace(f"commits/count/{2:012x}-{0:08x}", bytes(data))
    log = CommitLog(state.blobs, state.incarnations)
    assert [log.read("count", 0, number) for number in (1, 3)] == [
        commit(0, 1, b"x" * 100),
        commit(0, 3, b"x" * 100),
    ]
    with pytest.raises(DamagedStore, match=r"0{11}2-0{8}: damaged at"):
        log.read("count", 0, 2)
    assert not log.exists("count", 0, 4)
    assert log.numbers("count") == ({0: [1, 2, 3]} if place == "block" else {0: [1, 3]})
    assert len(log.damaged("count")) == (place != "block")
    state.blobs.remove([f"commits/count/{2:012x}-{0:08x}"])
    assert log.read("count", 0, 2) is None
    assert log.damaged("count") == []


def test_a_segment_under_the_name_of_another_computation_is_refused(state: HardState) -> None:
    put(state, 1, 0, commit(0, 1))
    name = f"{1:012x}-{0:08x}"
    data = state.blobs.read(f"commits/count/{name}") or b""
    state.blobs.put_if_absent(f"commits/other/{name}", data)
    with pytest.raises(DamagedStore, match="copied or renamed"):
        state.commits.read("other", 0, 1)
    with pytest.raises(DamagedStore, match="copied or renamed"):
        state.commits.of_task("other", 1, 0).read(0, 1)


def test_what_is_put_again_in_a_directory_survives_its_writer(state: HardState) -> None:
    """Thinning: a reader with the index of before finds what is left."""
    put(state, 1, 0, *(commit(interval, 1, b"x" * 100) for interval in range(16)))
    put(state, 9, 0, *(commit(interval, 2) for interval in range(15)))
    reader = CommitLog(state.blobs, state.incarnations)
    assert reader.read("count", 15, 1) == commit(15, 1, b"x" * 100)
    for interval in range(15):
        state.commits.remove("count", interval, [1])
    before = state.blobs.sizes("commits/count")[f"commits/count/{1:012x}-{0:08x}"]
    assert state.commits.thin("count", 8, 8) == 0
    assert state.commits.thin("count", 7, 8) == 1
    assert state.blobs.sizes("commits/count")[f"commits/count/{1:012x}-{0:08x}"] < before / 8
    for log in (reader, state.commits, CommitLog(state.blobs, state.incarnations)):
        assert log.read("count", 15, 1) == commit(15, 1, b"x" * 100)
    assert not put(state, 1, 0, commit(0, 1, b"of a zombie"))


def test_what_grown_segments_cost_in_requests(store: Counting) -> None:
    """A put a group, one for the index; sealing takes two reads of a segment, at a time."""
    state = store.state()
    state.incarnations.seal(1)
    store.requests.clear()
    for epoch in (1, 2, 3):
        segment = state.incarnations.grow(1, 1, 0, epoch)
        for number in range(3 * epoch - 2, 3 * epoch + 1):
            segment.append([commit(0, number)], b"note")
        if epoch < 3:
            segment.finish()
    assert store.requests == {"put": 3 * 3 + 2}
    heir = store.state()
    store.requests.clear()
    assert heir.incarnations.seal(2) is not None
    # Which incarnations there are, before and after its marker; what is there once all are fenced,
    # and for each level down to the deepest; and what is left to be removed.
    assert store.requests["list"] == 2 + 1 + 2 + 1
    # Of the last one its header and its last group; of the others header and index.
    assert store.requests["get_range"] == 2 + 2 * 2
    store.requests.clear()
    assert store.state().commits.read("count", 0, 5) == commit(0, 5)
    # An index each, the frames of the one that has none but for that in the seal, and one frame.
    assert store.requests["get_range"] == 2 * 2 + (1 + 2) + 1


def test_thinning_goes_on_where_a_segment_has_gone_and_another_has_come(store: Counting) -> None:
    """A thinned segment was removed by another process; the next look finds a new interval."""
    state = store.state()
    put(state, 1, 0, *(commit(interval, 1, b"x" * 10_000) for interval in range(16)))
    put(state, 9, 0, commit(0, 9))
    state.commits.numbers("count")
    for interval in range(2, 16):
        state.commits.remove("count", interval, [1])
    store.store.delete(f"commits/count/{1:012x}-{0:08x}")
    put(state, 10, 0, commit(99, 1, epoch=10))
    assert state.commits.thin("count", 7, 8) == 0
    assert state.commits.numbers("count") == {0: [9], 99: [1]}
