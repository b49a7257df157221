from __future__ import annotations

from collections.abc import Callable

import pytest
from logs import append

from millrace.model.errors import DamagedStore
from millrace.store import Cache, Commit, HardState, MemoryHardState, Repair, bring

Make = Callable[..., Commit]


@pytest.fixture
def log(state: HardState, commit: Make) -> HardState:
    """Five commits; the row ``Sn`` says how many have been applied."""
    for number in range(1, 6):
        append(state, [commit(number, (b"Sn", b"%d" % number))])
    return state


BYTES = 3 + len(b"out") + len(b"in")


def test_at_the_commit_nothing_is_done(cache: Cache, log: HardState) -> None:
    bring(cache, log, "count", 0, 3)
    assert bring(cache, log, "count", 0, 3) == Repair(0, rebuilt=False, bytes_read=0)


def test_nothing_is_read_when_nothing_was_committed(cache: Cache) -> None:
    assert bring(cache, MemoryHardState(), "count", 0, 0) == Repair()


def test_behind_the_missing_commits_are_applied(cache: Cache, log: HardState) -> None:
    bring(cache, log, "count", 0, 3)
    assert bring(cache, log, "count", 0, 5) == Repair(2, rebuilt=False, bytes_read=2 * BYTES)
    with cache.view(at=5) as view:
        assert view.get(b"Sn") == b"5"


def test_an_empty_cache_is_made_from_the_first_commit(cache: Cache, log: HardState) -> None:
    assert bring(cache, log, "count", 0, 5) == Repair(5, rebuilt=True, bytes_read=5 * BYTES)


def test_ahead_is_rebuilt(cache: Cache, log: HardState) -> None:
    bring(cache, log, "count", 0, 5)
    assert bring(cache, log, "count", 0, 4) == Repair(4, rebuilt=True, bytes_read=4 * BYTES)
    with cache.view(at=4) as view:
        assert view.get(b"Sn") == b"4"


def test_ahead_of_nothing_is_cleared(cache: Cache, log: HardState) -> None:
    bring(cache, log, "count", 0, 5)
    assert bring(cache, log, "count", 0, 0) == Repair(0, rebuilt=True, bytes_read=0)
    assert cache.position == 0


def test_a_missing_commit_is_named(cache: Cache, commit: Make) -> None:
    state = MemoryHardState()
    append(state, [commit(1), commit(2), commit(4)])
    match = r"commit 4, which(.|\n)*commit 3 of interval 0 of computation 'count' is not in the log"
    with pytest.raises(DamagedStore, match=match):
        bring(cache, state, "count", 0, 4)


def test_a_missing_first_commit_is_named(cache: Cache) -> None:
    with pytest.raises(
        DamagedStore, match=r"cannot be brought to commit 7(.|\n)*commit 1 of interval 0"
    ):
        bring(cache, MemoryHardState(), "count", 0, 7)
