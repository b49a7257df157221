from __future__ import annotations

from pathlib import Path

import pytest

from millrace.model.errors import DamagedStore, PipelineError
from millrace.store import LocalHardState, local_path, open_location


def test_a_driver_makes_and_a_worker_opens(tmp_path: Path) -> None:
    with pytest.raises(DamagedStore):
        open_location(tmp_path / "c")
    made = open_location(tmp_path / "c", pipeline="p")
    assert isinstance(made, LocalHardState)
    assert open_location(f"file://{tmp_path}/c", uuid=made.uuid).uuid == made.uuid


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert local_path("ckpt") == tmp_path / "ckpt"
    assert local_path("a:b/c") == tmp_path / "a:b" / "c"
    assert local_path("~/ckpt") == Path("/home/ada/ckpt")
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("file:/a/b") == Path("/a/b")
    assert local_path("file://localhost/a") == Path("/a")


@pytest.mark.parametrize("url", ["hdfs://host/c", "file://host/c", "http://x/y", ""])
def test_what_is_not_supported(url: str) -> None:
    with pytest.raises(PipelineError, match="expected a"):
        open_location(url, pipeline="p")
