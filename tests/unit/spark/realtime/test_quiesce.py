"""What is to be done at a rest: once, by who looks after the run, while others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from millrace.model.errors import PipelineError, ZombieWriter
from millrace.spark.realtime.quiesce import Quiesce


def asking(rests: Quiesce, work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Ask for something in a thread; return it, and what comes of it."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(rests.ask(work))
        except Exception as error:  # noqa: BLE001  it is looked at
            found.append(error)

    before = len(rests._waiting)
    thread = threading.Thread(target=ask)
    thread.start()
    while len(rests._waiting) == before and thread.is_alive():
        pass
    return thread, found


def test_all_that_is_wanted_is_done_at_one_rest_and_told_when_the_run_goes_on() -> None:
    rests = Quiesce(threading.Condition())
    first, one = asking(rests, lambda: 1)
    second, two = asking(rests, lambda: 1 // 0)
    assert rests.wanted
    rests.do()
    assert not rests.wanted
    assert first.is_alive()
    assert not one
    rests.back("2.0 s")
    first.join()
    second.join()
    assert one == [(1, "2.0 s")]
    assert isinstance(two[0], ZeroDivisionError)


def test_a_run_that_ends_says_so_to_who_waits_and_to_who_asks_after() -> None:
    rests = Quiesce(threading.Condition())
    done, one = asking(rests, lambda: 1)
    rests.do()
    waiting, two = asking(rests, lambda: 2)
    rests.close()
    done.join()
    waiting.join()
    assert one == [(1, "the run has ended since")]
    assert isinstance(two[0], PipelineError)
    with pytest.raises(PipelineError, match="this run has ended before"):
        rests.ask(lambda: 3)


def test_after_a_newer_run_has_come_nothing_more_is_done() -> None:
    def superseded() -> None:
        raise ZombieWriter("newer")

    rests = Quiesce(threading.Condition())
    first, one = asking(rests, superseded)
    second, two = asking(rests, lambda: 2)
    with pytest.raises(ZombieWriter):
        rests.do()
    rests.close()
    first.join()
    second.join()
    assert isinstance(one[0], ZombieWriter)
    assert isinstance(two[0], PipelineError)
