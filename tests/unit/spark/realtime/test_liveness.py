"""Tasks that do nothing though they wait for nobody, by a clock that a test moves."""

from __future__ import annotations

import pytest

from millrace.runtime.realtime.coordinator import TaskKey
from millrace.runtime.realtime.messages import At, StatusQuery, TaskStatus, ToTask
from millrace.spark.realtime.liveness import Liveness

ONE, OTHER = (1, 0), (1, 1)


class Tasks:
    """Two tasks, what they answer, and who hangs at which second."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.now = 1000.0
        self.asked: list[TaskKey] = []
        self.answers: dict[TaskKey, At] = {}
        self.turns: set[TaskKey] = set()
        self.liveness = Liveness(self._tell, limit_s, lambda: self.now)
        self.liveness.look([ONE, OTHER])

    def _tell(self, where: TaskKey, message: ToTask) -> None:
        assert message == StatusQuery()
        self.asked.append(where)
        if where in self.answers:
            self.liveness.receive(self.answers[where])

    def go_on(self, seconds: int) -> list[TaskKey]:
        """Let time pass; return who hangs then."""
        for _ in range(seconds):
            for where in self.turns:
                self.liveness.receive(TaskStatus(*where, 0, {}, 0, 0.0))
            self.now += 1
            hung = self.liveness.look([ONE, OTHER])
        return hung


def test_a_task_that_does_not_answer_hangs_after_the_limit() -> None:
    tasks = Tasks(60)
    tasks.turns = {OTHER}
    assert tasks.go_on(59) == []
    assert tasks.go_on(1) == [ONE]
    assert set(tasks.asked) == {ONE}
    said, outside = tasks.liveness.describe(ONE)
    assert "does not answer: its process is stopped, or in native code" in said
    assert not outside


def test_a_task_that_answers_that_it_does_not_move_hangs() -> None:
    tasks = Tasks(60)
    tasks.turns = {OTHER}
    tasks.answers[ONE] = At(*ONE, "its segment", outside=True, moves=3)
    assert tasks.go_on(64) == []
    assert tasks.go_on(1) == [ONE]
    assert tasks.liveness.describe(ONE) == ("is at its segment, for 60 s at the least", True)


@pytest.mark.parametrize("what", ["", "user code"], ids=["waits", "moves"])
def test_a_task_that_waits_or_moves_never_hangs(what: str) -> None:
    tasks = Tasks(60)
    tasks.turns = {OTHER}
    for n in range(100):
        tasks.answers[ONE] = At(*ONE, what, moves=n)
        assert tasks.go_on(5) == []


def test_tasks_that_have_their_turns_are_not_asked() -> None:
    tasks = Tasks()
    tasks.turns = {ONE, OTHER}
    assert tasks.go_on(300) == []
    assert tasks.asked == []


def test_a_pause_of_the_driver_or_of_the_machine_is_no_hang_of_a_task() -> None:
    tasks = Tasks(60)
    tasks.go_on(30)
    tasks.now += 3600
    assert tasks.go_on(1) == []
    # And nobody is forgiven for it: time goes on from there.
    assert tasks.go_on(28) == []
    assert tasks.go_on(1) == [ONE, OTHER]


def test_who_comes_again_begins_anew() -> None:
    tasks = Tasks(60)
    tasks.go_on(59)
    tasks.liveness.look([])
    tasks.liveness.look([ONE, OTHER])
    assert tasks.go_on(59) == []
    assert tasks.go_on(1) == [ONE, OTHER]


def test_of_a_short_limit_a_task_is_asked_four_times_within_it() -> None:
    tasks = Tasks(8)
    tasks.turns = {OTHER}
    assert tasks.go_on(8) == [ONE]
    assert len(tasks.asked) == 4


def test_without_a_limit_no_task_hangs_and_it_is_known_what_it_does() -> None:
    tasks = Tasks(float("inf"))
    tasks.turns = {OTHER}
    tasks.answers[ONE] = At(*ONE, "user code", moves=1)
    assert tasks.go_on(10_000) == []
    assert tasks.liveness.describe(ONE)[0] == "is at user code, for 9995 s at the least"
    assert tasks.liveness.describe(OTHER) == ("", False)
