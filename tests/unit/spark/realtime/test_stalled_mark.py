"""What is said of a mark that does not come through, on a clock that a test moves."""

from __future__ import annotations

import pytest

from millrace.runtime.realtime.coordinator import TaskKey
from millrace.runtime.realtime.messages import At, StatusQuery, TaskReady, ToTask
from millrace.spark.realtime.liveness import Liveness, StalledMark

HOSTS = {(1, 0): TaskReady(1, 0, "here", 42), (1, 1): TaskReady(1, 1, "here", 43)}


class Stuck:
    """A mark that tasks have not passed, and what they answer."""

    def __init__(self, *awaited: TaskKey) -> None:
        self.now = 100.0
        self.awaited = list(awaited)
        self.asked: list[TaskKey] = []
        self.answers: dict[TaskKey, str] = {}
        self._liveness = Liveness(self._tell, clock=lambda: self.now)
        self._holdup = StalledMark(self._liveness)
        self._tasks = awaited

    def _tell(self, where: TaskKey, message: ToTask) -> None:
        assert isinstance(message, StatusQuery)
        self.asked.append(where)
        if where in self.answers:
            self._liveness.receive(At(*where, self.answers[where], moves=1))

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self._liveness.look(self._tasks)
            self._holdup.look(self.awaited, HOSTS)
            self.now += 1


def test_it_is_said_where_a_task_hangs_and_since_when(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck((2, 0), (1, 1), (1, 0))
    stuck.answers = {
        (1, 0): "",
        (1, 1): "computation 'Counting', key 'tea'",
        (2, 0): "",
    }
    stuck.go_on(60)
    assert not caplog.records
    stuck.go_on(1)
    (said,) = caplog.messages
    assert (
        "task 1 of level 1 (process 43 on host here) is at computation 'Counting', key 'tea', for "
        "55 s at the least; 2 others wait"
    ) in said
    stuck.go_on(60)
    assert "for 115 s at the least" in caplog.messages[1]


def test_a_minute_in_which_the_driver_was_paused_itself_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck = Stuck((1, 0), (1, 1))
    stuck.go_on(5)
    stuck.now += 120
    stuck.go_on(50)
    assert not caplog.records
    stuck.go_on(10)
    assert len(caplog.records) == 1


def test_who_is_at_another_key_each_time_is_not_said_to_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck = Stuck((1, 0))
    for n in range(12):
        stuck.answers[1, 0] = f"computation 'Counting', key {n}"
        stuck.go_on(5)
    stuck.go_on(1)
    (said,) = caplog.messages
    assert "key 11, for 5 s at the least" in said


def test_who_does_not_answer_is_said_not_to(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck((1, 0), (1, 1))
    stuck.answers[1, 1] = ""
    stuck.go_on(61)
    (said,) = caplog.messages
    assert "task 0 of level 1 (process 42 on host here) does not answer" in said


def test_nothing_is_said_while_tasks_pass_marks(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck((1, 0), (1, 1))
    for n in range(40):
        stuck.awaited = [(1, n % 2)]
        stuck.go_on(4)
    stuck.awaited = []
    stuck.go_on(100)
    assert not caplog.records
