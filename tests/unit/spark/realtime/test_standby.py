"""A second query whose tasks wait, with a query and a switchboard that a test speaks through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.runtime.realtime.coordinator import TaskKey
from millrace.runtime.realtime.messages import StopTask, TaskEnded, TaskReady
from millrace.spark.realtime.control_connection import Address
from millrace.spark.realtime.standby import Standby
from millrace.spark.realtime_engine import RealtimeEngine
from tests.unit.spark.realtime.test_control_loop import Board

ALL: list[TaskKey] = [(0, 0), (1, 0)]
READY = [TaskReady(0, 0, "here", 1), TaskReady(1, 0, "here", 2)]


class Query:
    """Stands for Spark's."""

    def __init__(self) -> None:
        self.isActive = True
        self.stopped = False

    def exception(self) -> Exception | None:
        return None if self.isActive else RuntimeError("a stage has failed")

    def stop(self) -> None:
        self.stopped, self.isActive = True, False


class Scene:
    """A standby, and what a test has to do with it."""

    def __init__(self, start: Callable[[Address], Any] | None = None) -> None:
        self.board, self.query = Board(), Query()
        board: Any = self.board
        self.standby = Standby(board, start or (lambda _: self.query), ALL, lambda: None)

    def say(self, where: TaskKey, message: Any, until: Callable[[], Any]) -> None:
        self.board.said.put((where, message))
        self.wait(until)

    def wait(self, until: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not until():
            assert time.monotonic() < deadline, "nothing came of it"
            time.sleep(0.001)

    def call(self) -> Scene:
        for message in READY:
            self.board.said.put(((message.level, message.task), message))
        self.wait(lambda: self.standby.ready)
        return self


def test_it_is_ready_when_all_tasks_have_called() -> None:
    scene = Scene()
    scene.say((0, 0), READY[0], lambda: scene.standby._called)
    assert not scene.standby.ready
    scene.say((1, 0), READY[1], lambda: scene.standby.ready)
    assert scene.standby.failure is None


def test_it_is_not_ready_before_spark_says_that_its_query_is_started() -> None:
    may = threading.Event()

    def start(_: Address) -> Query:
        may.wait(10)
        return Query()

    scene = Scene(start)
    scene.say((0, 0), READY[0], lambda: scene.standby._called)
    scene.say((1, 0), READY[1], lambda: len(scene.standby._called) == 2)
    assert not scene.standby.ready
    may.set()
    scene.wait(lambda: scene.standby.ready)


@pytest.mark.parametrize("said", [None, TaskEnded(1, 0)])
def test_one_that_has_lost_a_task_waits_for_another_in_its_place(said: TaskEnded | None) -> None:
    scene = Scene().call()
    scene.say((1, 0), said, lambda: not scene.standby.ready)
    scene.say((1, 0), TaskReady(1, 0, "here", 5), lambda: scene.standby.ready)
    assert [task.pid for task in scene.standby.take()] == [1, 5]


def test_its_query_may_end_and_says_why() -> None:
    scene = Scene().call()
    scene.query.isActive = False
    assert not scene.standby.ready
    assert str(scene.standby.failure) == "a stage has failed"


def test_a_query_that_cannot_be_started_is_its_failure() -> None:
    def refuse(_: Address) -> Any:
        raise RuntimeError("no slots")

    scene = Scene(refuse)
    scene.wait(lambda: scene.standby.failure)
    assert str(scene.standby.failure) == "no slots"
    scene.standby.end()
    scene.standby.wait()
    assert scene.board.closed


def test_who_takes_it_has_its_board_and_query() -> None:
    scene = Scene().call()
    assert sorted(scene.standby.take(), key=lambda task: task.level) == READY
    scene.standby.end()
    assert (scene.board.closed, scene.query.stopped, scene.board.told) == (False, False, [])


def test_one_that_is_given_up_tells_its_tasks_and_ends_its_query() -> None:
    scene = Scene().call()
    scene.standby.end()
    scene.standby.wait()
    assert sorted(scene.board.told, key=lambda told: told[0]) == [
        (where, StopTask()) for where in ALL
    ]
    assert (scene.board.closed, scene.query.stopped) == (True, True)


def test_nobody_waits_for_the_end_of_one_that_failed_and_no_other_is_started_before() -> None:
    may_end = threading.Event()
    scene = Scene().call()
    scene.query.isActive = False
    scene.query.stop = lambda: may_end.wait(10)  # type: ignore[assignment,method-assign]
    made = list[Board]()

    def board() -> Board:
        made.append(Board())
        return made[-1]

    engine: Any = SimpleNamespace(
        _wants_standby=True,
        _makes_way=False,
        _standby=scene.standby,
        _failed_standby=None,
        _told_ready=False,
        _leaving=None,
        _next_standby_at=0.0,
        _hung=[],
        _where=ALL,
        _roomy=lambda tasks: tasks == 4,
        _make_board=board,
        _start_query=lambda *_: Query(),
        _tell=lambda: None,
    )
    RealtimeEngine._see_to_standby(engine)
    assert (engine._standby, made) == (None, [])
    engine._next_standby_at = 0.0
    RealtimeEngine._see_to_standby(engine)
    assert made == [], "it has slots yet"
    may_end.set()
    scene.standby.wait()
    RealtimeEngine._see_to_standby(engine)
    assert len(made) == 1
    engine._standby.end()
    engine._standby.wait()
