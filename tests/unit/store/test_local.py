from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import append

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    DamagedStore,
    StoreError,
)
from millrace.store import Commit, LocalHardState
from millrace.store.checkpoint_format import file_name

Make = Callable[..., Commit]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_layout(root: Path, commit: Make) -> None:
    state = LocalHardState.create_or_open(root, pipeline="zeitgeist")
    state.commits.of_task("count", 41, 3).put([commit(1), commit(18, interval=255)])
    state.epochs.append(1, b"{}")
    assert listing(root) == [
        "FORMAT",
        "commits",
        "commits/count",
        "commits/count/000000000029-00000003",
        "epochs",
        "epochs/0000000001.json",
        "snapshots",
        "tmp",
    ]
    form = json.loads((root / "FORMAT").read_text())
    assert form == {
        "format": 1,
        "uuid": state.uuid,
        "pipeline": "zeitgeist",
        "created_by": form["created_by"],
        "xxh3_64": form["xxh3_64"],
    }


def test_opening_again_gives_the_same_state(root: Path, commit: Make) -> None:
    first = LocalHardState.create_or_open(root, pipeline="p")
    append(first, [commit(1)])
    again = LocalHardState.create_or_open(root, pipeline="p")
    assert again.uuid == first.uuid == LocalHardState.open(root).uuid
    assert again.commits.read("count", 0, 1) == commit(1)


def test_parents_are_made(tmp_path: Path) -> None:
    LocalHardState.create_or_open(tmp_path / "a" / "b" / "c", pipeline="p")
    assert (tmp_path / "a" / "b" / "c" / "FORMAT").exists()


def test_a_relative_path_is_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = LocalHardState.create_or_open("ckpt", pipeline="p")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(state)).path == tmp_path / "ckpt"


