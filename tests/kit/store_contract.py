"""The suite that every store passes in the unit tier, to be run over a real one."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from millrace.store import Commit

UNIT = Path(__file__).parents[1] / "unit" / "store"
_FILES = (
    "test_blobs",
    "test_commit_log",
    "test_epoch_log",
    "test_incarnations",
    "test_removal",
)


def commit_maker() -> Callable[..., Commit]:
    """Return what the suite's fixture ``commit`` is."""

    def make(number: int, *mutations: tuple[bytes, bytes | None], interval: int = 0) -> Commit:
        return Commit("count", interval, number, number + 10, 1, list(mutations), b"out", b"in")

    return make


def contract() -> dict[str, object]:
    """Return the tests that take blobs or a hard state of any kind, and what fills one.

    A module has them by its ``globals().update(contract())``, with fixtures ``state``, ``blobs``
    and ``commit``.
    """
    tests: dict[str, object] = {}
    for file in _FILES:
        for name, value in _of_any_store(_loaded(file)):
            assert name not in tests, "a test would hide one of the same name"
            tests[name] = value
    return tests


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
