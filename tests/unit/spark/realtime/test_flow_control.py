"""How much a task takes at once: a model of tasks in a row, by what user code takes of a record."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from millrace.spark.realtime.flow_control import BYTES_MOST, FlowControl, TurnBudget

#: Packets between two tasks, after which the first waits; the most bytes and rows of one.
PACKETS, PACKET_BYTES, PACKET_ROWS = 12, 960 << 10, 1 << 15
#: What a turn takes beside user code, and a pause of the injectors.
TURN_S, PAUSE_S = 0.001, 0.002


@dataclass
class Task:
    """A task that works on what waits in front of it, and sends as much on.

    Attributes:
        record_s: What its code takes of a record.
        way: Records in each of the packets on their way to it.
        front: Likewise of those that wait in front of it.
        at_hand: Records of its turn.
        gone: Those of them that are on their way to the next.
        began: When that was.
        worked: When it has been worked on, and can be sent.
    """

    record_s: float
    may_wait: FlowControl = field(default_factory=lambda: FlowControl.of_bytes(BYTES_MOST))
    way: list[int] = field(default_factory=list)
    front: list[int] = field(default_factory=list)
    at_hand: int = 0
    gone: int = 0
    began: float = 0.0
    worked: float = 0.0
    done: int = 0

    def ahead(self) -> int:
        return sum(self.way) + sum(self.front) + self.at_hand - self.gone


class Row:
    """An injector task that always has more, and level tasks in a row."""

    def __init__(self, *records_s: float, size: int = 80, keys: int = 1_000_000) -> None:
        self.size, self.keys = size, keys
        self.levels = [Task(record_s) for record_s in records_s]
        self.rows = FlowControl.of_rows()
        self.now = 0.0
        self.injector = Task(1e-6)

    def run(self, seconds: float) -> float:
        """Go on for so long; return how many seconds of work there were on the way, at most."""
        until, worst = self.now + seconds, 0.0
        while self.now < until:
            while self._step():
                pass
            worst = max(worst, self._behind_s())
            busy = [one.worked for one in [self.injector, *self.levels] if one.at_hand]
            self.now = min(
                (at for at in [*busy, self.injector.began] if at > self.now + 1e-9),
                default=self.now + TURN_S,
            )
        return worst

    def _behind_s(self) -> float:
        """Return how long the slowest needs for all that is ahead of it."""
        ahead, behind = self.injector.ahead(), 0.0
        for level in self.levels:
            ahead += level.ahead()
            behind = max(behind, ahead * level.record_s)
        return behind

    def _step(self) -> bool:
        """Do what can be done now; return whether there was something."""
        moved = False
        for task, after in zip(self.levels, [*self.levels[1:], None], strict=True):
            while task.way and sum(task.front) * self.size < task.may_wait.amount:
                task.front.append(task.way.pop(0))
                moved = True
            if self._sent(task, after):
                turn = self._turn(task, sends=after is not None)
                task.may_wait.spent(task.at_hand * self.size, turn)
                task.done += task.at_hand
                task.at_hand, task.gone, moved = 0, 0, True
            if not task.at_hand and task.front:
                task.at_hand, moved = sum(task.front), True
                task.front.clear()
                task.began = self.now
                task.worked = self.now + TURN_S + task.at_hand * task.record_s
        task = self.injector
        if self._sent(task, self.levels[0]):
            turn = self._turn(task, sends=True)
            self.rows.spent(turn.records, turn)
            task.at_hand, task.gone, task.began, moved = 0, 0, self.now + PAUSE_S, True
        if not task.at_hand and self.now >= task.began:
            task.at_hand, task.began, moved = self.rows.amount, self.now, True
            task.worked = self.now + TURN_S / 2 + task.at_hand * task.record_s
        return moved

    def _sent(self, task: Task, after: Task | None) -> bool:
        if not task.at_hand or self.now < task.worked - 1e-9:
            return False
        if after is not None:
            while task.gone < task.at_hand:
                if len(after.way) >= PACKETS:
                    return False
                after.way.append(
                    min(PACKET_BYTES // self.size, PACKET_ROWS, task.at_hand - task.gone)
                )
                task.gone += after.way[-1]
        return True

    def _turn(self, task: Task, *, sends: bool) -> TurnBudget:
        waited_s = self.now - task.worked if sends else None
        keys = 0 if task is self.injector else min(self.keys, task.at_hand)
        return TurnBudget(task.at_hand, self.now - task.began, waited_s, self.now, keys)


@pytest.mark.parametrize("keys", [1_000, 1_000_000])
@pytest.mark.parametrize("size", [14, 28, 80])
@pytest.mark.parametrize(
    ("records_s", "first_s", "then_s"),
    [
        ((5e-6,), 9, 9),  # 5 us of a record: nothing but Millrace
        ((1e-4,), 20, 15),
        ((1e-3,), 10, 10),  # a call to a database
        ((1e-2,), 30, 10),  # a call to a model
        ((5e-6, 1e-5), 15, 15),
        ((5e-6, 1e-3), 20, 15),
        ((1e-3, 5e-6), 10, 10),
    ],
)
def test_what_is_on_its_way_is_soon_done_whatever_a_record_takes(
    records_s: tuple[float, ...], first_s: float, then_s: float, size: int, keys: int
) -> None:
    """A mark that is made now passes after what is ahead of it, from the beginning on."""
    row = Row(*records_s, size=size, keys=keys)
    assert row.run(60) < first_s
    assert row.run(60) < then_s


@pytest.mark.parametrize("record_s", [5e-6, 1e-4, 1e-3])
def test_the_slowest_task_is_never_short_of_work(record_s: float) -> None:
    row = Row(record_s)
    row.run(20)
    before = row.levels[0].done
    row.run(20)
    assert row.levels[0].done - before > 0.95 * 20 / record_s


def test_quick_code_gets_large_turns_within_seconds() -> None:
    row = Row(5e-6)
    row.run(3)
    assert row.rows.amount > 10_000


def test_code_that_becomes_slow_is_noticed() -> None:
    row = Row(2e-4)
    row.run(20)
    row.levels[0].record_s = 2e-3
    row.run(120)  # what was on its way when it did has to be done
    assert row.run(60) < 10


def after_turns(allowance: FlowControl, turns: int, keys: int) -> int:
    """Have turns of 28 bytes a record, each over all there may be; return the allowance in MiB."""
    for n in range(turns):
        records = allowance.amount // 28
        turn = TurnBudget(records, records * 2e-6, None, float(n), min(keys, records))
        allowance.spent(allowance.amount, turn)
    return allowance.amount >> 20


def test_turns_grow_until_they_have_several_records_of_each_key() -> None:
    assert after_turns(FlowControl.of_bytes(BYTES_MOST), 60, keys=1_000) == 2
    assert 6 <= after_turns(FlowControl.of_bytes(BYTES_MOST), 60, keys=30_000) <= 8
    assert after_turns(FlowControl.of_bytes(BYTES_MOST), 60, keys=1_000_000) > 25


def test_turns_become_smaller_again_with_fewer_keys_but_not_where_little_comes() -> None:
    allowance = FlowControl.of_bytes(BYTES_MOST)
    large = after_turns(allowance, 60, keys=1_000_000)
    for n in range(20):
        allowance.spent(500, TurnBudget(17, 0.001, None, float(n), 1))
    assert allowance.amount >> 20 == large
    assert after_turns(allowance, 20, keys=1_000) == 2
