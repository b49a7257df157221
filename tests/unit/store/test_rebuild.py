"""bring, where commits were collected, damaged, or of another history: snapshots and chains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from logs import append, lose

from millrace.model.errors import DamagedCache, DamagedStore, StoreError
from millrace.store import (
    Cache,
    Commit,
    HardState,
    MemoryCache,
    MemoryHardState,
    SnapshotHead,
    bring,
    chain_of,
    encode_snapshot,
)

Apply = Callable[[Commit], None]


def history(length: int, word: str = "a") -> list[Commit]:
    """Commits whose row ``Sn`` says how many have been applied, and ``Sw`` of which history."""
    made: list[Commit] = []
    for number in range(1, length + 1):
        previous = made[-1].chain if made else 0
        mutations: list[tuple[bytes, bytes | None]] = [
            (b"Sn", b"%d" % number),
            (b"Sw", word.encode()),
        ]
        made.append(
            Commit(
                "count", 0, number, number, 1, mutations, b"", b"", previous,
                chain_of(previous, mutations),
            )
        )  # fmt: skip
    return made


def snapshot(state: HardState, number: int, word: str = "a") -> None:
    cache = MemoryCache("count", 0)
    for commit in history(number, word):
        cache.apply(commit)
    head = SnapshotHead("count", 0, number, cache.cache_position.chain)
    with cache.view() as view:
        assert state.snapshots.put("count", 0, number, encode_snapshot(head, view.everything()))


def holds(cache: Cache, number: int, word: str = "a") -> bool:
    with cache.view(at=number) as view:
        return view.get_many([b"Sn", b"Sw"]) == [b"%d" % number, word.encode()]


@pytest.fixture
def log(state: HardState) -> HardState:
    for commit in history(9):
        append(state, [commit])
    return state


CHAINS = [commit.chain for commit in history(9)]


def test_a_rebuild_starts_at_the_newest_snapshot(cache: Cache, log: HardState) -> None:
    for number in (3, 6, 9):
        snapshot(log, number)
    repair = bring(cache, log, "count", 0, 8, CHAINS[7])
    assert (repair.snapshot, repair.deltas_applied, repair.rebuilt) == (6, 2, True)
    assert holds(cache, 8)


def test_a_snapshot_right_at_the_commit_is_enough(cache: Cache, log: HardState) -> None:
    snapshot(log, 6)
    log.commits.remove("count", 0, range(1, 7))
    repair = bring(cache, log, "count", 0, 6, CHAINS[5])
    assert (repair.snapshot, repair.deltas_applied) == (6, 0)
    assert holds(cache, 6)


def test_a_cache_behind_what_was_collected_is_rebuilt(cache: Cache, log: HardState) -> None:
    bring(cache, log, "count", 0, 2)
    snapshot(log, 6)
    log.commits.remove("count", 0, range(1, 7))
    assert bring(cache, log, "count", 0, 9, CHAINS[8]).snapshot == 6
    assert holds(cache, 9)


@pytest.mark.parametrize("data", [b"", b"MRSS", b"x" * 500])
def test_a_damaged_snapshot_is_passed_over_and_counted(
    cache: Cache, log: HardState, data: bytes
) -> None:
    snapshot(log, 3)
    log.snapshots.put("count", 0, 6, [data])
    log.commits.remove("count", 0, range(1, 4))
    repair = bring(cache, log, "count", 0, 8)
    assert (repair.snapshot, repair.deltas_applied, repair.damaged) == (3, 5, 1)
    assert holds(cache, 8)


def test_a_missing_commit_behind_a_snapshot_is_not_missed(cache: Cache, log: HardState) -> None:
    snapshot(log, 6)
    lose(log, "count", 0, [5])
    assert bring(cache, log, "count", 0, 9).snapshot == 6


def test_a_missing_commit_after_it_is_lost_and_the_cache_stays(
    cache: Cache, log: HardState
) -> None:
    cache.apply(*history(9))
    snapshot(log, 6)
    lose(log, "count", 0, [*range(1, 7), 8])
    with pytest.raises(DamagedStore, match=r"lost(.|\n)*commit 8 of interval 0(.|\n)*Restore"):
        bring(MemoryCache("count", 0), log, "count", 0, 9)
    with pytest.raises(DamagedStore, match="commit 1 of"):
        bring(cache, log, "count", 0, 5)
    assert holds(cache, 9)


def test_a_cache_of_another_history_at_the_same_number_is_rebuilt(
    cache: Cache, log: HardState
) -> None:
    """The checkpoint was restored from a copy; the cache went on with what was lost."""
    for commit in history(7, "lost"):
        cache.apply(commit)
    repair = bring(cache, log, "count", 0, 7, CHAINS[6])
    assert repair.rebuilt
    assert holds(cache, 7)


def test_a_cache_of_another_history_behind_is_rebuilt(cache: Cache, log: HardState) -> None:
    for commit in history(4, "lost"):
        cache.apply(commit)
    assert bring(cache, log, "count", 0, 7, CHAINS[6]).rebuilt
    assert holds(cache, 7)


def test_a_commit_that_does_not_follow_is_refused(cache: Cache) -> None:
    one, *_ = history(1)
    two = history(2, "lost")[1]
    cache.apply(one)
    with pytest.raises(DamagedCache, match="of another history"):
        cache.apply(two)
    assert holds(cache, 1)


def test_a_zombies_commit_put_after_collection_is_not_applied(cache: Cache, log: HardState) -> None:
    """It put 3 after 1 to 3 had been collected, and died before it looked again."""
    bring(cache, log, "count", 0, 2)
    snapshot(log, 3)
    log.commits.remove("count", 0, range(1, 4))
    stray = history(3, "stray")[2]
    append(log, [Commit("count", 0, 3, 3, 1, stray.mutations, b"", b"", CHAINS[1], 77)])
    repair = bring(cache, log, "count", 0, 9, CHAINS[8])
    assert repair.snapshot == 3
    assert holds(cache, 9)


def test_a_snapshot_of_another_history_is_not_used(cache: Cache, log: HardState) -> None:
    snapshot(log, 6, "lost")
    repair = bring(cache, log, "count", 0, 6, CHAINS[5])
    assert (repair.snapshot, repair.damaged) == (0, 1)
    assert holds(cache, 6)


def test_a_snapshot_under_another_name_is_not_used(cache: Cache, log: HardState) -> None:
    head = SnapshotHead("count", 1, 6, CHAINS[5])
    log.snapshots.put("count", 0, 6, encode_snapshot(head, []))
    assert bring(cache, log, "count", 0, 6, CHAINS[5]).snapshot == 0
    assert holds(cache, 6)


def test_what_is_collected_while_it_is_read_is_looked_for_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryHardState()
    append(state, history(9))
    snapshot(state, 3)
    read = state.snapshots.read

    def collected(computation: str, interval: int, number: int):
        if number == 3:
            snapshot(state, 6)
            state.snapshots.remove("count", 0, [3])
            state.commits.remove("count", 0, range(1, 7))
        return read(computation, interval, number)

    monkeypatch.setattr(state.snapshots, "read", collected)
    assert bring(cache, state, "count", 0, 9, CHAINS[8]).snapshot == 6
    assert holds(cache, 9)


def test_a_load_that_fails_leaves_the_cache_as_it_was(cache: Cache) -> None:
    for commit in history(2):
        cache.apply(commit)

    def parts():
        yield [(b"Sx", b"")]
        raise DamagedStore("cut")

    with pytest.raises(DamagedStore, match="cut"):
        cache.load(5, 1, parts())
    assert holds(cache, 2)


def test_a_commit_of_a_group_is_owed_by_its_bytes(cache: Cache) -> None:
    one = Commit("count", 0, 1, 1, 1, [(b"Sk", b"123")], chain=7)
    cache.apply(one, overhead=0)
    assert cache.cache_position == (1, 7, 5)


def test_the_debt_is_what_was_committed_since_the_last_snapshot(cache: Cache) -> None:
    one, two, three = history(3)
    cache.apply(one)
    debt = cache.cache_position.debt
    assert debt > 64 * 1024
    cache.apply(two)
    cache.settle(debt)
    assert cache.cache_position == (2, two.chain, debt)
    cache.apply(three)
    cache.load(2, two.chain, [[(b"Sn", b"2"), (b"Sw", b"a")]])
    assert cache.cache_position == (2, two.chain, 0)
    assert holds(cache, 2)


def test_a_cache_that_vanishes_meanwhile_is_not_taken_for_a_damaged_log(log: HardState) -> None:
    """Found by the simulator: it told the user to restore the checkpoint from a copy."""

    class Vanishing(MemoryCache):
        def apply(self, *commits: Commit, overhead: int = 1 << 16) -> None:
            super().apply(*commits, overhead=overhead)
            if commits[-1].number == 9:
                self.clear()

    with pytest.raises(StoreError, match="try this task again") as raised:
        bring(Vanishing("count", 0), log, "count", 0, 9, CHAINS[8])
    assert not isinstance(raised.value, DamagedStore)
