"""The thread between coordinator and tasks, with a switchboard that a test speaks through."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.injectors.offsets import SourceOffset
from millrace.model.errors import PipelineError, ZombieWriter
from millrace.runtime.realtime.coordinator import Orders, TaskKey
from millrace.runtime.realtime.messages import (
    Hold,
    Mark,
    RenewTask,
    StartTask,
    Stepped,
    StopTask,
    TaskEnded,
    TaskReady,
    TaskStatus,
    ToDriver,
    ToTask,
)
from millrace.spark.realtime.control_connection import Address
from millrace.spark.realtime.control_loop import ControlLoop, TaskLost
from millrace.spark.realtime_engine import live_low_watermarks

ALL: list[TaskKey] = [(0, 0), (1, 0)]


class Board:
    """Lines that a test speaks on."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[tuple[TaskKey, ToDriver | None] | None] = queue.SimpleQueue()
        self.told: list[tuple[TaskKey, ToTask]] = []
        self.stale = False
        self.strangers = 0
        self.hung_up = self.closed = False

    def open(self) -> Address:
        return Address("127.0.0.1", 1, b"")

    def listen(self, timeout_s: float) -> list[tuple[TaskKey, ToDriver | None]]:
        try:
            said = self.said.get(timeout=timeout_s)
        except queue.Empty:
            return []
        return [] if said is None else [said]

    def tell(self, where: TaskKey, message: ToTask) -> None:
        self.told.append((where, message))

    def wake(self) -> None:
        self.said.put(None)

    def hang_up(self) -> None:
        self.hung_up = True

    def close(self) -> None:
        self.closed = True


class Script:
    """A coordinator that notes what it hears, and answers as a test says."""

    def __init__(self) -> None:
        self.incarnation: int | None = 1
        self.failed: BaseException | None = None
        self.ended = False
        self.awaited: list[TaskKey] = []
        self.heard_: list[ToDriver] = []
        self.lost_: list[tuple[TaskKey, BaseException | None]] = []
        self.answer: Callable[[ToDriver], Orders] = lambda _: []

    def receive(self, message: ToDriver, wall_us: int) -> Orders:
        self.heard_.append(message)
        return self.answer(message)

    def tick(self, wall_us: int) -> Orders:
        return []

    def lost(self, level: int, task: int, error: BaseException | None) -> Orders:
        self.lost_.append(((level, task), error))
        return [((0, 0), StopTask())] if error else []


class Stage:
    """Control loop, script and board."""

    def __init__(self) -> None:
        self.board, self.script = Board(), Script()
        self.changed: queue.SimpleQueue[None] = queue.SimpleQueue()
        board: Any = self.board
        script: Any = self.script
        self.loop = ControlLoop(script, board, lambda: 7, lambda: self.changed.put(None), ALL)

    def say(self, where: TaskKey, message: ToDriver | None, until: Callable[[], Any]) -> None:
        """Say something, and wait until it is seen."""
        self.board.said.put((where, message))
        for _ in range(1000):
            if until():
                return
            self.changed.get(timeout=10)
        raise AssertionError("nothing came of it")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.loop.close()


def test_orders_reach_the_tasks(stage: Stage) -> None:
    stage.script.answer = lambda _: [((0, 0), StartTask(1, b"")), ((1, 0), StartTask(1, b""))]
    stage.say((0, 0), TaskReady(0, 0), lambda: len(stage.board.told) == 2)
    assert stage.board.told == [((0, 0), StartTask(1, b"")), ((1, 0), StartTask(1, b""))]
    assert stage.loop.absent() == [(1, 0)]


def test_streams_are_held_back_in_this_incarnation_and_the_next(stage: Stage) -> None:
    two = {"trips": {"a": SourceOffset(0, None, 0, None), "b": SourceOffset(1, None, 0, None)}}
    start = StartTask(1, b"", input=two)
    stage.script.answer = lambda _: [((0, 0), start), ((1, 0), StartTask(1, b""))]
    stage.say((0, 0), TaskReady(0, 0), lambda: len(stage.board.told) == 2)

    stage.loop.hold(["rides"], {"trips": 30.0})
    held = ((0, 0), Hold(["rides"], {"trips": 15.0}))
    assert stage.board.told[2:] == [held]
    stage.say((0, 0), TaskReady(0, 0), lambda: len(stage.board.told) == 6)
    assert stage.board.told[3:] == [((0, 0), start), ((1, 0), StartTask(1, b"")), held]


def test_a_task_that_ends_without_a_word_is_lost_and_named(stage: Stage) -> None:
    stage.say((1, 0), TaskReady(1, 0, "here", 42), lambda: stage.script.heard_)
    stage.say((1, 0), None, lambda: stage.script.lost_)
    ((where, error),) = stage.script.lost_
    assert where == (1, 0)
    assert isinstance(error, TaskLost)
    assert "task 0 of level 1" in str(error)
    assert "process 42 on host here" in str(error)
    assert stage.board.told == [((0, 0), StopTask())]


def test_what_was_heard_of_the_query_before_does_not_count(stage: Stage) -> None:
    stage.board.stale = True
    stage.board.said.put(((1, 0), TaskReady(1, 0, "earlier", 1)))
    for _ in range(3):
        stage.changed.get(timeout=10)
    stage.board.stale = False
    stage.say((1, 0), TaskReady(1, 0, "later", 2), lambda: stage.script.heard_)
    assert stage.script.heard_ == [TaskReady(1, 0, "later", 2)]


