"""A writer of a journal is refused, cut short or left behind; sealers overtake one another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointUnwritable, DamagedStore
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    Group,
    HardState,
    LocalHardState,
    MemoryHardState,
    ObjectBlobs,
    ObjectHardState,
)
from simulation.disk import SimulatedDisk

COMMIT = Commit("count", 0, 1, 1, 1, [(b"Sk", b"v" * 2000)])
LATER = Commit("count", 0, 2, 1, 1, [(b"Sk", b"w")])


class Wrapped:
    """The operating system, one of whose functions is another."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name in ("write", "fsync", "fdatasync", "open", "close"):
            self.calls.append(name)
        return call

    def replace(self, name: str, call: Callable[..., Any]) -> None:
        setattr(self, name, call)


def opened(path: Path) -> tuple[Wrapped, LocalHardState]:
    disk = Wrapped()
    state = LocalHardState.create_or_open(path / "c", pipeline="p", disk=disk)
    assert state.journals.seal(1) is not None
    return disk, state


def refused(code: int) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


REMEDIES = {
    errno.ENOSPC: "free room",
    errno.EDQUOT: "raise the quota",
    errno.EIO: "The disk reports an error",
}


@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize("code", REMEDIES, ids=errno.errorcode.get)
def test_a_refused_append_is_the_last(tmp_path: Path, code: int, call: str) -> None:
    disk, state = opened(tmp_path)
    disk.replace(call, lambda *a: working(*a))
    working: Callable[..., Any] = getattr(os, call)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([COMMIT], b"kept")
    working = refused(code)
    with pytest.raises(CheckpointUnwritable, match=REMEDIES[code]) as caught:
        journal.append([LATER])
    assert caught.value.errno == code
    assert str(journal.name) in str(caught.value)
    working = getattr(os, call)
    with pytest.raises(CheckpointUnwritable, match="an append has failed, so nothing can be"):
        journal.append([LATER])
    journal.close()
    assert state.journals.seal(2) is not None
    # A group that was written and not synced may count: nothing of it has left.
    assert state.commits.numbers("count") == {0: [1] if call == "write" else [1, 2]}


