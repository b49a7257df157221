"""Backoff of an injector task, by the clock of a source that has something every so often."""

from __future__ import annotations

import pytest

from millrace.spark.realtime.task_host import Backoff


def turns(every_ms: float, spent_ms: float, count: int = 400) -> tuple[list[float], list[int]]:
    """Return by how many ms the oldest input of each turn was late, and how much each turn had."""
    pauses, late, taken = Backoff(0), list[float](), list[int]()
    now = begins = 0.0
    seen = 0
    for _ in range(count):
        now = max(now, begins)
        first = seen * every_ms
        waited = max(0.0, first - now)
        late.append(max(0.0, now - first))
        took = now + waited
        there = int(took / every_ms + 1e-9) + 1
        taken.append(there - seen)
        seen = there
        ended = took + spent_ms
        begins = ended + 1e3 * pauses.after(spent_ms / 1e3, now / 1e3, waited / 1e3, ended / 1e3)
        now = ended
    return late, taken


@pytest.mark.parametrize("spent_ms", [0.3, 0.9, 1.0, 1.1, 1.5])
def test_what_comes_every_few_milliseconds_is_taken_when_it_comes(spent_ms: float) -> None:
    late, taken = turns(5.0, spent_ms)
    assert max(late[20:]) == 0.0
    assert set(taken[20:]) == {1}


def test_after_a_stall_it_is_in_time_again_soon() -> None:
    pauses = Backoff(0)
    # Late: input is there already, turn after turn, as turn and pause take as long as it comes.
    found = [pauses.after(0.0011, at, 0.0, at + 0.0011) for at in (n * 0.0055 for n in range(9))]
    assert found == [0.0044] * 7 + [0.0011] * 2
    assert pauses.after(0.0011, 0.0465, 0.002, 0.0496) == 0.0011


def test_where_more_comes_than_can_be_done_pauses_are_as_short_as_any() -> None:
    pauses = Backoff(0)
    assert {pauses.after(0.03, n * 0.032, 0.0, n * 0.032 + 0.03) for n in range(40)} == {0.002}


def test_what_comes_all_the_time_is_taken_together() -> None:
    _, taken = turns(1.0, 0.6)
    assert sum(taken) / len(taken) > 2.5


def test_a_task_of_a_level_pauses_for_the_cpu_time_of_its_turn() -> None:
    pauses = Backoff(2)
    assert [pauses.after(spent, 0.0, 0.0, spent) for spent in (0.001, 0.03)] == [0.001, 0.002]
