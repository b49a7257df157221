"""The operating system refuses a call: the error says what to do, and nothing is half written."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from logs import append

from millrace.model.errors import CheckpointUnwritable, StoreError
from millrace.store import Commit, LmdbCache, LocalHardState, lmdb_environments

COMMITS = [Commit("count", i, 1, 1, 1, [(b"Sk", b"v")], b"p" * 3000) for i in range(3)]
COMMITS.append(Commit("other", 0, 1, 1, 1, []))
CALLS = ("open", "write", "fsync", "link", "mkdir")


@contextmanager
def failing(step: int, code: int) -> Iterator[list[str]]:
    """Let the system call numbered ``step`` fail; yields the names of the calls made."""
    made: list[str] = []
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def wrapped(name: str, *arguments: Any, **options: Any) -> Any:
        made.append(name)
        if len(made) == step:
            path = arguments[0] if name in ("open", "mkdir", "link") else None
            raise OSError(code, os.strerror(code), path)
        return real[name](*arguments, **options)

    try:
        for name in CALLS:
            setattr(os, name, partial(wrapped, name))
        yield made
    finally:
        for name in CALLS:
            setattr(os, name, real[name])


REMEDIES = {
    errno.ENOSPC: "free room",
    errno.EDQUOT: "raise the quota",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "write permission",
    errno.EIO: "The disk reports an error",
    errno.ENOLCK: "Make the location writable",
}


@pytest.mark.parametrize("code", REMEDIES, ids=errno.errorcode.get)
def test_a_refused_call_while_appending(tmp_path: Path, code: int) -> None:
    for step in itertools.count(1):
        state = LocalHardState.create_or_open(tmp_path / str(step), pipeline="p")
        error = None
        with failing(step, code) as made:
            try:
                append(state, COMMITS)
            except CheckpointUnwritable as refused:
                error = refused
        if error is None:
            assert len(made) < step
            break
        assert error.errno == code
        for part in (str(state.path), os.strerror(code), REMEDIES[code], "is safe"):
            assert part in str(error)
        assert "start again with the same checkpoint" in str(error)
        assert not list((state.path / "tmp").iterdir())
        there = [state.commits.read(c.computation, c.interval, c.number) for c in COMMITS]
        assert all(found in (None, commit) for found, commit in zip(there, COMMITS, strict=True))
        assert append(state, COMMITS) == [found is None for found in there]
    assert step > 8


def test_a_refused_call_while_an_epoch_is_appended(tmp_path: Path) -> None:
    for step in itertools.count(1):
        state = LocalHardState.create_or_open(tmp_path / str(step), pipeline="p")
        with failing(step, errno.ENOSPC) as made:
            try:
                state.epochs.append(1, b"{}")
                break
            except StoreError:  # it may have been put, and could not be looked for
                pass
        last = state.epochs.last()
        assert state.epochs.read(1) == (b"{}" if last else None)
        assert state.epochs.append(1, b"{}") == (last == 0)
    assert len(made) == step - 1


def test_a_refused_call_while_the_checkpoint_is_made(tmp_path: Path) -> None:
    for step in itertools.count(1):
        root = tmp_path / str(step)
        error = None
        with failing(step, errno.EROFS) as made:
            try:
                LocalHardState.create_or_open(root, pipeline="p")
                break
            except CheckpointUnwritable as refused:
                error = refused
        assert "mounted read-only" in str(error)
        assert append(LocalHardState.create_or_open(root, pipeline="p"), COMMITS)
    assert len(made) == step - 1


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    assert all(append(state, COMMITS))
    assert state.commits.read("count", 2, 1) == COMMITS[2]


def test_an_unreadable_commit_is_no_missing_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    append(state, COMMITS)

    def pread(_fd: int, _length: int, _offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(StoreError, match=r"cannot be read: Input/output error\. Check the disk"):
        state.commits.read("count", 0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission(tmp_path: Path) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    (state.path / "tmp").chmod(0o500)
    with pytest.raises(CheckpointUnwritable, match="write permission"):
        append(state, COMMITS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where we may mount one."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a tmpfs cannot be mounted here")
    yield mount
    lmdb_environments.close_all()
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    state = LocalHardState.create_or_open(small_disk / "c", pipeline="p")

    def fill() -> None:
        for number in itertools.count(1):
            append(state, [Commit("count", 0, number, 1, 1, [(b"Sk", bytes(90_000))])])

    with pytest.raises(CheckpointUnwritable, match="free room") as caught:
        fill()
    assert caught.value.errno == errno.ENOSPC
    kept = len(list((state.path / "commits" / "count").iterdir()))
    assert kept > 5
    assert all(state.commits.exists("count", 0, number) for number in range(1, kept + 1))
    assert not state.commits.exists("count", 0, kept + 1)
    assert not list((state.path / "tmp").iterdir())
    with pytest.raises(CheckpointUnwritable, match="free room"):
        state.epochs.append(1, bytes(200_000))
    next((state.path / "commits" / "count").iterdir()).unlink()  # Room is made.
    assert append(state, [Commit("count", 0, kept + 1, 1, 1, [(b"Sk", bytes(50_000))])])


def test_a_full_disk_under_the_cache(small_disk: Path) -> None:
    cache = LmdbCache(small_disk, "count", 0, "uuid")

    def fill() -> None:
        for number in itertools.count(1):
            cache.apply(Commit("count", 0, number, 1, 1, [(b"S%d" % number, bytes(90_000))]))

    with pytest.raises(StoreError, match="Free room for the cache directory"):
        fill()
    assert cache.wiped == 0
    position = cache.position
    assert position > 5
    with cache.view(at=position) as view:
        assert len(list(view.scan(b"A", b"z"))) == position
