"""What Spark writes of its progress is durable before an epoch depends on it. No session needed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.model.errors import CheckpointUnwritable
from millrace.spark.offset_files import ProgressFiles

SETTING = "spark.sql.streaming.checkpointFileManagerClass"


class Session:
    """Settings and an id, and no more."""

    def __init__(self, **settings: str) -> None:
        self.conf = self
        self.settings = settings
        self._jsparkSession = SimpleNamespace(sessionUUID=lambda: str(id(self)))

    def get(self, name: str, default: Any) -> Any:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


SESSION: Any = Session()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files and directories that were fsync'd so far."""
    found: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        found.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return found


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux what a descriptor is")
def test_what_was_written_since_is_synced_and_then_its_directory(
    tmp_path: Path, synced: list[str]
) -> None:
    progress = ProgressFiles(str(tmp_path), SESSION)
    write(tmp_path, "offsets/0", "offsets/.0.crc", "sources/0/0", "commits/0", "metadata")
    progress.sync()
    assert synced[:2] == [tmp_path.name, "sources"]
    assert sorted(synced[2:4]) == ["0", "0"]
    assert sorted(synced[4:]) == ["0", "offsets"]

    synced.clear()
    progress.sync()
    assert synced == []

    write(tmp_path, "offsets/1")
    (tmp_path / "offsets/0").unlink()
    progress.sync()
    assert synced == ["1", "offsets"]


def test_a_new_run_trusts_nothing_that_another_left(tmp_path: Path, synced: list[str]) -> None:
    write(tmp_path, "offsets/0")
    ProgressFiles(str(tmp_path), SESSION).sync()
    synced.clear()
    ProgressFiles(str(tmp_path), SESSION).sync()
    assert "0" in synced


def test_elsewhere_than_on_a_disk_there_is_nothing_to_do(synced: list[str]) -> None:
    ProgressFiles("s3a://bucket/progress", SESSION).sync()
    assert synced == []


def test_a_disk_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "offsets/0")

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointUnwritable, match="reports an error"):
        ProgressFiles(str(tmp_path), SESSION).sync()


def test_sources_write_as_the_query_does_until_they_are_made(tmp_path: Path) -> None:
    session: Any = Session()
    progress = ProgressFiles(str(tmp_path), session)
    progress.begin()
    assert session.settings[SETTING].endswith(".FileSystemBasedCheckpointFileManager")
    progress.give_back()
    assert session.settings == {}
    progress.give_back()


@pytest.mark.parametrize(
    ("location", "settings"), [("/ckpt", {SETTING: "mine"}), ("s3a://bucket/ckpt", {})]
)
def test_what_the_user_chose_stands_and_so_does_what_other_systems_do(
    location: str, settings: dict[str, str]
) -> None:
    session: Any = Session(**settings)
    progress = ProgressFiles(location, session)
    progress.begin()
    assert session.settings == settings
    progress.give_back()
    assert session.settings == settings
