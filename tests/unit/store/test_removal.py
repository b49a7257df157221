"""Removal: what is collected is gone, and its number stays taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from logs import append
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointUnwritable, InvariantViolation
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    HardState,
    LocalHardState,
    ObjectBlobs,
    ObjectHardState,
)

Make = Callable[..., Commit]


@pytest.fixture
def epochs(state: HardState) -> HardState:
    for number in range(1, 7):
        assert state.epochs.append(number, b"%d" % number)
    return state


def test_an_empty_log_has_no_first_entry(state: HardState) -> None:
    assert state.epochs.first() == 0


def test_entries_before_a_number_go_and_the_rest_stays(epochs: HardState) -> None:
    assert epochs.epochs.remove_before(4) == 3
    assert epochs.epochs.remove_before(4) == 0
    assert (epochs.epochs.first(), epochs.epochs.last()) == (4, 6)
    assert [epochs.epochs.read(number) for number in (3, 4)] == [None, b"4"]
    assert [epochs.epochs.exists(number) for number in (3, 4, 7)] == [False, True, False]


def test_the_last_entry_always_stays(epochs: HardState) -> None:
    assert epochs.epochs.remove_before(6) == 5
    with pytest.raises(InvariantViolation, match="before 7, but the last one is 6"):
        epochs.epochs.remove_before(7)
    assert epochs.epochs.append(7, b"7")


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6])
def test_a_number_whose_entry_was_collected_stays_taken(epochs: HardState, number: int) -> None:
    epochs.epochs.remove_before(5)
    assert not epochs.epochs.append(number, b"zombie")
    assert (epochs.epochs.first(), epochs.epochs.last()) == (5, 6)


def test_a_zombie_that_looked_before_the_collection_loses_too(tmp_path: Path) -> None:
    """It finds its predecessor there, pauses, and puts into a slot that has been freed."""
    live = LocalHardState.create_or_open(tmp_path / "c", pipeline="p").epochs
    state = LocalHardState.open(tmp_path / "c")
    zombie, put = state.epochs, state.blobs.put_if_absent
    live.append(1, b"1")
    assert zombie.last() == 1
    for number in range(2, 6):
        live.append(number, b"%d" % number)

    def paused(name: str, data: bytes) -> bool:
        live.remove_before(5)
        return put(name, data)

    state.blobs.put_if_absent = paused  # type: ignore[method-assign]
    assert not zombie.append(2, b"zombie")
    assert zombie.read(2) is None
    assert (zombie.first(), zombie.last()) == (5, 5)


def in_a_directory(path: Path) -> HardState:
    return LocalHardState.create_or_open(path / "c", pipeline="p")


def in_a_bucket(path: Path) -> HardState:
    url = BucketUrl.parse("s3://bucket/c")
    store = _BUCKETS.setdefault(path, MemoryStore())
    bucket = ObjectBlobs(url, BucketOptions(), store=store)
    return ObjectHardState.create_or_open(bucket, pipeline="p")


_BUCKETS: dict[Path, MemoryStore] = {}


@pytest.mark.parametrize("opened", [in_a_directory, in_a_bucket])
def test_an_entry_stays_that_others_went_on_from_while_its_writer_slept(
    opened: Callable[[Path], HardState], tmp_path: Path
) -> None:
    """Found by the simulator: the older driver took back the completion that the newer one read."""
    newer, older = opened(tmp_path).epochs, opened(tmp_path).epochs
    for number in (1, 2):
        assert older.append(number, b"%d" % number)
    looked = older._was_collected  # type: ignore[attr-defined]

    def slept(number: int) -> bool:
        assert newer.read(3) == b"done"
        assert newer.append(4, b"claim")
        assert newer.remove_before(3) == 2
        return bool(looked(number))

    older._was_collected = slept  # type: ignore[attr-defined]
    assert not older.append(3, b"done")
    assert (newer.read(3), newer.read(4)) == (b"done", b"claim")
    assert (newer.first(), newer.last()) == (3, 4)


def test_commits_are_listed_and_removed(state: HardState, commit: Make) -> None:
    for number in (1, 2, 3):
        append(state, [commit(number), commit(number, interval=300)])
    assert state.commits.numbers("count") == {0: [1, 2, 3], 300: [1, 2, 3]}
    assert state.commits.remove("count", 0, [1, 2]) == 2
    assert state.commits.numbers("count") == {0: [3], 300: [1, 2, 3]}
    assert state.commits.read("count", 0, 2) is None
    assert state.commits.read("count", 0, 3) == commit(3)
    assert state.commits.read("count", 300, 2) == commit(2, interval=300)
    assert state.commits.numbers("other") == {}


def test_snapshots_are_put_once_read_listed_and_removed(state: HardState) -> None:
    snapshots = state.snapshots
    assert snapshots.put("count", 0, 3, [b"ab", b"", b"c"])
    assert snapshots.put("count", 0, 20, iter([b"d" * 3_000_000]))
    assert not snapshots.put("count", 0, 3, [b"other"])
    assert b"".join(snapshots.read("count", 0, 3) or ()) == b"abc"
    assert b"".join(snapshots.read("count", 0, 20) or ()) == b"d" * 3_000_000
    assert snapshots.read("count", 0, 4) is None
    assert snapshots.numbers("count") == {0: [3, 20]}
    snapshots.remove("count", 0, [3, 4])
    assert snapshots.numbers("count") == {0: [20]}
    assert snapshots.numbers("other") == {}


def test_a_snapshot_that_cannot_be_made_leaves_nothing(state: HardState) -> None:
    def pieces():
        yield b"half"
        raise CheckpointUnwritable("no room")

    with pytest.raises(CheckpointUnwritable):
        state.snapshots.put("count", 0, 3, pieces())
    assert state.snapshots.numbers("count") == {}
    assert state.snapshots.read("count", 0, 3) is None


def test_a_snapshot_removed_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    state.snapshots.put("count", 0, 1, [b"x" * 3_000_000])
    pieces = state.snapshots.read("count", 0, 1)
    assert pieces is not None
    begun = next(pieces)
    state.snapshots.remove("count", 0, [1])
    assert begun + b"".join(pieces) == b"x" * 3_000_000
