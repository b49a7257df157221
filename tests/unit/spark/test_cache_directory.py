"""Where a worker keeps its caches, and how many."""

import os
import pickle
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.start import check_cache_limit
from millrace.spark.worker import Blueprint, cache_directory
from millrace.store import (
    Commit,
    LmdbCaches,
    LocalHardState,
    SnapshotWriter,
    cache_directories,
    lmdb_environments,
)


def test_by_default_it_is_in_the_workers_own_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Path(cache_directory(""))
    assert found == tmp_path / f"millrace-{os.geteuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    found.chmod(0o777)
    assert cache_directory("") == str(found)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


@pytest.mark.parametrize("stands", ["file", "link"])
def test_what_stands_in_its_place_is_refused(monkeypatch, tmp_path, stands):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place, target = tmp_path / f"millrace-{os.geteuid()}", tmp_path / "target"
    target.mkdir()
    place.symlink_to(target) if stands == "link" else place.write_text("mine")
    with pytest.raises(PipelineError, match=r"caches cannot be in .*start\(cache="):
        cache_directory("")
    assert list(target.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_directory_of_another_user_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"millrace-{os.geteuid()}"
    place.mkdir()
    os.chown(place, 12345, 12345)
    with pytest.raises(PipelineError, match="user 12345 owns it, and this process runs as user 0"):
        cache_directory("")


@pytest.mark.parametrize("name", ["CHECKPOINT", "IN-USE"])
def test_no_file_of_a_cache_is_written_through_a_link(tmp_path, name):
    checkpoint, caches, target = tmp_path / "ckpt", tmp_path / "caches", tmp_path / "target"
    state = LocalHardState.create_or_open(checkpoint, pipeline="p")
    target.write_text("mine")
    home = caches / state.uuid
    home.mkdir(parents=True)
    (home / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        cache_directories.enter(caches, state.uuid, checkpoint)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("stranger", ["owner", "link"])
def test_caches_of_a_checkpoint_are_not_put_where_a_stranger_wants_them(tmp_path, stranger):
    state = LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p")
    home, target = tmp_path / "caches" / state.uuid, tmp_path / "target"
    home.parent.mkdir(), target.mkdir()
    if stranger == "link":
        home.symlink_to(target)
    elif os.geteuid():
        pytest.skip("only root can be two users")
    else:
        home.mkdir()
        os.chown(home, 12345, 12345)
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Kept)
    made = Blueprint("", pickle.dumps(p.build()), state, str(home.parent), 1, (), {})
    with pytest.raises(PipelineError, match="caches cannot be in"):
        made.built()
    assert list(target.iterdir()) == []


def test_variables_are_the_workers(monkeypatch):
    monkeypatch.setenv("LOCAL_DISK", "/mnt/nvme0")
    assert cache_directory("$LOCAL_DISK/caches") == "/mnt/nvme0/caches"
    assert cache_directory("${LOCAL_DISK}/caches") == "/mnt/nvme0/caches"
    assert cache_directory("/mnt/price$/caches") == "/mnt/price$/caches"


def test_a_variable_that_is_not_set_is_refused(monkeypatch):
    monkeypatch.delenv("LOCAL_DISK", raising=False)
    with pytest.raises(PipelineError, match=r"cache='\$LOCAL_DISK/x': on host .*executorEnv"):
        cache_directory("$LOCAL_DISK/x")


class Kept(mr.Computation):
    inputs = {"in": mr.by(str)}

    def process_record(self, record: mr.Record) -> None: ...


def test_a_process_removes_the_caches_of_what_its_pipeline_has_dropped(tmp_path: Path) -> None:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Kept)
    p.remove("Gone")
    state = LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p")
    caches = LmdbCaches(tmp_path / "cache", state.uuid)
    for name in ("Gone", "Kept"):
        caches.open(name, 0).apply(Commit(name, 0, 1, 1, 1, [(b"Sk", b"1")]))
    made = Blueprint("", pickle.dumps(p.build()), state, str(tmp_path / "cache"), 1, (), {})
    made.built()
    there = {path.parent.parent.name for path in (tmp_path / "cache").rglob("data.mdb")}
    assert there == {"Kept"}
    lmdb_environments.close_all()


def test_a_process_evicts_what_is_over_the_limit_of_its_run(tmp_path: Path) -> None:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Kept)
    state = LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p")
    cache = LmdbCaches(tmp_path / "cache", state.uuid).open("Kept", 0)
    blueprint = Blueprint("", pickle.dumps(p.build()), state, str(tmp_path / "cache"), 1, (), {})
    for limit, kept in ((None, 1), (1 << 30, 1), (0, 0)):
        cache.apply(Commit("Kept", 0, 1, 1, 1, [(b"Sk", b"1")]))
        made = replace(blueprint, cache_limit=limit)
        snapshots = made.built().snapshots
        assert isinstance(snapshots, SnapshotWriter)
        snapshots.offer("Kept", [0])
        assert snapshots.wait(30)
        assert len(list((tmp_path / "cache").rglob("data.mdb"))) == kept
    lmdb_environments.close_all()


@pytest.mark.parametrize("limit", [-1, True, "10 GB", 1.5])
def test_a_limit_is_a_number_of_bytes(limit: object) -> None:
    with pytest.raises(PipelineError, match=r"cache_limit=.*: expected a number of bytes, such as"):
        check_cache_limit(limit)  # type: ignore[arg-type]
    check_cache_limit(0)
    check_cache_limit(None)


def test_in_real_time_no_cache_is_evicted(tmp_path: Path) -> None:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Kept)
    with pytest.raises(PipelineError, match=r"cache_limit=\.\.\.\): .*in real time a cache"):
        p.start(None, checkpoint=str(tmp_path / "ckpt"), realtime=True, cache_limit=1)
    assert not (tmp_path / "ckpt").exists()
