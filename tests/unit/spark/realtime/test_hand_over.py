"""How an engine of real time has another pipeline go on: at a rest, with tasks that wait."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    PipelineError,
    UpdateFailed,
)
from millrace.spark.engine import Engine
from millrace.spark.realtime.failover import Failover
from millrace.spark.realtime.quiesce import Quiesce
from millrace.spark.realtime.retry_policy import Downtime
from millrace.spark.realtime_engine import RealtimeEngine

HEIR: Any = SimpleNamespace()


class Beside:
    """Stands for a query beside the run, whose tasks are there, or lost."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.where = [(0, 0), (1, 0)]
        self.failure = failure
        self.ready = failure is None
        self.ended = False

    def absent(self) -> list[Any]:
        return []

    def end(self) -> None:
        self.ended = True


class Scene:
    """An engine whose run rests whenever that is wanted, and what is to go on in its place.

    Args:
        beside: The queries that can be started, one after the other.
        claim: What a claim raises.
        begin: What the beginning of the other raises.
        lost_at_rest: How often tasks are lost just before the rest.
    """

    def __init__(
        self,
        *beside: Beside,
        claim: Exception | None = None,
        begin: Exception | None = None,
        lost_at_rest: int = 0,
    ) -> None:
        self.done: list[str] = []
        self.beside, self._left = beside, list(beside)
        self._raises = {"claim": claim, "begin": begin}
        self._lost_at_rest = lost_at_rest
        self.slots, self.optional = 2, False
        self.run: Any = SimpleNamespace(
            active=True, stopping=False, handed_over=False, stop=self._stop
        )
        engine: Any = object.__new__(RealtimeEngine)
        Engine.__init__(engine)
        engine.run, engine._where = self.run, [(0, 0), (1, 0)]
        engine._quiesce = Quiesce(engine.news)
        engine._failover = Failover(True, engine._stand_by, lambda: False)
        engine._roomy = lambda tasks: tasks == 4
        self.engine = engine

    def hand_over(self) -> Any:
        """Hand over, while a thread does what is wanted at rests."""
        rests, over = self.engine._quiesce, threading.Event()

        def watch() -> None:
            while not over.wait(0.001):
                if rests.wanted:
                    if self._lost_at_rest:
                        self._lost_at_rest -= 1
                        self.beside[-1 - len(self._left)].ready = False
                    self.engine.downtime.gone()
                    rests.do()
                    rests.close() if self.run.stopping else rests.back("0.1 s")

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            return self.engine.hand_over(self, "10 s")
        finally:
            over.set()
            watching.join()

    def stand_by(self, changed: Any) -> Any:
        self.done.append("stand by")
        return self._left.pop(0)

    def claim(self) -> None:
        self._do("claim")

    def begin(self, downtime: Downtime) -> Any:
        self._do("begin")
        assert downtime.back("at work"), "measured since the rest"
        return HEIR

    def _do(self, what: str) -> None:
        self.done.append(what)
        if (error := self._raises[what]) is not None:
            raise error

    def _stop(self, timeout: object = None) -> None:
        self.done.append("stop")
        self.run.active = False


def test_the_other_begins_at_a_rest_and_then_this_run_ends() -> None:
    scene = Scene(Beside())
    assert scene.hand_over() is HEIR
    assert scene.done == ["stand by", "claim", "begin", "stop"]
    assert scene.run.stopping


def test_tasks_that_are_lost_before_are_started_once_more() -> None:
    lost = RuntimeError("a worker was killed")
    scene = Scene(Beside(lost), Beside())
    assert scene.hand_over() is HEIR
    assert scene.done == ["stand by", "stand by", "claim", "begin", "stop"]
    assert scene.beside[0].ended
    scene = Scene(Beside(), Beside(), lost_at_rest=1)
    assert scene.hand_over() is HEIR
    assert scene.done == ["stand by", "stand by", "claim", "begin", "stop"]


def test_the_run_goes_on_as_it_was_if_they_are_lost_again() -> None:
    lost = RuntimeError("a worker was killed")
    scene = Scene(Beside(lost), Beside(lost))
    with pytest.raises(UpdateFailed, match=r"often it was tried: 2\. a worker was killed"):
        scene.hand_over()
    assert scene.done == ["stand by", "stand by"]
    assert (scene.run.active, scene.run.stopping) == (True, False)
    assert not scene.engine._failover._makes_way, "it may have a standby again"
    assert all(one.ended for one in scene.beside)


@pytest.mark.parametrize("refused", [CheckpointMismatch("no"), PipelineError("no")])
def test_so_it_does_where_the_other_is_refused(refused: Exception) -> None:
    scene = Scene(Beside(), claim=refused)
    with pytest.raises(type(refused)):
        scene.hand_over()
    assert scene.done == ["stand by", "claim"]
    assert not scene.run.stopping
    assert scene.beside[0].ended


@pytest.mark.parametrize(
    ("raising", "done"),
    [
        ({"claim": CheckpointUnwritable("full")}, ["stand by", "claim", "stop"]),
        ({"begin": ValueError("no such table")}, ["stand by", "claim", "begin", "stop"]),
    ],
)
def test_once_the_checkpoint_may_be_the_others_this_run_ends(
    raising: dict[str, Any], done: list[str]
) -> None:
    scene = Scene(Beside(), **raising)
    with pytest.raises(tuple(type(error) for error in raising.values())):
        scene.hand_over()
    assert scene.done == done
    assert scene.run.stopping
    assert scene.beside[0].ended


@pytest.mark.parametrize("slots", [0, 3])
def test_without_slots_for_both_the_one_is_stopped_and_the_other_started(slots: int) -> None:
    scene = Scene()
    scene.slots = slots
    assert scene.hand_over() is HEIR
    assert scene.done == ["stop", "claim", "begin"]


@pytest.mark.parametrize("slots", [2, 3])
def test_other_tasks_that_only_the_load_asks_for_take_over_beside_or_not_at_all(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(Beside())
    scene.slots, scene.optional = slots, True
    monkeypatch.setattr(Quiesce, "ask", late)
    with pytest.raises(UpdateFailed, match="the run goes on as it was"):
        scene.hand_over()
    assert scene.done == ["stand by"] * (slots == 2)
    assert (scene.run.active, scene.run.stopping) == (True, False)


def late(_self: Quiesce, _work: object, _within_s: float, *, goes_on: bool) -> None:
    assert goes_on
    raise TimeoutError


def test_from_a_rest_that_comes_later_a_run_may_go_on() -> None:
    rests, done = Quiesce(threading.Condition()), list[int]()
    with pytest.raises(TimeoutError):
        rests.ask(lambda: done.append(1), 0.0, goes_on=True)
    assert rests.wanted, "it goes on, as something was to be done"
    rests.do()
    assert done == []
    assert not rests.wanted


def test_a_rest_that_does_not_come_in_time_is_not_waited_for() -> None:
    rests = Quiesce(threading.Condition())
    with pytest.raises(TimeoutError):
        rests.ask(lambda: 1, 0.0)
    assert not rests.wanted
