"""Where a worker keeps its caches, and how many."""

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.opening import check_cache_limit
from millrace.spark.process import Blueprint, cache_directory
from millrace.store import Commit, LmdbCaches, LocalHardState, SnapshotWriter, lmdb_environments


def test_by_default_it_is_in_the_workers_own_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_directory("") == f"{tmp_path}/millrace"


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
    with pytest.raises(PipelineError, match=r"cache_limit=\.\.\.\): in real time a cache"):
        p.start(None, checkpoint=str(tmp_path / "ckpt"), realtime=True, cache_limit=1)
    assert not (tmp_path / "ckpt").exists()
