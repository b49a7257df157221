"""Stores and caches that every suite of this folder runs over."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from millrace.store import (
    BucketOptions,
    BucketUrl,
    Cache,
    Caches,
    Commit,
    HardState,
    LmdbCaches,
    LocalHardState,
    MemoryCaches,
    MemoryHardState,
    ObjectBlobs,
    ObjectHardState,
    lmdb_environments,
)

Python = Callable[..., "subprocess.Popen[str]"]


_KINDS = ["local", "objects in memory", "objects, segments apart", "memory"]


@pytest.fixture(params=_KINDS)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> HardState:
    """An empty hard state of each kind."""
    if request.param == "local":
        return LocalHardState.create_or_open(tmp_path / "checkpoint", pipeline="zeitgeist")
    if request.param.startswith("objects"):
        url = BucketUrl.parse("s3://bucket/check point")
        bucket = ObjectBlobs(url, BucketOptions(), store=MemoryStore())
        apart = str(tmp_path / "segments") if request.param.endswith("apart") else None
        return ObjectHardState.create_or_open(bucket, pipeline="zeitgeist", segments=apart)
    return MemoryHardState()


@pytest.fixture(params=["lmdb", "memory"])
def caches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Caches]:
    """The caches of one process, of each kind."""
    yield LmdbCaches(tmp_path / "cache", "uuid") if request.param == "lmdb" else MemoryCaches()
    lmdb_environments.close_all()


@pytest.fixture
def cache(caches: Caches) -> Cache:
    """An empty cache of interval 0 of computation ``count``."""
    return caches.open("count", 0)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Python]:
    """Start another Python that runs a script with arguments, and can import what we can."""
    started: list[subprocess.Popen[str]] = []
    numbers = itertools.count()

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        path = tmp_path / f"script-{next(numbers)}.py"
        path.write_text(script)
        process = subprocess.Popen(
            [sys.executable, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def commit() -> Callable[..., Commit]:
    """Make a commit of interval 0 of computation ``count`` from its number and its mutations."""

    def make(number: int, *mutations: tuple[bytes, bytes | None], interval: int = 0) -> Commit:
        return Commit("count", interval, number, number + 10, 1, list(mutations), b"out", b"in")

    return make
