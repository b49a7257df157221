"""Tasks in real time that hang, on Spark: their processes are ended, and each row counts once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("live_hang.py")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, program: Any) -> Iterator[Any]:
    made = program(PROGRAM, tmp_path_factory.mktemp("hang"))
    try:
        assert made.process.wait(600) == 0, made.output()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def found(ran: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(ran.output().splitlines()[-1])
    return result


@pytest.mark.parametrize("case", ["stopped", "native"])
def test_a_worker_that_hangs_is_ended_and_each_row_counts_once(
    found: dict[str, Any], case: str
) -> None:
    assert found[case] == [True, True, True, True, []]


def test_a_record_that_hangs_each_time_becomes_a_dead_letter(found: dict[str, Any]) -> None:
    *seen, (letter,) = found["poisoned"]
    assert seen == [True, True, True, True]
    assert letter["computation"] == "Passing"
    assert "it was killed after 4 s, in which it did not return" in letter["reason"]


def test_the_task_and_its_key_intervals_are_named(ran: Any, found: dict[str, Any]) -> None:
    assert "task 0 of level 1 (process" in ran.output()
    assert "did nothing for 4 s, which is hang_limit=: it does not answer" in ran.output()
    assert "It has key intervals 0, 1 of 'Counting'." in ran.output()
