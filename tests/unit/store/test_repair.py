from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.model.errors import DamagedStore
from millrace.store import Cache, Commit, CommitLog, HardState, MemoryHardState, Repair, bring

Make = Callable[..., Commit]


@pytest.fixture
def log(state: HardState, commit: Make) -> CommitLog:
    """Five commits; the row ``Sn`` says how many have been applied."""
    for number in range(1, 6):
        state.commits.append([commit(number, (b"Sn", b"%d" % number))])
    return state.commits


BYTES = 3 + len(b"out") + len(b"in")


def test_at_the_commit_nothing_is_done(cache: Cache, log: CommitLog) -> None:
    bring(cache, log, "count", 0, 3)
    assert bring(cache, log, "count", 0, 3) == Repair(0, rebuilt=False, bytes_read=0)


def test_nothing_is_read_when_nothing_was_committed(cache: Cache) -> None:
    assert bring(cache, MemoryHardState().commits, "count", 0, 0) == Repair()


def test_behind_the_missing_commits_are_applied(cache: Cache, log: CommitLog) -> None:
    bring(cache, log, "count", 0, 3)
    assert bring(cache, log, "count", 0, 5) == Repair(2, rebuilt=False, bytes_read=2 * BYTES)
    with cache.view(at=5) as view:
        assert view.get(b"Sn") == b"5"


def test_an_empty_cache_is_made_from_the_first_commit(cache: Cache, log: CommitLog) -> None:
    assert bring(cache, log, "count", 0, 5) == Repair(5, rebuilt=True, bytes_read=5 * BYTES)


def test_ahead_is_rebuilt(cache: Cache, log: CommitLog) -> None:
    bring(cache, log, "count", 0, 5)
    assert bring(cache, log, "count", 0, 4) == Repair(4, rebuilt=True, bytes_read=4 * BYTES)
    with cache.view(at=4) as view:
        assert view.get(b"Sn") == b"4"


def test_ahead_of_nothing_is_cleared(cache: Cache, log: CommitLog) -> None:
    bring(cache, log, "count", 0, 5)
    assert bring(cache, log, "count", 0, 0) == Repair(0, rebuilt=True, bytes_read=0)
    assert cache.position == 0


@pytest.mark.parametrize(("number", "position"), [(3, 3), (2, 3), (1, 1)])
def test_one_ahead_may_be_allowed_and_two_are_not(
    cache: Cache, log: CommitLog, number: int, position: int
) -> None:
    bring(cache, log, "count", 0, 3)
    bring(cache, log, "count", 0, number, allow_ahead=1)
    assert cache.position == position


def test_a_missing_commit_is_named(cache: Cache, commit: Make) -> None:
    log = MemoryHardState().commits
    log.append([commit(1), commit(2), commit(4)])
    match = r"commit 3 of interval 0 of computation 'count' \(after epoch 12\) is not in the log"
    with pytest.raises(DamagedStore, match=match):
        bring(cache, log, "count", 0, 4)


def test_a_missing_first_commit_is_named(cache: Cache) -> None:
    with pytest.raises(
        DamagedStore, match=r"commit 1 .*first one of the interval.* names commit 7"
    ):
        bring(cache, MemoryHardState().commits, "count", 0, 7)
