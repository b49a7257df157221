"""A writer is killed before, inside or after every system call: a blob is absent or whole."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from logs import append

from millrace.store import Commit, LocalHardState

CALLS = ("open", "write", "fsync", "link", "unlink", "mkdir", "close")

FIRST = [Commit("count", i, 1, 1, 1, [(b"Sk", b"first")], b"p" * 3000) for i in range(3)]
SECOND = [Commit("count", i, 2, 2, 1, [(b"Sk", b"second")], b"p" * 3000) for i in range(3)]
SECOND.append(Commit("other", 0, 1, 2, 1, []))
ENTRY = b'{"epoch": 1}'


class Steps:
    """Every system call that writes, counted; the one numbered ``fatal`` is the last."""

    def __init__(self, fatal: int, *, half: bool) -> None:
        self.fatal = fatal
        self.half = half
        self.done = 0

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done == self.fatal:
                if self.half and name == "write":
                    fd, data = arguments
                    call(fd, bytes(data)[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return step


def killed(work: Callable[[], object], steps: Steps) -> bool:
    """Run ``work`` in a forked process until its fatal step; False if it came to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            steps.install()
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


def absent_or_whole(state: LocalHardState, commits: list[Commit]) -> list[bool]:
    """Which of ``commits`` are there; those that are must be whole."""
    there: list[bool] = []
    for commit in commits:
        name = commit.computation, commit.interval, commit.number
        found = state.commits.read(*name)
        assert found in (None, commit)
        assert state.commits.exists(*name) == (found is not None)
        there.append(found is not None)
    return there


@pytest.mark.parametrize("half", [False, True])
def test_killed_while_the_checkpoint_is_made(tmp_path: Path, half: bool) -> None:
    for step in itertools.count(1):
        root = tmp_path / f"{half}-{step}"
        make = partial(LocalHardState.create_or_open, root, pipeline="p")
        died = killed(make, Steps(step, half=half))
        state = LocalHardState.create_or_open(root, pipeline="p")
        assert append(state, FIRST) == [True] * 3
        assert state.epochs.append(1, ENTRY)
        assert not list((root / "tmp").iterdir())
        if not died:
            break
    assert step > 10


@pytest.mark.parametrize("half", [False, True])
def test_killed_while_commits_are_appended(tmp_path: Path, half: bool) -> None:
    seen: set[tuple[bool, ...]] = set()
    for step in itertools.count(1):
        root = tmp_path / f"{half}-{step}"
        state = LocalHardState.create_or_open(root, pipeline="p")
        append(state, FIRST)
        died = killed(partial(append, state, SECOND), Steps(step, half=half))
        state = LocalHardState.create_or_open(root, pipeline="p")
        assert not list((root / "tmp").iterdir())
        assert absent_or_whole(state, FIRST) == [True] * 3
        there = absent_or_whole(state, SECOND)
        seen.add(tuple(there))
        # The retry wins exactly what the killed attempt had not.
        assert append(state, SECOND) == [not won for won in there]
        assert absent_or_whole(state, SECOND) == [True] * 4
        if not died:
            break
    assert len(seen) == 5  # None, and each of the four links.


@pytest.mark.parametrize("half", [False, True])
def test_killed_while_an_epoch_is_appended(tmp_path: Path, half: bool) -> None:
    seen: set[int] = set()
    for step in itertools.count(1):
        state = LocalHardState.create_or_open(tmp_path / f"{half}-{step}", pipeline="p")
        state.epochs.append(1, b'"claim"')
        died = killed(partial(state.epochs.append, 2, ENTRY), Steps(step, half=half))
        state = LocalHardState.create_or_open(state.path, pipeline="p")
        last = state.epochs.last()
        seen.add(last)
        assert state.epochs.read(1) == b'"claim"'
        assert state.epochs.read(2) == (ENTRY if last == 2 else None)
        assert state.epochs.append(2, ENTRY) == (last == 1)
        assert state.epochs.read(2) == ENTRY
        if not died:
            break
    assert seen == {1, 2}


def test_a_blob_gets_its_name_after_its_bytes_are_durable_and_is_durable_when_it_is_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that a power cut needs, which no kill can show: the page cache survives a kill."""
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    events: list[tuple[str, str]] = []
    fsync, link, write, mkdir = os.fsync, os.link, os.write, os.mkdir

    def name(fd: int) -> str:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return "file" if path.suffix == ".tmp" else path.name

    def recorded(event: str, what: str) -> None:
        if not events or events[-1] != (event, what):
            events.append((event, what))

    def on_fsync(fd: int) -> None:
        recorded("fsync", name(fd))
        fsync(fd)

    def on_write(fd: int, data: bytes) -> int:
        recorded("write", name(fd))
        return write(fd, data)

    def on_link(source: Path | str, target: Path | str) -> None:
        recorded("link", Path(target).parent.name)
        link(source, target)

    def on_mkdir(path: Path | str, mode: int = 0o777) -> None:
        recorded("mkdir", Path(path).name)
        mkdir(path, mode)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "write", on_write)
    monkeypatch.setattr(os, "link", on_link)
    monkeypatch.setattr(os, "mkdir", on_mkdir)
    state.commits.of_task("count", 1, 0).put(FIRST)
    assert events == [
        ("mkdir", "count"),
        ("fsync", "commits"),
        ("write", "file"),
        ("fsync", "file"),
        ("link", "count"),
        ("fsync", "count"),
    ]
    events.clear()
    state.epochs.append(1, ENTRY)
    assert events == [
        ("write", "file"),
        ("fsync", "file"),
        ("link", "epochs"),
        ("fsync", "epochs"),
    ]
