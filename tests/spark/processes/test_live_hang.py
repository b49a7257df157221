"""Tasks in real time that hang, on Spark: their processes are ended, and each row counts once."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = live_driver("live_hang", tmp_path_factory.mktemp("hang"))
    return found, live_driver.output


@pytest.fixture(scope="module")
def found(ran: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return ran[0]


@pytest.mark.parametrize("case", ["stopped", "native", "outside"])
def test_a_worker_that_hangs_is_ended_and_each_row_counts_once(
    found: dict[str, Any], case: str
) -> None:
    assert found[case] == [True, True, True, True, []]


def test_a_record_that_hangs_each_time_becomes_a_dead_letter(found: dict[str, Any]) -> None:
    *seen, (letter,) = found["poisoned"]
    assert seen == [True, True, True, True]
    assert letter["computation"] == "Passing"
    assert "it was killed after 4 s, in which it did not return" in letter["reason"]


def test_the_task_and_its_key_intervals_are_named(ran: tuple[dict[str, Any], str]) -> None:
    _, output = ran
    assert "task 0 of level 1 (process" in output
    assert "did nothing for 4 s, which is hang_limit=: it does not answer" in output
    assert "It has key intervals 0, 1 of 'Counting'." in output


@pytest.mark.parametrize(
    "what", ["its segment, which it appends to", "its sinks, which it writes to"]
)
def test_it_is_said_whether_a_disk_or_a_sink_does_not_answer(
    ran: tuple[dict[str, Any], str], what: str
) -> None:
    _, output = ran
    assert f"it is at {what}" in output
