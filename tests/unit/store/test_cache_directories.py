from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.store import LmdbCaches, LocalHardState, cache_directories, lmdb_environments

ENTER = """
import sys
from pathlib import Path
from millrace.store import cache_directories
cache_directories.enter(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
print("in", flush=True)
sys.stdin.read()
"""

Python = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "caches"
    lmdb_environments.close_all()
    cache_directories._held.clear()


def used(caches: Path, checkpoint: Path, python: Python) -> str:
    """Let another process use the caches of a new checkpoint, and end; return its uuid."""
    state = LocalHardState.create_or_open(checkpoint, pipeline="p")
    assert LmdbCaches(caches, state.uuid).open("count", 0).position == 0
    lmdb_environments.close_all()
    process = python(ENTER, caches, state.uuid, checkpoint)
    process.communicate()
    assert process.returncode == 0
    return state.uuid


def test_caches_of_a_checkpoint_that_is_there_stay(
    caches: Path, tmp_path: Path, python: Python
) -> None:
    used(caches, tmp_path / "c", python)
    assert cache_directories.remove_dead(caches) == []
    assert len(list(caches.iterdir())) == 1


def test_those_of_one_that_is_gone_go(caches: Path, tmp_path: Path, python: Python) -> None:
    uuid = used(caches, tmp_path / "c", python)
    kept = used(caches, tmp_path / "other", python)
    shutil.rmtree(tmp_path / "c")
    assert cache_directories.remove_dead(caches) == [uuid]
    assert [path.name for path in caches.iterdir()] == [kept]


def test_those_of_one_that_was_replaced_go(caches: Path, tmp_path: Path, python: Python) -> None:
    uuid = used(caches, tmp_path / "c", python)
    shutil.rmtree(tmp_path / "c")
    again = used(caches, tmp_path / "c", python)
    assert cache_directories.remove_dead(caches) == [uuid]
    assert [path.name for path in caches.iterdir()] == [again]


def test_those_in_use_stay(caches: Path, tmp_path: Path, python: Python) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    process = python(ENTER, caches, state.uuid, state.path)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    shutil.rmtree(tmp_path / "c")
    assert cache_directories.remove_dead(caches) == []
    process.kill()
    process.wait()
    assert cache_directories.remove_dead(caches) == [state.uuid]


def test_those_of_a_damaged_checkpoint_stay(caches: Path, tmp_path: Path, python: Python) -> None:
    used(caches, tmp_path / "c", python)
    (tmp_path / "c" / "FORMAT").write_text("{")
    assert cache_directories.remove_dead(caches) == []


def test_what_does_not_say_whose_it_is_stays(caches: Path, tmp_path: Path) -> None:
    (caches / "some-uuid" / "2-host-boot").mkdir(parents=True)
    (caches / "a file").touch()
    assert cache_directories.remove_dead(caches) == []
    assert len(list(caches.iterdir())) == 2


def test_a_process_enters_once(caches: Path, tmp_path: Path) -> None:
    for _ in range(2):
        cache_directories.enter(caches, "uuid", tmp_path)
    assert len(cache_directories._held) == 1


def test_a_process_comes_back_to_a_directory_that_was_removed_meanwhile(
    caches: Path, tmp_path: Path
) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    cache_directories.enter(caches, state.uuid, state.path)
    shutil.rmtree(caches)
    assert cache_directories.remove_dead(caches) == []
    cache_directories.enter(caches, state.uuid, state.path)
    shutil.rmtree(tmp_path / "c")
    # Its new lock keeps it, though its checkpoint is gone.
    assert cache_directories.remove_dead(caches) == []
    assert [path.name for path in caches.iterdir()] == [state.uuid]
