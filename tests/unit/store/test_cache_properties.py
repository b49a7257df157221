"""Both caches, and a plain dictionary, agree after any sequence of commits."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from logs import append

from millrace.store import (
    Cache,
    Commit,
    LmdbCache,
    MemoryCache,
    MemoryHardState,
    bring,
    lmdb_environments,
)

ROWS = st.sampled_from([b"Sa", b"Sab", b"Sb", b"Ta", b"Ta\x00", b"Z" * 480])
VALUES = st.none() | st.binary(max_size=5) | st.just(b"v" * 5000)
MUTATIONS = st.lists(st.tuples(ROWS, VALUES), max_size=12)
HISTORIES = st.lists(MUTATIONS, max_size=8)


def commits(history: list[list[tuple[bytes, bytes | None]]]) -> list[Commit]:
    return [Commit("c", 0, number, 1, 1, rows) for number, rows in enumerate(history, 1)]


def model(history: list[Commit]) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for commit in history:
        for row, value in commit.mutations:
            if value is None:
                rows.pop(row, None)
            else:
                rows[row] = value
    return rows


def contents(cache: Cache) -> list[tuple[bytes, bytes]]:
    with cache.view() as view:
        scanned = list(view.scan(b"A", b"z"))
        wanted = sorted({b"Sa", b"Sab", b"Sb", b"Ta", b"Ta\x00", b"Z" * 480})
        assert view.get_many(wanted) == [dict(scanned).get(row) for row in wanted]
        assert all(view.get(row) == value for row, value in scanned)
    return scanned


@given(HISTORIES)
@settings(max_examples=50)
def test_both_caches_hold_what_the_commits_say(history: list[list[tuple[bytes, bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        caches: list[Cache] = [LmdbCache(directory, "c", 0, "uuid"), MemoryCache("c", 0)]
        for cache in caches:
            for count, commit in enumerate(commits(history), 1):  # type: ignore[arg-type]
                cache.apply(commit)
                expected = model(commits(history)[:count])  # type: ignore[arg-type]
                assert contents(cache) == sorted(expected.items())
        lmdb_environments.close_all()


@given(HISTORIES, st.lists(st.integers(0, 8), min_size=1, max_size=6))
@settings(max_examples=50)
def test_a_cache_can_be_brought_anywhere_from_anywhere(
    history: list[list[tuple[bytes, bytes | None]]], stops: list[int]
) -> None:
    state = MemoryHardState()
    append(state, commits(history))
    with tempfile.TemporaryDirectory() as directory:
        caches: list[Cache] = [LmdbCache(directory, "c", 0, "uuid"), MemoryCache("c", 0)]
        for stop in stops:
            number = min(stop, len(history))
            for cache in caches:
                kept = cache.position == number
                repair = bring(cache, state, "c", 0, number)
                assert cache.position == number
                assert (repair.deltas_applied == 0) == (kept or number == 0)
                expected = model(commits(history)[: cache.position])
                assert contents(cache) == sorted(expected.items())
        lmdb_environments.close_all()
