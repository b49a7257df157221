"""The suite that every store passes in the unit tier, over a real S3 server."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from millrace.store import (
    Blobs,
    BucketOptions,
    BucketUrl,
    Commit,
    HardState,
    ObjectBlobs,
    open_location,
)

UNIT = Path(__file__).parents[1] / "unit" / "store"


@pytest.fixture
def state(s3: str) -> HardState:
    return open_location(s3, pipeline="zeitgeist")


@pytest.fixture
def blobs(s3: str) -> Blobs:
    return ObjectBlobs(BucketUrl.parse(s3), BucketOptions.from_environment())


@pytest.fixture
def commit() -> Callable[..., Commit]:
    def make(number: int, *mutations: tuple[bytes, bytes | None], interval: int = 0) -> Commit:
        return Commit("count", interval, number, number + 10, 1, list(mutations), b"out", b"in")

    return make


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_on_s3", UNIT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(module: ModuleType) -> dict[str, object]:
    """Return the tests that take blobs or a hard state of any kind, and what fills one."""
    found = {}
    for name, value in vars(module).items():
        if name == "epochs":
            found[name] = value
        elif name.startswith("test_"):
            takes = inspect.signature(value).parameters.keys()
            if takes & {"blobs", "state", "epochs"} and not takes & {"tmp_path", "local"}:
                found[name] = value
    return found


for name in (
    "test_blobs",
    "test_commit_log",
    "test_epoch_log",
    "test_incarnations",
    "test_removal",
):
    more = suite(loaded(name))
    assert not more.keys() & globals().keys(), "a test would hide one of the same name"
    globals().update(more)
