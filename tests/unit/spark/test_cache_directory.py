"""Where a worker keeps its caches."""

import tempfile

import pytest

from millrace.model.errors import PipelineError
from millrace.spark.process import cache_directory


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