def refused(root: Path, error: type[Exception], match: str, pipeline: str = "p") -> None:
    """Assert that a driver is refused, and that nothing was written before that."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    names = listing(root)
    with pytest.raises(error, match=match):
        LocalHardState.create_or_open(root, pipeline=pipeline)
    assert listing(root) == names
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_checkpoint_of_another_pipeline_is_refused(root: Path) -> None:
    LocalHardState.create_or_open(root, pipeline="p")
    (root / "tmp" / "left.tmp").touch()
    refused(root, CheckpointMismatch, "belongs to pipeline 'p', this pipeline is 'q'", "q")


@pytest.mark.parametrize("name", ["file", ".hidden"])
def test_a_directory_with_something_in_it_is_refused(root: Path, name: str) -> None:
    root.mkdir()
    (root / name).write_text("mine")
    refused(root, CheckpointMismatch, f"not empty .it holds '{name}'. and has no FORMAT")


def test_a_foreign_tmp_is_refused(root: Path) -> None:
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "thesis.doc").touch()
    refused(root, CheckpointMismatch, "not empty")


def test_a_file_named_tmp_is_refused(root: Path) -> None:
    root.mkdir()
    (root / "tmp").touch()
    refused(root, CheckpointMismatch, "not empty")


def test_a_checkpoint_that_lost_format_is_refused(root: Path, commit: Make) -> None:
    append(LocalHardState.create_or_open(root, pipeline="p"), [commit(1)])
    (root / "FORMAT").unlink()
    refused(root, CheckpointMismatch, "restore FORMAT")


def test_an_empty_directory_is_taken(root: Path) -> None:
    root.mkdir()
    LocalHardState.create_or_open(root, pipeline="p")


def test_what_a_crash_before_format_left_is_taken(root: Path) -> None:
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "1-2.tmp").write_text("{")
    LocalHardState.create_or_open(root, pipeline="p")
    assert listing(root) == ["FORMAT", "commits", "epochs", "snapshots", "tmp"]


def test_a_newer_format_is_refused(root: Path) -> None:
    LocalHardState.create_or_open(root, pipeline="p")
    newer = {"format": 2, "created_by": "7.0", "surprise": []}
    (root / "FORMAT").write_text(json.dumps(newer))
    refused(root, CheckpointMismatch, "format 2, written by Millrace 7.0; this version reads")
    with pytest.raises(CheckpointMismatch):
        LocalHardState.open(root)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"format": 1}', b'{"format": "1"}',
     b'{"format": 0, "uuid": "u", "pipeline": "p"}', b'{"format": 1, "uuid": 1, "pipeline": "p"}'],
)  # fmt: skip
def test_a_damaged_format_is_refused(root: Path, data: bytes) -> None:
    LocalHardState.create_or_open(root, pipeline="p")
    (root / "FORMAT").write_bytes(data)
    refused(root, DamagedStore, "expected JSON with format, uuid and pipeline")


def test_every_damaged_bit_of_format_is_refused(root: Path) -> None:
    written = LocalHardState.create_or_open(root, pipeline="p").format
    path = root / "FORMAT"
    whole = path.read_bytes()
    for offset in range(len(whole)):
        for bit in range(8):
            copy = bytearray(whole)
            copy[offset] ^= 1 << bit
            path.write_bytes(copy)
            with contextlib.suppress(DamagedStore, CheckpointMismatch):
                assert LocalHardState.open(root).format == written, (
                    "at most white space was altered"
                )


def test_a_file_in_the_place_of_the_directory(root: Path) -> None:
    root.write_text("mine")
    with pytest.raises(CheckpointUnwritable, match="it is a file"):
        LocalHardState.create_or_open(root, pipeline="p")
    assert root.read_text() == "mine"


def test_a_file_in_the_place_of_a_parent(root: Path) -> None:
    root.write_text("mine")
    with pytest.raises(CheckpointUnwritable, match=r"Choose another|choose another"):
        LocalHardState.create_or_open(root / "deeper", pipeline="p")


def test_a_driver_removes_leftovers_and_a_worker_does_not(root: Path) -> None:
    LocalHardState.create_or_open(root, pipeline="p")
    (root / "tmp" / "1-2.tmp").touch()
    LocalHardState.open(root)
    assert listing(root / "tmp") == ["1-2.tmp"]
    LocalHardState.create_or_open(root, pipeline="p")
    assert listing(root / "tmp") == []


def test_what_another_driver_removed_while_it_was_written_is_no_damage(root: Path) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")

    def pieces() -> Iterator[bytes]:
        yield b"one"
        LocalHardState.create_or_open(root, pipeline="p")  # another driver starts
        yield b"two"

    with pytest.raises(StoreError, match="The newer run goes on") as found:
        state.snapshots.put("count", 0, 1, pieces())
    assert type(found.value) is StoreError
    assert state.snapshots.put("count", 0, 1, [b"one", b"two"])


def test_a_worker_does_not_make_a_checkpoint(root: Path) -> None:
    with pytest.raises(DamagedStore, match="no FORMAT file on host"):
        LocalHardState.open(root)
    assert not root.exists()


def test_a_worker_checks_the_uuid(root: Path) -> None:
    pickled = pickle.dumps(LocalHardState.create_or_open(root, pipeline="p"))
    shutil.rmtree(root)
    with pytest.raises(DamagedStore, match="hosts of the cluster do not share"):
        pickle.loads(pickled)
    LocalHardState.create_or_open(root, pipeline="p")
    with pytest.raises(CheckpointMismatch, match="the run was started with"):
        pickle.loads(pickled)


def test_a_checkpoint_removed_under_a_run(root: Path, commit: Make) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")
    append(state, [commit(1)])
    shutil.rmtree(root)
    with pytest.raises(DamagedStore, match="Was it removed under a running pipeline"):
        append(state, [commit(2)])
    with pytest.raises(DamagedStore):
        state.epochs.append(1, b"{}")
    with pytest.raises(DamagedStore):
        LocalHardState.open(root)


def test_a_new_driver_may_empty_tmp_under_a_task(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")
    link = os.link
    calls: list[Path] = []

    def emptied(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:  # After the first of the two links.
            LocalHardState.create_or_open(root, pipeline="p")
        link(source, target)

    monkeypatch.setattr(os, "link", emptied)
    assert append(state, [commit(1), commit(2)]) == [True, True]
    assert state.commits.read("count", 0, 2) == commit(2)
    assert listing(root / "tmp") == []


def test_many_new_drivers_may_empty_tmp_one_after_another(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six drivers that supersede each other took what one of them was writing three times."""
    state = LocalHardState.create_or_open(root, pipeline="p")
    link = os.link
    calls: list[Path] = []

    def emptied(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) <= 7:
            LocalHardState.create_or_open(root, pipeline="p")
        link(source, target)

    monkeypatch.setattr(os, "link", emptied)
    assert append(state, [commit(1)]) == [True]
    assert len(calls) == 8
    assert listing(root / "tmp") == []


