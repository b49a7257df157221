from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from millrace.model.errors import CheckpointUnwritable
from millrace.store import Cache, Caches, Commit, HardState, SnapshotPolicy, SnapshotWriter

Make = Callable[..., Commit]
ALWAYS = SnapshotPolicy(fixed_bytes=0)


@pytest.fixture
def commits(caches: Caches, commit: Make) -> Cache:
    cache = caches.open("count", 0)
    cache.apply(commit(1, (b"Sa", b"1")))
    return cache


def test_an_interval_that_is_due_is_written_and_counted(
    caches: Caches, commits: Cache, state: HardState
) -> None:
    writer = SnapshotWriter(caches, state.snapshots, ALWAYS)
    writer.offer("count", [0, 1])
    assert writer.wait(30)
    assert state.snapshots.numbers("count") == {0: [1]}
    written = writer.take()
    assert (written.snapshots, written.failed) == (1, 0)
    assert written.bytes > 0
    assert writer.take().snapshots == 0


def test_one_that_is_not_due_is_not(caches: Caches, commits: Cache, state: HardState) -> None:
    writer = SnapshotWriter(caches, state.snapshots)
    writer.offer("count", [0])
    assert writer.wait(30)
    assert state.snapshots.numbers("count") == {}


def test_a_failure_is_counted_logged_and_ends_nothing(
    caches: Caches,
    commits: Cache,
    state: HardState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> bool:
        raise CheckpointUnwritable("no room")

    writer = SnapshotWriter(caches, state.snapshots, ALWAYS)
    with monkeypatch.context() as patch:
        patch.setattr(state.snapshots, "put", full)
        writer.offer("count", [0])
        assert writer.wait(30)
    assert writer.take().failed == 1
    assert "no snapshot of interval 0 of computation 'count'" in caplog.text
    writer.offer("count", [0])
    assert writer.wait(30)
    assert writer.take().snapshots == 1


def test_one_snapshot_is_written_at_a_time(
    caches: Caches, commit: Make, state: HardState, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, most = threading.Semaphore(0), []
    put = state.snapshots.put

    def counting(*arguments):  # type: ignore[no-untyped-def]
        busy.release()
        most.append(busy._value)
        try:
            return put(*arguments)
        finally:
            busy.acquire()

    monkeypatch.setattr(state.snapshots, "put", counting)
    for interval in range(4):
        caches.open("count", interval).apply(commit(1, (b"Sa", b"1"), interval=interval))
    writer = SnapshotWriter(caches, state.snapshots, ALWAYS)
    for interval in range(4):
        writer.offer("count", [interval])
    assert writer.wait(30)
    assert most == [1, 1, 1, 1]


def test_an_interval_that_is_left_alone_is_written_before_it_keeps_segments_for_long(
    caches: Caches, commits: Cache, state: HardState
) -> None:
    writer = SnapshotWriter(caches, state.snapshots)
    writer.offer("count", [0], mark=7)
    written = []
    for mark in range(7, 7 + 400):
        writer.passed(mark)
        assert writer.wait(30)
        written += [mark - 7] * writer.take().snapshots
    assert written == [128]
    assert state.snapshots.numbers("count") == {0: [1]}


def test_commits_in_grown_segments_cost_their_bytes_alone(caches: Caches, commit: Make) -> None:
    """However many there are: small bundles are cheap."""
    cache = caches.open("count", 0)
    for number in range(1, 1001):
        cache.apply(commit(number, (b"Sa", b"1")), overhead=0)
    assert 0 < cache.cache_position.debt < 64 << 10
    assert not SnapshotPolicy().due(cache)
    assert SnapshotPolicy().due(cache, marks=128)
