"""A pipeline changes while records come in real time: its tasks are there before it takes over."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> dict[str, Any]:
    result: dict[str, Any] = live_driver("live_updates", tmp_path_factory.mktemp("updates"))
    return result


def assert_handed_over(pause: str, seconds: float) -> None:
    """Assert that tasks beside took over. How long it took is for ``benchmarks.update_pause``:
    here, beside other tests, a run may have to recover first.
    """
    parts = [part.partition(" s ")[2] for part in pause.partition(": ")[2].split(", ")]
    assert parts[-3:] == [
        "until all had passed a mark",
        "to claim the checkpoint",
        "until the new tasks had taken up what there was",
    ], "nothing waits for Spark"
    assert seconds > 0


def test_a_computation_and_a_cell_come_while_records_flow(found: dict[str, Any]) -> None:
    assert found["begun"] == [True, None]
    assert_handed_over(*found["computation and cell"])


def test_a_worker_killed_before_the_other_takes_over_costs_another_start(
    found: dict[str, Any],
) -> None:
    assert_handed_over(*found["killed before"])
    message, same_run, state = found["failed"]
    assert "so often it was tried: 1." in message
    assert (same_run, state) == (True, "running"), "the run goes on as it was"


def test_each_record_counts_once_though_a_worker_is_killed_after_it(found: dict[str, Any]) -> None:
    assert found["done"] == [True, "right"]
    assert found["in the end"] == [True, "right"]
    counted, injected = found["state"]
    assert counted == injected


def test_where_there_are_no_slots_the_query_is_started_anew(found: dict[str, Any]) -> None:
    (pause, seconds), said = found["no room"]
    assert "until the run before had ended" in pause
    assert seconds > 0
    assert said.startswith("11 slots would be needed")
