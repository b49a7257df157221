"""Rows that lie on the disk are read by several threads, and only then."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from millrace.store import lmdb_environments
from millrace.store.lmdb_environments import Paging

ROWS = [b"S%04d" % n for n in range(1000)]


class Counted:
    """An environment that says which threads begin transactions in it."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env
        self.threads: list[str] = []
        self.failing = False

    def begin(self) -> lmdb.Transaction[bytes]:
        self.threads.append(threading.current_thread().name)
        if self.failing:
            raise lmdb.ReadersFullError("no more")
        return self._env.begin()


@pytest.fixture
def env(tmp_path: Path) -> Iterator[lmdb.Environment]:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        with env.begin(write=True) as txn:
            for row in ROWS:
                txn.put(row, row[1:])
        yield env


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pages that are waited for from now on, one with each look, until it is empty."""
    left: list[int] = []
    counts = {"waited": 0}

    def waited() -> int:
        if left:
            counts["waited"] += left.pop()
        return counts["waited"]

    monkeypatch.setattr(lmdb_environments, "_waited", waited)
    return left


def read(paging: Paging, env: lmdb.Environment, rows: list[bytes] = ROWS) -> None:
    with env.begin() as txn:
        assert paging.get_many(txn, [*rows, b"Snone"]) == [*(row[1:] for row in rows), None]


def test_rows_in_memory_are_read_by_one_thread(env: lmdb.Environment, waits: list[int]) -> None:
    counted = Counted(env)
    paging = Paging(counted)  # type: ignore[arg-type]
    for _ in range(3):
        read(paging, env)
    assert counted.threads == []
    assert not paging.waits


def test_after_waiting_for_the_disk_threads_read_ahead(
    env: lmdb.Environment, waits: list[int]
) -> None:
    counted = Counted(env)
    paging = Paging(counted)  # type: ignore[arg-type]
    waits += [100, 0]  # the last is had first: nothing before the rows are read, 100 after
    read(paging, env)
    assert counted.threads == []
    assert paging.waits
    read(paging, env)
    assert len(counted.threads) == lmdb_environments.THREADS
    assert all(name.startswith("millrace-paging") for name in counted.threads)
    assert not paging.waits, "nothing was waited for, by whomever"
    read(paging, env)
    assert len(counted.threads) == lmdb_environments.THREADS


def test_few_rows_are_read_by_one_thread(env: lmdb.Environment) -> None:
    counted = Counted(env)
    paging = Paging(counted)  # type: ignore[arg-type]
    paging.waits = True
    read(paging, env, ROWS[:100])
    assert counted.threads == []


def test_what_fails_ahead_is_read_all_the_same(env: lmdb.Environment) -> None:
    counted = Counted(env)
    counted.failing = True
    paging = Paging(counted)  # type: ignore[arg-type]
    paging.waits = True
    read(paging, env)
    assert len(counted.threads) == lmdb_environments.THREADS


@pytest.mark.filterwarnings("ignore:.*fork")  # since Python 3.12
def test_threads_are_made_anew_after_a_fork(env: lmdb.Environment, tmp_path: Path) -> None:
    paging = Paging(env)
    paging.waits = True
    read(paging, env)
    child = os.fork()
    if not child:
        done = threading.Event()

        def again() -> None:
            list(lmdb_environments._threads().map(str, range(100)))
            done.set()

        threading.Thread(target=again, daemon=True).start()
        os._exit(0 if done.wait(20) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
