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
from millrace.spark.realtime import failover as failover_module
from millrace.spark.realtime.control_connection import Address
from millrace.spark.realtime.failover import Failover
from millrace.spark.realtime.standby import Standby
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


def test_nobody_waits_for_the_end_of_one_that_failed_and_no_other_is_started_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()
    scene = Scene().call()
    scene.query.isActive = False
    scene.query.stop = lambda: may_end.wait(10)  # type: ignore[assignment,method-assign]
    started, another = list[Standby](), Scene()

    def start() -> Standby:
        started.append(another.standby)
        return another.standby

    failover = Failover(True, start, lambda: True, scene.standby)
    failover.look()
    assert (failover.standby, failover.gone, started) == (None, False, [])
    monkeypatch.setattr(
        failover_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 5)
    )
    failover.look()
    assert started == [], "it has slots yet"
    may_end.set()
    scene.standby.wait()
    assert failover.gone
    failover.look()
    assert started == [another.standby]
    assert failover.state == "starting"
    another.call()
    assert failover.state == "ready"
    failover.close()


def test_who_needs_its_slots_has_it_ended_and_no_other_is_started_meanwhile() -> None:
    scene, another = Scene().call(), Scene()
    failover = Failover(True, lambda: another.standby, lambda: True, scene.standby)
    with failover.making_way():
        failover.look()
        scene.standby.wait()
        failover.look()
        assert failover.gone
    failover.look()
    assert failover.standby is another.standby
    failover.close()


@pytest.mark.parametrize(("wanted", "has_room"), [(False, True), (True, False)])
def test_none_is_started_that_is_not_wanted_or_has_no_slots(wanted: bool, has_room: bool) -> None:
    def start() -> Standby:
        raise AssertionError("it is started")

    failover = Failover(wanted, start, lambda: has_room)
    failover.look()
    assert (failover.standby, failover.gone) == (None, True)
    assert failover.state == ("starting" if wanted else "")
