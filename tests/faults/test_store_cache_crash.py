"""A process is killed while it applies commits: the cache is whole, at some commit, not stuck."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from logs import append

from millrace.store import Commit, LmdbCache, MemoryHardState, bring, lmdb_environments

COMMITS = 400
ROWS = 300


def commit(number: int) -> Commit:
    rows: list[tuple[bytes, bytes | None]] = [
        (b"S%d" % row, b"%d " % number * 20) for row in range(number % 7, ROWS, 3)
    ]
    rows.append((b"S%d" % (number * 31 % ROWS), None))
    return Commit("count", 0, number, 1, 1, rows)


def rows_at(number: int) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes | None] = {}
    for wanted in range(1, number + 1):
        rows.update(commit(wanted).mutations)
    return {row: value for row, value in rows.items() if value is not None}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    lmdb_environments.close_all()


def start(directory: Path) -> tuple[int, int]:
    """Fork a process that applies commits and writes a byte for each; returns its pid and pipe."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            cache = LmdbCache(directory, "count", 0, "uuid")
            for number in range(cache.position + 1, COMMITS + 1):
                os.write(into, b".")
                cache.apply(commit(number))
        finally:
            os._exit(0)
    os.close(into)
    return pid, out


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_while_applying_leaves_a_whole_commit(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        pid, out = start(tmp_path)
        for _ in range(chance.randrange(1, 120)):
            if not os.read(out, 1):
                break
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(out)
        cache = LmdbCache(tmp_path, "count", 0, "uuid")
        position = cache.position
        with cache.view(at=position) as view:
            assert dict(view.scan(b"A", b"z")) == rows_at(position)
        assert cache.wiped == 0
        if position == COMMITS:
            break


def test_a_kill_inside_the_write_transaction_does_not_block_others(tmp_path: Path) -> None:
    cache = LmdbCache(tmp_path, "count", 0, "uuid")
    cache.apply(commit(1))
    pid = os.fork()
    if pid == 0:
        try:
            mine = LmdbCache(tmp_path, "count", 0, "uuid")
            mine._put_position = (  # type: ignore[method-assign]
                lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            )
            mine.apply(commit(2))
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert cache.position == 1
    cache.apply(commit(2))
    with cache.view(at=2) as view:
        assert dict(view.scan(b"A", b"z")) == rows_at(2)


def test_views_of_killed_processes_are_forgotten(tmp_path: Path) -> None:
    cache = LmdbCache(tmp_path, "count", 0, "uuid")
    cache.apply(commit(1))
    pid = os.fork()
    if pid == 0:
        with LmdbCache(tmp_path, "count", 0, "uuid").view():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    lmdb_environments.close_all()
    assert cache.position == 1
    (opened,) = lmdb_environments._open.values()
    assert str(pid) not in opened.env.readers()


def test_a_kill_while_repairing_is_repaired(tmp_path: Path) -> None:
    state = MemoryHardState()
    append(state, [commit(number) for number in range(1, 31)])
    for stop in range(1, 31, 4):
        pid = os.fork()
        if pid == 0:
            try:
                bring(LmdbCache(tmp_path, "count", 0, "uuid"), state, "count", 0, stop)
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    cache = LmdbCache(tmp_path, "count", 0, "uuid")
    assert cache.position == 29
    assert bring(cache, state, "count", 0, 30).deltas_applied == 1
    with cache.view(at=30) as view:
        assert dict(view.scan(b"A", b"z")) == rows_at(30)
