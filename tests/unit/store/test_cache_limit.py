from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from logs import append

from millrace.store import (
    CacheLimit,
    Commit,
    HardState,
    LmdbCaches,
    SnapshotPolicy,
    SnapshotWriter,
    bring,
    lmdb_environments,
)

Make = Callable[..., Commit]
ALL = 1 << 40


@pytest.fixture
def caches(tmp_path: Path) -> LmdbCaches:
    return LmdbCaches(tmp_path, "uuid")


def limit(caches: LmdbCaches, limit_bytes: int) -> CacheLimit:
    return CacheLimit(caches, ["count"], limit_bytes)


def rows(caches: LmdbCaches, interval: int) -> Path:
    return caches.home / "count" / f"{interval:08x}" / "data.mdb"


def fill(caches: LmdbCaches, commit: Make, intervals: int) -> None:
    """Give intervals a commit each, at times apart from one another."""
    for interval in range(intervals):
        caches.open("count", interval).apply(commit(1, (b"Sa", b"1"), interval=interval))
        os.utime(rows(caches, interval), ns=(interval, interval))


def there(caches: LmdbCaches) -> list[int]:
    return [interval for interval in range(4) if rows(caches, interval).exists()]


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_the_interval_that_longest_had_no_commit_goes_first(
    caches: LmdbCaches, commit: Make
) -> None:
    fill(caches, commit, 4)
    caches.open("count", 1).apply(commit(2, (b"Sa", b"2"), interval=1))  # the newest now
    each = [rows(caches, interval).stat().st_blocks * 512 for interval in range(4)]

    assert limit(caches, sum(each)).over() == []
    assert limit(caches, sum(each) - 1).over() == [("count", 0)]
    assert limit(caches, sum(each) - each[0] - 1).over() == [("count", 0), ("count", 2)]
    assert limit(caches, 0).over() == [("count", n) for n in (0, 2, 3, 1)]
    # Those of computations that are not of the run do not count.
    assert CacheLimit(caches, ["other"], 0).over() == []


def test_what_is_evicted_is_built_again(caches: LmdbCaches, commit: Make, state: HardState) -> None:
    cache = caches.open("count", 0)
    for number in (1, 2):
        made = commit(number, (b"S%d" % number, b"x"))
        assert append(state, [made]) == [True]
        cache.apply(made)
    limit(caches, 0).evict("count", 0)
    assert cache.position == 0

    repair = bring(cache, state, "count", 0, 2)

    assert (repair.rebuilt, repair.deltas_applied) == (True, 2)
    with cache.view(at=2) as view:
        assert view.get_many([b"S1", b"S2"]) == [b"x", b"x"]


def test_who_reads_goes_on_and_the_space_is_given_back_after(
    caches: LmdbCaches, commit: Make
) -> None:
    fill(caches, commit, 1)
    cache = caches.open("count", 0)
    with cache.view(at=1) as view:
        limit(caches, 0).evict("count", 0)
        assert view.get(b"Sa") == b"1"
    assert cache.position == 0
    assert cache.wiped == 0, "nothing was damaged"


def test_files_that_another_process_evicted_are_let_go(caches: LmdbCaches, commit: Make) -> None:
    fill(caches, commit, 2)
    rows(caches, 0).parent.rename(caches.home / "count" / "elsewhere")  # as it does, to remove it
    assert str(rows(caches, 0).parent) in lmdb_environments._open

    assert limit(caches, ALL).over() == []

    assert str(rows(caches, 0).parent) not in lmdb_environments._open
    assert str(rows(caches, 1).parent) in lmdb_environments._open


def test_of_files_that_are_let_go_none_stays_open(caches: LmdbCaches, commit: Make) -> None:
    lmdb_environments.close_all()
    before = open_files()
    fill(caches, commit, 1)
    rows(caches, 0).parent.rename(caches.home / "count" / "elsewhere")

    limit(caches, ALL).over()

    assert open_files() == before


def test_a_snapshot_that_is_due_is_written_before_its_cache_goes(
    caches: LmdbCaches, commit: Make, state: HardState
) -> None:
    """Also of an interval that another process had, and did not come to."""
    fill(caches, commit, 3)
    policy = SnapshotPolicy(fixed_bytes=0)
    writer = SnapshotWriter(caches, state.snapshots, policy, limit(caches, 0))
    writer.offer("count", [1])
    assert writer.wait(30)

    assert there(caches) == []
    assert state.snapshots.numbers("count") == {0: [1], 1: [1], 2: [1]}
    assert writer.take().snapshots == 3


def test_the_thread_goes_on_where_a_cache_cannot_be_evicted(
    caches: LmdbCaches,
    commit: Make,
    state: HardState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(caches, commit, 1)
    writer = SnapshotWriter(caches, state.snapshots, limit=limit(caches, 0))

    def refused(*_: object) -> None:
        raise PermissionError("not yours")

    with monkeypatch.context() as patch:
        patch.setattr(CacheLimit, "over", refused)
        writer.offer("count", [0])
        assert writer.wait(30)
    assert "over their limit, and stay so for now: not yours" in caplog.text
    writer.offer("count", [0])
    assert writer.wait(30)
    assert there(caches) == []
