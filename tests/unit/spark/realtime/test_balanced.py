"""Rounds of balancing keep a distance, and ask for a rest only where something is prepared."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millrace.model.errors import StoreError, ZombieWriter
from millrace.spark.realtime.quiesce import Quiesce, RealtimeBalancer


class Script:
    """A balancing that says what a test says."""

    def __init__(self) -> None:
        self.is_prepared = False
        self.error: Exception | None = None
        self.looks: list[bool] = []
        self.rounds = 0

    def prepared(self, *, busy: bool) -> bool:
        self.looks.append(busy)
        return self.is_prepared

    def carried_out(self) -> bool:
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return True


class Setting:
    """Balanced, script, rests and clock."""

    def __init__(self) -> None:
        self.now, self.script = 100.0, Script()
        self.rests = Quiesce(threading.Condition())
        script: Any = self.script
        self.balanced = RealtimeBalancer(script, self.rests, lambda: self.now)

    def round(self, seconds: float) -> None:
        """Prepare something, rest, and go on."""
        self.script.is_prepared = True
        self.balanced.marked(busy=True)
        self.balanced.look()
        self.rests.do()
        self.script.is_prepared = False
        self.balanced.back(seconds)
        self.rests.back("")


def test_a_rest_is_asked_for_once_when_something_is_prepared() -> None:
    it = Setting()
    it.balanced.marked(busy=True)
    it.balanced.look()
    assert not it.rests.wanted
    it.script.is_prepared = True
    it.balanced.marked(busy=False)
    assert not it.rests.wanted  # who completes marks waits for nobody
    it.balanced.look()
    it.balanced.look()
    assert len(it.rests._waiting) == 1
    it.balanced.marked(busy=True)  # the mark of the rest
    assert it.script.looks == [True, False]
    it.rests.do()
    assert it.script.rounds == 1


@pytest.mark.parametrize(("pause_s", "apart_s"), [(0.5, 30.0), (4.0, 40.0)])
def test_the_next_round_comes_so_long_after_the_last(pause_s: float, apart_s: float) -> None:
    it = Setting()
    it.round(pause_s)
    it.script.looks.clear()
    it.now += apart_s - 0.1
    it.balanced.marked(busy=True)
    assert it.script.looks == []
    it.now += 0.1
    it.balanced.marked(busy=True)
    assert it.script.looks == [True]


def test_a_rest_of_somebody_else_is_no_round() -> None:
    it = Setting()
    it.balanced.back(4.0)
    it.balanced.marked(busy=True)
    assert it.script.looks == [True]


def test_what_cannot_be_is_said_and_the_run_goes_on(caplog: Any) -> None:
    it = Setting()
    it.script.error = StoreError("the disk is full")
    it.round(0.5)
    assert "key intervals do not follow the load now: the disk is full" in caplog.text
    it.script.error = ZombieWriter("newer")
    it.now += 60
    with pytest.raises(ZombieWriter):
        it.round(0.5)


def test_a_run_that_is_not_balanced_asks_for_nothing() -> None:
    rests = Quiesce(threading.Condition())
    balanced = RealtimeBalancer(None, rests)
    balanced.marked(busy=True)
    balanced.look()
    balanced.back(1.0)
    assert not rests.wanted