def test_a_write_that_is_interrupted_by_the_program_itself(tmp_path: Path) -> None:
    _, state = opened(tmp_path)
    journal = state.journals.create(1, 1, 0, 1)

    def interrupted(fd: int, data: memoryview) -> int:
        os.write(fd, data[:10])
        raise KeyboardInterrupt

    journal._write = interrupted  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        journal.append([COMMIT])
    journal._write = os.write  # type: ignore[attr-defined]
    with pytest.raises(CheckpointUnwritable, match="an append has failed"):
        journal.append([COMMIT])
    assert state.journals.seal(2) is not None
    assert state.commits.numbers("count") == {}


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    disk.replace("write", lambda fd, data: os.write(fd, bytes(data)[:7]))
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([COMMIT], b"note")
    journal.append([LATER])
    assert state.journals.seal(2) is not None
    assert list(state.journals.groups(journal.name)) == [
        Group([COMMIT], b"note"), Group([LATER], b""),
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_journal_that_cannot_be_made(tmp_path: Path, call: str) -> None:
    disk, state = opened(tmp_path)
    disk.replace(call, refused(errno.ENOSPC))
    with pytest.raises(CheckpointUnwritable, match="free room"):
        state.journals.create(1, 1, 0, 1)


def test_an_append_is_one_write_and_one_sync_of_data(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    made: list[str] = []
    for name in ("write", "fdatasync", "fsync", "open", "link"):
        call = getattr(os, name)
        disk.replace(name, lambda *a, n=name, c=call: (made.append(n), c(*a))[1])
    journal = state.journals.create(1, 1, 0, 1)
    assert made == ["open", "write", "open", "fsync"]  # The name is durable before a group is.
    made.clear()
    journal.append([COMMIT, LATER], b"note")
    assert made == ["write", "fdatasync"]


def test_an_unreadable_journal_is_no_missing_one(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([COMMIT])
    journal.append([LATER])

    def pread(fd: int, length: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().name == str(journal.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)

    disk.replace("pread", pread)
    with pytest.raises(DamagedStore, match=rf"{journal.name}: cannot be read: Input/output"):
        state.journals.seal(2)
    del disk.pread
    assert state.journals.seal(3) is not None
    disk.replace("pread", pread)
    with pytest.raises(DamagedStore, match=rf"{journal.name}: cannot be read: Input/output"):
        state.commits.exists("count", 0, 1)
    del disk.pread
    assert state.commits.read("count", 0, 2) == LATER


def test_a_group_whose_sync_was_refused_survives_a_power_cut_once_it_is_sealed() -> None:
    """The pages of a failed fsync are there to be read, and gone after the next power cut."""
    seen = set()
    for seed in range(20):
        refuse = 0
        disk = SimulatedDisk(
            Random(seed), lambda call, _: refuse if call == "fsync" else 0  # noqa: B023
        )  # fmt: skip
        state = LocalHardState.create_or_open("/c", pipeline="p", disk=disk)
        state.journals.seal(1)
        journal = state.journals.create(1, 1, 0, 1)
        refuse = errno.EIO
        with pytest.raises(CheckpointUnwritable):
            journal.append([LATER])
        refuse = 0
        assert state.journals.seal(2) is not None
        assert state.commits.read("count", 0, 2) == LATER
        disk.cut_power()
        seen.add(disk.stat(f"/c/journals/{journal.name}").st_size)
        assert LocalHardState.open("/c", disk=disk).commits.read("count", 0, 2) == LATER
    assert min(seen) < 60  # Also where not even the header was left.


def kinds(path: Path) -> list[HardState]:
    bucket = ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())
    return [
        LocalHardState.create_or_open(path / "c", pipeline="p"),
        ObjectHardState.create_or_open(bucket, pipeline="p"),
        MemoryHardState(),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_sealer_that_slept_over_later_sessions_gets_none(tmp_path: Path, kind: int) -> None:
    """It has looked that its number is free; then others take it, go on, and remove it."""
    state = kinds(tmp_path)[kind]
    journals = state.journals
    blobs = state.blobs
    put = blobs.put_if_absent

    def asleep(name: str, data: bytes) -> bool:
        del blobs.put_if_absent
        for session in (1, 2, 3):
            assert journals.seal(session) is not None
            journals.create(session, 1, 0, 1).append([], b"%d" % session)
        return put(name, data)

    blobs.put_if_absent = asleep  # type: ignore[method-assign]
    assert journals.seal(1) is None
    assert (journals.last(), journals.superseded(1), journals.superseded(3)) == (3, True, False)
    sealing = journals.seal(4)
    assert sealing is not None
    assert sorted(sealing.notes.values()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_sealer_that_is_overtaken_while_it_looks_gets_none(tmp_path: Path, kind: int) -> None:
    state = kinds(tmp_path)[kind]
    journals = state.journals
    journals.seal(1)
    journals.create(1, 1, 0, 1).append([COMMIT])
    files = journals._files  # type: ignore[attr-defined]
    sizes = files.sizes

    def overtaken() -> Any:
        if files.sizes is overtaken:
            del files.sizes
            assert journals.seal(3) is not None
            journals.create(3, 1, 0, 1).append([LATER])
        return sizes()

    files.sizes = overtaken
    assert journals.seal(2) is None
    assert (journals.last(), journals.superseded(3)) == (3, False)
    assert [name.session for name in journals.names()] == [1]
    assert journals.seal(4) is not None
    assert state.commits.numbers("count") == {0: [1, 2]}


def test_a_group_that_is_missing_among_objects(tmp_path: Path) -> None:
    bucket = ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    state.journals.seal(1)
    journal = state.journals.create(1, 1, 0, 1)
    for number in range(1, 4):
        journal.append([], b"%d" % number)
    bucket.remove([f"journals/{journal.name}/000000000002"])
    with pytest.raises(DamagedStore, match="group 2 of 3 has gone"):
        state.journals.seal(2)


def test_a_group_that_arrives_after_its_journal_was_removed(tmp_path: Path) -> None:
    """A put whose client has given up may take effect much later."""
    bucket = ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    state.journals.seal(1)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([COMMIT])
    state.journals.seal(2)
    state.journals.remove([journal.name])
    journal.append([LATER])
    assert state.journals.seal(3) is not None
    assert state.commits.numbers("count") == {}
    assert bucket.names("journals") == ["journals/00000003.begun", "journals/00000003.seal"]
