"""Calls in real time on Spark, while workers are killed with ``kill -9``."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> Any:
    return live_driver("live_calls", tmp_path_factory.mktemp("calls"))


def test_each_call_counts_once_in_state_and_at_the_sink(found: Any) -> None:
    assert found["killed"] == 2
    assert found["spent"] == found["expected"]


def test_windows_behind_calls_are_whole_and_nothing_is_late(found: Any) -> None:
    assert found["sums"] == found["windows"]
    assert found["late"] == 0
