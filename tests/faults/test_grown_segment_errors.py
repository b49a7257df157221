"""A writer of a grown segment is refused, cut short or left behind; sealers overtake others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.cli.checkpoint import verify_checkpoint
from millrace.model.errors import CheckpointUnwritable, DamagedStore
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    CommitGroup,
    HardState,
    LocalHardState,
    MemoryHardState,
    ObjectBlobs,
    ObjectHardState,
    SegmentName,
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
    assert state.incarnations.seal(1) is not None
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
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([COMMIT], b"kept")
    working = refused(code)
    with pytest.raises(CheckpointUnwritable, match=REMEDIES[code]) as caught:
        segment.append([LATER])
    assert caught.value.errno == code
    assert str(segment.name) in str(caught.value)
    working = getattr(os, call)
    with pytest.raises(CheckpointUnwritable, match="an append has failed, so nothing can be"):
        segment.append([LATER])
    segment.close()
    assert state.incarnations.seal(2) is not None
    # A group that was written and not synced may count: nothing of it has left.
    assert state.commits.numbers("count") == {0: [1] if call == "write" else [1, 2]}


def test_a_write_that_is_interrupted_by_the_program_itself(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    segment = state.incarnations.grow(1, 1, 0, 1)

    def interrupted(fd: int, data: memoryview) -> int:
        os.write(fd, data[:10])
        raise KeyboardInterrupt

    disk.replace("write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        segment.append([COMMIT])
    disk.replace("write", os.write)
    with pytest.raises(CheckpointUnwritable, match="an append has failed"):
        segment.append([COMMIT])
    assert state.incarnations.seal(2) is not None
    assert state.commits.numbers("count") == {}


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    disk.replace("write", lambda fd, data: os.write(fd, bytes(data)[:7]))
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([COMMIT], b"note")
    segment.append([LATER])
    assert state.incarnations.seal(2) is not None
    assert list(state.incarnations.groups(segment.name)) == [
        CommitGroup([COMMIT], b"note"), CommitGroup([LATER], b""),
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["open", "write", "fsync", "fdatasync"])
def test_a_segment_that_cannot_be_made(tmp_path: Path, call: str) -> None:
    disk, state = opened(tmp_path)
    disk.replace(call, refused(errno.ENOSPC))
    with pytest.raises(CheckpointUnwritable, match="free room"):
        state.incarnations.grow(1, 1, 0, 1).append([COMMIT])


def test_an_append_is_one_write_and_one_sync_of_data(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    made: list[str] = []
    for name in ("write", "fdatasync", "fsync", "open", "link"):
        call = getattr(os, name)
        disk.replace(name, lambda *a, n=name, c=call: (made.append(n), c(*a))[1])
    segment = state.incarnations.grow(1, 1, 0, 1)
    assert made == []
    segment.append([COMMIT], b"note")
    # The name is durable before a group is.
    assert made == ["open", "open", "fsync", "write", "fdatasync"]
    made.clear()
    segment.append([LATER], b"note")
    assert made == ["write", "fdatasync"]
    made.clear()
    segment.finish()
    assert made == ["write"]  # The index is a hint.


@pytest.mark.parametrize("left", [0, 1, 30])
def test_an_index_that_was_lost_or_torn_is_made_up_for(tmp_path: Path, left: int) -> None:
    _, state = opened(tmp_path)
    path = tmp_path / "c" / "incarnations" / str(SegmentName(1, 1, 0, 1))
    for epoch, number in ((1, 1), (2, 3)):
        segment = state.incarnations.grow(1, 1, 0, epoch)
        for n in (number, number + 1):
            segment.append([Commit("count", 0, n, 1, 1, [])], b"%d" % n)
        size = (path.parent / str(segment.name)).stat().st_size
        segment.finish()
        with (path.parent / str(segment.name)).open("r+b") as file:
            file.truncate(size + left)
    seal = state.incarnations.seal(2)
    assert seal is not None
    assert (seal.lengths[path.name], [*seal.notes.values()]) == (size, [b"4"])
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4]}
    assert verify_checkpoint(str(tmp_path / "c")).segments == 2


def test_an_index_that_cannot_be_written_ends_no_task(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([COMMIT])
    disk.replace("write", refused(errno.ENOSPC))
    segment.finish()
    disk.replace("write", os.write)
    assert state.incarnations.seal(2) is not None
    assert state.commits.read("count", 0, 1) == COMMIT


def test_an_unreadable_segment_is_no_missing_one(tmp_path: Path) -> None:
    disk, state = opened(tmp_path)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([COMMIT])
    segment.append([LATER])

    def pread(fd: int, length: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().name == str(segment.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)

    disk.replace("pread", pread)
    with pytest.raises(DamagedStore, match=rf"{segment.name}: cannot be read: Input/output"):
        state.incarnations.seal(2)
    del disk.pread
    assert state.incarnations.seal(3) is not None
    disk.replace("pread", pread)
    with pytest.raises(DamagedStore, match=rf"{segment.name}: cannot be read: Input/output"):
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
        state.incarnations.seal(1)
        segment = state.incarnations.grow(1, 1, 0, 1)
        refuse = errno.EIO
        with pytest.raises(CheckpointUnwritable):
            segment.append([LATER])
        refuse = 0
        assert state.incarnations.seal(2) is not None
        assert state.commits.read("count", 0, 2) == LATER
        disk.cut_power()
        seen.add(disk.stat(f"/c/incarnations/{segment.name}").st_size)
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
def test_a_sealer_that_slept_over_later_incarnations_gets_none(tmp_path: Path, kind: int) -> None:
    """It has looked that its number is free; then others take it, go on, and remove it."""
    state = kinds(tmp_path)[kind]
    incarnations = state.incarnations
    blobs = state.blobs
    put = blobs.put_if_absent

    def asleep(name: str, data: bytes) -> bool:
        del blobs.put_if_absent
        for incarnation in (1, 2, 3):
            assert incarnations.seal(incarnation) is not None
            incarnations.grow(incarnation, 1, 0, 1).append([], b"%d" % incarnation)
        return put(name, data)

    blobs.put_if_absent = asleep  # type: ignore[method-assign]
    assert incarnations.seal(1) is None
    assert (incarnations.last(), incarnations.superseded(1), incarnations.superseded(3)) == (
        3,
        True,
        False,
    )
    sealing = incarnations.seal(4)
    assert sealing is not None
    assert sorted(sealing.notes.values()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_sealer_that_is_overtaken_while_it_looks_gets_none(tmp_path: Path, kind: int) -> None:
    state = kinds(tmp_path)[kind]
    incarnations = state.incarnations
    incarnations.seal(1)
    incarnations.grow(1, 1, 0, 1).append([COMMIT])
    sizes = incarnations._sizes

    def overtaken(listed: Any = None) -> Any:
        if incarnations._sizes is overtaken:
            del incarnations._sizes
            assert incarnations.seal(3) is not None
            incarnations.grow(3, 1, 0, 1).append([LATER])
        return sizes(listed)

    incarnations._sizes = overtaken  # type: ignore[method-assign]
    assert incarnations.seal(2) is None
    assert (incarnations.last(), incarnations.superseded(3)) == (3, False)
    assert [name.incarnation for name in incarnations.names()] == [1]
    assert incarnations.seal(4) is not None
    assert state.commits.numbers("count") == {0: [1, 2]}


def test_a_group_that_is_missing_among_objects(tmp_path: Path) -> None:
    bucket = ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    state.incarnations.seal(1)
    segment = state.incarnations.grow(1, 1, 0, 1)
    for number in range(1, 4):
        segment.append([], b"%d" % number)
    bucket.remove([bucket.names("incarnations")[1]])
    with pytest.raises(DamagedStore, match=r"what was appended at .* has gone, and there is more"):
        state.incarnations.seal(2)


def test_a_group_that_arrives_after_its_segment_was_removed(tmp_path: Path) -> None:
    """A put whose client has given up may take effect much later."""
    bucket = ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    state.incarnations.seal(1)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment.append([COMMIT])
    state.incarnations.seal(2)
    state.incarnations.remove([segment.name])
    segment.append([LATER])
    assert state.incarnations.seal(3) is not None
    assert state.commits.numbers("count") == {}
    assert bucket.names("incarnations") == [
        "incarnations/00000003.begun",
        "incarnations/00000003.seal",
    ]
