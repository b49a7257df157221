"""What all blobs promise, on each kind of storage."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError
from millrace.store import (
    Blobs,
    BucketOptions,
    BucketUrl,
    LocalBlobs,
    MemoryBlobs,
    ObjectBlobs,
)
from millrace.store.blobs import piece_name
from simulation.disk import SimulatedDisk

ROOT = Path("/checkpoint")


@pytest.fixture(params=["directory", "object store", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """No blobs yet, on each kind of storage."""
    if request.param == "directory":
        return LocalBlobs(tmp_path)
    if request.param == "memory":
        return MemoryBlobs()
    url = BucketUrl.parse("s3://bucket/check point")
    return ObjectBlobs(url, BucketOptions(), store=MemoryStore())


def test_what_is_put_is_there(blobs: Blobs) -> None:
    assert blobs.put_if_absent("epochs/1", b"one")
    assert blobs.read("epochs/1") == b"one"
    assert blobs.exists("epochs/1")
    assert b"".join(blobs.stream("epochs/1") or ()) == b"one"


def test_what_is_not_there_is_none(blobs: Blobs) -> None:
    blobs.put_if_absent("epochs/1", b"one")
    for name in ("epochs/2", "epochs/11", "other/1"):
        assert blobs.read(name) is None
        assert blobs.stream(name) is None
        assert not blobs.exists(name)


def test_a_name_is_taken_once(blobs: Blobs) -> None:
    assert blobs.put_if_absent("epochs/1", b"first")
    assert not blobs.put_if_absent("epochs/1", b"second")
    assert not blobs.put_pieces("epochs/1", iter([b"third"]))
    assert blobs.read("epochs/1") == b"first"


def test_a_name_that_was_removed_is_free(blobs: Blobs) -> None:
    blobs.put_if_absent("epochs/1", b"first")
    blobs.remove(["epochs/1"])
    assert not blobs.exists("epochs/1")
    assert blobs.put_if_absent("epochs/1", b"second")
    assert blobs.read("epochs/1") == b"second"


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00" * 3_000_000])
def test_any_bytes_are_read_back(blobs: Blobs, data: bytes) -> None:
    assert blobs.put_if_absent("a/b/whole", data)
    assert blobs.put_pieces(
        "a/b/pieces", (data[n : n + 100_000] for n in range(0, len(data), 100_000))
    )
    for name in ("a/b/whole", "a/b/pieces"):
        assert blobs.read(name) == data
        assert b"".join(blobs.stream(name) or ()) == data


def test_pieces_that_fail_leave_nothing(blobs: Blobs) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"beginning"
        raise KeyError("no more")

    with pytest.raises(KeyError):
        blobs.put_pieces("snapshots/count/1", pieces())
    assert not blobs.exists("snapshots/count/1")
    assert blobs.names("snapshots/count") == []
    assert blobs.put_pieces("snapshots/count/1", [b"all of it"])


def test_pieces_are_not_taken_where_there_is_a_blob(blobs: Blobs) -> None:
    blobs.put_if_absent("snapshots/count/1", b"first")
    pieces = iter([b"second"])
    assert not blobs.put_pieces("snapshots/count/1", pieces)
    assert next(pieces) == b"second"


def test_names_of_a_folder_are_whole_and_sorted(blobs: Blobs) -> None:
    for name in ("epochs/2", "epochs/10", "epochs/1", "epochs-too/3", "mailbox/4"):
        blobs.put_if_absent(name, b"")
    assert blobs.names("epochs") == ["epochs/1", "epochs/10", "epochs/2"]
    assert blobs.names("nothing") == []


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_removed_is_gone_and_what_is_not_there_is_passed_over(
    blobs: Blobs, durable: bool
) -> None:
    for number in range(4):
        blobs.put_if_absent(f"epochs/{number}", b"")
    blobs.remove((f"epochs/{number}" for number in (3, 7, 1)), durable=durable)
    blobs.remove([], durable=durable)
    assert blobs.names("epochs") == ["epochs/0", "epochs/2"]


def test_of_many_threads_one_puts(blobs: Blobs) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def put(mine: int) -> None:
        start.wait()
        if blobs.put_if_absent("epochs/1", b"%d" % mine):
            won.append(mine)

    threads = [threading.Thread(target=put, args=(mine,)) for mine in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert blobs.read("epochs/1") == b"%d" % won[0]


def test_only_an_object_store_is_far(blobs: Blobs) -> None:
    assert blobs.far == isinstance(blobs, ObjectBlobs)


# -- what is appended ------------------------------------------------------------------------------


def appended(blobs: Blobs, name: str) -> bytes:
    """Return a blob that was appended to, from its pieces."""
    folder = name.rpartition("/")[0]
    found, offset = b"", 0
    while (piece := piece_name(name, offset)) in blobs.sizes(folder):
        found += blobs.read(piece) or b""
        if len(found) == offset:
            break
        offset = len(found)
    return found


def test_what_is_appended_is_there_in_order(blobs: Blobs) -> None:
    appender = blobs.appender("incarnations/a")
    assert blobs.names("incarnations") == []  # nothing is there before the first call
    for data in (b"one", b"two", b"x" * 100_000):
        assert appender.append(data)
    assert appended(blobs, "incarnations/a") == b"onetwo" + b"x" * 100_000
    assert appender.append(b"hint", durable=False)
    appender.close()
    appender.close()
    assert appended(blobs, "incarnations/a")[-4:] == b"hint"


def test_one_writer_appends(blobs: Blobs) -> None:
    first, second = blobs.appender("incarnations/a"), blobs.appender("incarnations/a")
    assert first.append(b"first")
    assert not second.append(b"second")
    assert first.append(b", more")
    assert appended(blobs, "incarnations/a") == b"first, more"


def test_pieces_are_where_storage_cannot_append(blobs: Blobs) -> None:
    appender = blobs.appender("incarnations/a")
    appender.append(b"one")
    appender.append(b"two")
    names = ["incarnations/a", "incarnations/a.000000000003"]
    assert blobs.names("incarnations") == (names[:1] if isinstance(blobs, LocalBlobs) else names)


def test_what_was_appended_survives_a_power_cut_but_for_what_need_not() -> None:
    def append(blobs: LocalBlobs) -> None:
        appender = blobs.appender("incarnations/a")
        appender.append(b"one")
        appender.append(b"two")
        appender.append(b"hint", durable=False)

    left = [blobs.read("incarnations/a") or b"" for blobs in after_cuts(append)]
    assert all(data[:6] == b"onetwo" for data in left)
    assert {data[6:] for data in left} > {b"hint"}


# -- directories -----------------------------------------------------------------------------------


def test_a_directory_that_has_gone_is_told(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "checkpoint", folders=["tmp", "epochs"])
    for folder in ("tmp", "epochs"):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
    assert blobs.put_if_absent("epochs/1", b"")
    shutil.rmtree(tmp_path / "checkpoint")
    for call in (
        lambda: blobs.put_if_absent("epochs/2", b""),
        lambda: blobs.put_pieces("epochs/2", [b""]),
        lambda: blobs.names("epochs"),
    ):
        with pytest.raises(DamagedStore, match="Was it removed under a running pipeline"):
            call()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EMFILE, "raise the limit, see `ulimit -n`"),
        (errno.ENFILE, "raise the limit, see `ulimit -n`"),
        (errno.ESTALE, "mount its file system again"),
    ],
)
def test_what_is_not_up_to_disk_or_permissions_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.put_if_absent("epochs/1", b"")

    def refused(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match=remedy):
        blobs.read("epochs/1")
    with pytest.raises(CheckpointUnwritable, match=remedy):
        blobs.put_if_absent("epochs/2", b"")


def test_what_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.put_if_absent("epochs/1", b"")

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    for call in (blobs.read, blobs.stream, blobs.exists):
        with pytest.raises(StoreError, match="epochs/1: cannot be read: Permission denied"):
            call("epochs/1")


def test_a_name_that_cannot_be_made_durable_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.put_if_absent("epochs/1", b"")

    def refused(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(CheckpointUnwritable, match="The disk reports an error"):
        blobs.read("epochs/1")


def after_cuts(do: Callable[[LocalBlobs], object]) -> list[LocalBlobs]:
    """Return what is left of blobs in a directory after one power cut, in many worlds."""
    left = []
    for seed in range(60):
        disk = SimulatedDisk(Random(seed), lambda _call, _path: 0)
        disk.mkdir(ROOT)
        disk.fsync(disk.open("/", os.O_RDONLY | os.O_DIRECTORY))
        do(LocalBlobs(ROOT, disk))
        disk.cut_power()
        left.append(LocalBlobs(ROOT, disk))
    return left


def test_what_is_put_survives_a_power_cut_with_its_folders() -> None:
    def put(blobs: LocalBlobs) -> None:
        blobs.put_if_absent("mailbox/1", b"one")
        blobs.put_pieces("snapshots/count/1", [b"t", b"wo"])

    for blobs in after_cuts(put):
        assert blobs.read("mailbox/1") == b"one"
        assert blobs.read("snapshots/count/1") == b"two"


def test_a_folder_that_another_process_made_is_made_durable() -> None:
    def put(blobs: LocalBlobs) -> None:
        blobs._disk.mkdir(ROOT / "tmp")
        blobs._disk.mkdir(ROOT / "mailbox")
        blobs.put_if_absent("mailbox/1", b"one")

    assert all(blobs.read("mailbox/1") == b"one" for blobs in after_cuts(put))


def linked(blobs: LocalBlobs) -> None:
    """Put a blob, and die before its name is durable."""
    blobs.put_if_absent("epochs/1", b"one")
    disk = blobs._disk
    fd = disk.open(f"{ROOT}/epochs/new", os.O_CREAT | os.O_WRONLY)
    disk.write(fd, memoryview(b"x"))
    disk.fsync(fd)
    disk.link(f"{ROOT}/epochs/new", f"{ROOT}/epochs/2")


def test_a_name_that_was_read_survives_a_power_cut() -> None:
    def read(blobs: LocalBlobs) -> None:
        linked(blobs)
        assert blobs.read("epochs/2") == b"x"

    assert all(blobs.read("epochs/2") == b"x" for blobs in after_cuts(read))


def test_a_name_that_was_found_taken_survives_a_power_cut() -> None:
    def put(blobs: LocalBlobs) -> None:
        linked(blobs)
        assert not blobs.put_if_absent("epochs/2", b"mine")

    assert all(blobs.read("epochs/2") == b"x" for blobs in after_cuts(put))


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_removed_for_good_does_not_come_back(durable: bool) -> None:
    def remove(blobs: LocalBlobs) -> None:
        blobs.put_if_absent("incarnations/1.begun", b"")
        blobs.remove(["incarnations/1.begun"], durable=durable)

    there = [blobs.exists("incarnations/1.begun") for blobs in after_cuts(remove)]
    assert any(there) is not durable
