"""A disk that fills up, and one that becomes read-only, in mid-run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    os.getuid() != 0,
    reason="mounting needs root; tests/faults/test_store_errors.py injects the same errors",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    at = tmp_path / "disk"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def _fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(64))


def _remount(disk: Path, how: str) -> None:
    """Remount a disk; with a file open for writing at the moment, it cannot become read-only."""
    for _ in range(2000):
        done = subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], capture_output=True)
        if done.returncode == 0:
            return
        time.sleep(0.005)
    raise AssertionError(done.stderr)


def test_the_run_goes_on_once_the_disk_has_room_and_may_be_written(
    scenes: Any, disk: Path, tmp_path: Path
) -> None:
    scene = scenes()
    scene.checkpoint = disk / "checkpoint"
    scene.config |= {"checkpoint": str(scene.checkpoint), "cache": str(tmp_path / "cache")}

    driver = scene.start("wait")
    driver.wait_for_entries(4)
    _fill(disk / "ballast")
    output = driver.finish(status=1)
    assert "No space left on device" in output
    assert "start again with the same checkpoint" in output
    assert "free room" in output
    (disk / "ballast").unlink()

    driver = scene.start("wait")
    driver.wait_for_entries(4)
    _remount(disk, "ro")
    output = driver.finish(status=1)
    assert "Read-only file system" in output
    assert "start again with the same checkpoint" in output
    _remount(disk, "rw")

    assert "drained" in scene.start().finish()
    scene.check()
