"""The number of tasks follows the load of a run in real time, and each record counts once."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> dict[str, Any]:
    result: dict[str, Any] = live_driver("live_tasks", tmp_path_factory.mktemp("tasks"))
    return result


def test_busy_tasks_become_more_and_idle_ones_fewer(found: dict[str, Any]) -> None:
    assert found["more"][0] == 1
    assert found["more"] == sorted(found["more"])
    assert found["fewer"] == sorted(found["fewer"], reverse=True)
    assert found["generation"] >= 3, "each change is a claim"


def test_each_record_counts_once_whoever_has_it(found: dict[str, Any]) -> None:
    assert found["done"] == [True, "right"]
    assert found["in the end"] == [True, "right"]
    counted, injected = found["state"]
    assert counted == injected == 2 * 3600


def test_what_was_left_under_way_is_taken_up_by_as_many_tasks(found: dict[str, Any]) -> None:
    assert "a run with 1 tasks a level that was not stopped; this one has 2." in found["left"]
    assert "The one that ran was started again" in found["left"]
    assert found["taken up"] == [True, "right", 1]


def test_a_changed_pipeline_begins_with_as_many_tasks_as_the_load_had(
    found: dict[str, Any],
) -> None:
    assert found["updated"] == 2


def test_what_an_operator_asked_for_holds_for_the_tasks_that_take_over(
    found: dict[str, Any],
) -> None:
    assert found["held back"] == {"numbers": "5,000 records a second"}


def test_there_are_key_intervals_for_the_most_tasks(found: dict[str, Any]) -> None:
    assert found["intervals"] == 4
