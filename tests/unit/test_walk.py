"""A record's way through the package; docs/walk.md shows it."""

from __future__ import annotations

import sys

import pytest

from tests.kit.walk import PAGE, WALKS, Walk, page

#: Modules that a record may pass through; fewer is better.
MOST = {"in the Harness": 77, "by epochs": 77, "in real time": 70}


@pytest.mark.parametrize("where", WALKS)
def test_a_record_passes_through_few_modules(where: str) -> None:
    modules = WALKS[where]().modules()
    assert {"kernel.machine", "kernel.execution", "store.commit"} <= set(modules)
    assert len(modules) <= MOST[where], WALKS[where]().text(where)


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="comprehensions have no frames of their own since"
)
def test_the_page_shows_the_ways_as_they_are() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m tests.kit.walk --write"


def test_a_way_is_told_by_folder() -> None:
    walk = Walk()
    walk.calls = [
        ("runtime.level", "run"),
        ("kernel.machine", "take"),
        ("dataflow.triggers.tree", "read"),
        ("kernel.machine", "fold"),
        ("kernel.router", "send"),
    ]
    assert walk.text("a walk").splitlines() == [
        "a walk: 4 modules, 4 changes of module",
        "    runtime: level",
        "    kernel: machine",
        "    dataflow.triggers: tree",
        "    kernel: router",
    ]
    assert walk.text("a walk", functions=True).splitlines()[2] == ("    kernel.machine: take, fold")