def test_a_task_that_has_said_goodbye_is_not_lost(stage: Stage) -> None:
    stage.say((1, 0), TaskReady(1, 0), lambda: stage.script.heard_)
    stage.say((1, 0), TaskEnded(1, 0), lambda: len(stage.script.heard_) == 2)
    stage.board.said.put(((1, 0), None))
    stage.say((0, 0), TaskReady(0, 0), lambda: len(stage.script.heard_) == 3)
    assert stage.script.lost_ == []


def test_what_the_coordinator_raises_ends_the_incarnation_for_all(stage: Stage) -> None:
    def refuse(message: ToDriver) -> Orders:
        raise ZombieWriter("newer")

    stage.script.answer = refuse
    stage.say((0, 0), TaskReady(0, 0), lambda: stage.loop.failed)
    assert isinstance(stage.loop.failed, ZombieWriter)
    assert [where for where, message in stage.board.told if message == StopTask()] == ALL
    stage.loop.open()
    assert stage.loop.failed is None


def test_a_task_that_nobody_expects_is_an_error(stage: Stage) -> None:
    stage.say((0, 2), TaskReady(0, 2), lambda: stage.loop.failed)
    assert isinstance(stage.loop.failed, PipelineError)
    assert "task 2 of level 0 has called" in str(stage.loop.failed)
    assert "pacemaker" in str(stage.loop.failed)
    assert stage.script.heard_ == []


def test_low_watermarks_are_what_all_tasks_have_told_and_never_below_the_last_mark() -> None:
    status: Any = SimpleNamespace(low_watermarks={"A": 10, "B": 10, "C": 10})
    told = [
        TaskStatus(0, 0, 0, {"A": 1}, 0, 0.0),  # what an injector task publishes
        TaskStatus(1, 0, 0, {"A": 30, "C": 5}, 0, 0.0),
        TaskStatus(1, 1, 0, {"A": 20, "C": 40}, 0, 0.0),
        TaskStatus(2, 0, 0, {"B": 50}, 0, 0.0),
    ]
    assert live_low_watermarks(status, told, 2) == {"A": 20, "B": 10, "C": 10}


def test_what_steps_take_is_kept_for_the_status(stage: Stage) -> None:
    stage.say((1, 0), Stepped(1, 0, {"turn": {40: 3}}), lambda: stage.loop.steps.times())
    assert stage.loop.steps.times() == {"level 1, turn": (0.001024,) * 3}
    assert stage.script.heard_ == []


def test_a_mark_reaches_who_is_told_of_it(stage: Stage) -> None:
    stage.script.answer = lambda _: [((0, 0), Mark(3))]
    stage.say((1, 0), TaskReady(1, 0), lambda: stage.board.told)
    assert stage.board.told == [((0, 0), Mark(3))]


def test_at_a_rest_all_are_expected_to_call_again_and_one_that_is_lost_is_named(
    stage: Stage,
) -> None:
    stage.say((0, 0), TaskReady(0, 0, "here", 1), lambda: stage.script.heard_)
    stage.script.answer = lambda _: [((0, 0), RenewTask()), ((1, 0), RenewTask())]
    stage.say((1, 0), TaskReady(1, 0, "here", 2), lambda: len(stage.board.told) == 2)
    assert stage.loop.absent() == ALL
    stage.script.answer = lambda _: []
    stage.say((1, 0), TaskReady(1, 0, "here", 2), lambda: len(stage.script.heard_) == 3)
    assert stage.loop.absent() == [(0, 0)]
    stage.say((0, 0), None, lambda: stage.script.lost_)
    ((where, error),) = stage.script.lost_
    assert where == (0, 0)
    assert "process 1 on host here" in str(error)


def test_tasks_that_stay_are_told_when_no_incarnation_follows(stage: Stage) -> None:
    stage.loop.halt()
    assert stage.board.told == [(where, StopTask()) for where in ALL]


def test_the_tasks_of_a_standby_take_over_and_those_before_are_heard_no_more(stage: Stage) -> None:
    stage.say((0, 0), TaskReady(0, 0, "here", 1), lambda: stage.script.heard_)
    before, after = stage.board, Board()
    before.strangers, after.strangers = 2, 1
    stage.script.answer = lambda _: [((0, 0), StartTask(2, b"")), ((1, 0), StartTask(2, b""))]
    board: Any = after
    ready = [TaskReady(0, 0, "there", 2), TaskReady(1, 0, "there", 3)]
    stage.loop.take_over(board, ready)
    before.said.put(((1, 0), TaskReady(1, 0, "too late", 4)))
    stage.board = after
    stage.say((0, 0), TaskStatus(0, 0, 0, {}, 0, 0.0), lambda: len(stage.script.heard_) == 4)
    assert stage.script.heard_[1:3] == ready
    assert [where for where, _ in stage.script.lost_] == ALL, "of the tasks before"
    assert after.told[:2] == [((0, 0), StartTask(2, b"")), ((1, 0), StartTask(2, b""))]
    assert (before.hung_up, before.closed, after.closed) == (True, True, False)
    assert {where: task.pid for where, task in stage.loop.hosts.items()} == {(0, 0): 2, (1, 0): 3}
    assert stage.loop.failed is None
    assert stage.loop.strangers == 3


def test_a_task_of_the_standby_that_is_lost_after_is_lost(stage: Stage) -> None:
    board: Any = Board()
    stage.loop.take_over(board, [TaskReady(1, 0, "there", 3)])
    stage.board = board
    stage.script.lost_.clear()
    stage.say((1, 0), None, lambda: stage.script.lost_)
    assert "process 3 on host there" in str(stage.script.lost_[0][1])
