"""Where a worker keeps its caches."""

import pickle
import tempfile
from pathlib import Path

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.process import Blueprint, cache_directory
from millrace.store import Commit, LmdbCaches, LocalHardState, lmdb_environments


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
