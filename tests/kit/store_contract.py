"""The suite that every store passes in the unit tier, to be run over a real one."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
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
_FILES = (
    "test_blobs",
    "test_commit_log",
    "test_epoch_log",
    "test_incarnations",
    "test_removal",
)


def contract(url: str) -> dict[str, object]:
    """Return the tests that take blobs or a hard state of any kind, and their fixtures.

    A module has them by its ``globals().update(contract("s3"))``.

    Args:
        url: The fixture that is the URL of an unused prefix.
    """

    @pytest.fixture
    def state(request: pytest.FixtureRequest) -> HardState:
        return open_location(request.getfixturevalue(url), pipeline="zeitgeist")

    @pytest.fixture
    def blobs(request: pytest.FixtureRequest) -> Blobs:
        prefix = BucketUrl.parse(request.getfixturevalue(url))
        return ObjectBlobs(prefix, BucketOptions.from_environment())

    @pytest.fixture
    def commit() -> Callable[..., Commit]:
        return _commit

    tests: dict[str, object] = {"state": state, "blobs": blobs, "commit": commit}
    for file in _FILES:
        for name, value in _of_any_store(_loaded(file)):
            assert name not in tests, "a test would hide one of the same name"
            tests[name] = value
    return tests


def _commit(number: int, *mutations: tuple[bytes, bytes | None], interval: int = 0) -> Commit:
    return Commit("count", interval, number, number + 10, 1, list(mutations), b"out", b"in")


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_on_a_server", UNIT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_any_store(module: ModuleType) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name == "epochs":
            yield name, value
        elif name.startswith("test_"):
            takes = inspect.signature(value).parameters.keys()
            if takes & {"blobs", "state", "epochs"} and not takes & {"tmp_path", "local"}:
                yield name, value