def test_a_link_whose_reply_was_lost_is_ours(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a request whose reply it lost, and gets EEXIST for its own link."""
    state = LocalHardState.create_or_open(root, pipeline="p")
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert append(state, [commit(1)]) == [True]
    monkeypatch.undo()
    assert append(state, [commit(1)]) == [False]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), source, None, target)

    monkeypatch.setattr(os, "link", none)
    with pytest.raises(
        CheckpointUnwritable, match=r"has no hard links.*put the checkpoint on ext4"
    ):
        LocalHardState.create_or_open(root, pipeline="p")


def test_a_file_system_that_cannot_sync_directories_is_taken_at_its_word(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refused(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refused)
    state = LocalHardState.create_or_open(root, pipeline="p")
    assert append(state, [commit(1)]) == [True]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of whatever is fsync'd."""
    names: list[str] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    return names


def test_a_loser_makes_the_winner_durable(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")
    append(state, [commit(1)])
    names = synced(monkeypatch)
    assert append(state, [commit(1)]) == [False]
    assert names[-1] == "count"


def test_what_a_task_finds_of_its_own_is_made_durable_before_it_is_used(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")
    state.commits.of_task("count", 1, 0).put([commit(1), commit(1, interval=1)])
    names = synced(monkeypatch)
    mine = state.commits.of_task("count", 1, 0)
    assert [mine.read(interval, 1) for interval in (0, 1)] == [commit(1), commit(1, interval=1)]
    assert names == ["count"]
    assert not state.commits.of_task("count", 2, 0).over
    assert names == ["count"]


def test_what_a_task_commits_costs_two_fsyncs(
    root: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalHardState.create_or_open(root, pipeline="p")
    append(state, [commit(1)])
    names = synced(monkeypatch)
    commits = [commit(2, interval=interval) for interval in range(2_000)]
    assert state.commits.of_task("count", 2, 0).put(commits)
    assert len(names) == 2


@given(st.lists(st.text(), unique=True, max_size=20))
def test_different_computations_have_different_file_names(names: list[str]) -> None:
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    for name in files:
        assert 0 < len(name.encode()) <= 120
        assert name not in (".", "..")
        assert "/" not in name
        assert "\0" not in name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/../b", "\0", "\ud800", "x" * 500, "é" * 200, "%41", "A", "%"]
)
def test_any_computation_name_can_be_committed_under(root: Path, name: str) -> None:
    if name == "\ud800":  # No UTF-8, so msgpack has no such string; the file name has.
        assert file_name(name) == "%ED%A0%80"
        return
    state = LocalHardState.create_or_open(root, pipeline="p")
    commit = Commit(name, 0, 1, 1, 1, [])
    assert append(state, [commit]) == [True]
    assert state.commits.read(name, 0, 1) == commit


def test_names_differing_only_in_case_are_never_mixed(root: Path) -> None:
    """As on a file system that ignores case, by giving both the same directory."""
    state = LocalHardState.create_or_open(root, pipeline="p")
    append(state, [Commit("Count", 0, 1, 1, 1, [])])
    (root / "commits" / "count").symlink_to("Count")
    with pytest.raises(DamagedStore, match="differ only in case"):
        state.commits.read("count", 0, 1)
