"""What hosts a task must know of it: Spark's stage, the runner in one process, the simulator.

A live task counts what it does in its turns, and sends that to the coordinator now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from millrace.model.time import MIN_TIMESTAMP, is_over
from millrace.runtime.realtime.messages import FromTask, StartTask, TaskStatus, ToTask

#: A status is sent so often.
_EVERY_US = 500_000


class TaskStats:
    """What one task has done in one incarnation.

    Args:
        level: The task's level.
        task: Its number.

    Attributes:
        records: Records that it has done.
        keys: Keys that they were of, counted in each bundle.
        groups: Groups of commits that it has appended.
        busy_s: Seconds in turns.
        waited_s: Seconds in turns, besides, in which it waited for input from outside.
        waited_cpu_s: Of its CPU time.
    """

    def __init__(self, level: int, task: int) -> None:
        self._level = level
        self._task = task
        self._sent_us = MIN_TIMESTAMP
        self.records = 0
        self.keys = 0
        self.groups = 0
        self.busy_s = 0.0
        self.waited_s = 0.0
        self.waited_cpu_s = 0.0

    def due(self, wall_us: int) -> bool:
        """Return whether the coordinator is to be sent a status now."""
        return is_over(_EVERY_US, self._sent_us, wall_us)

    def status(self, wall_us: int, inputs: Mapping[str, int]) -> TaskStatus:
        """Return what is sent to the coordinator now.

        Args:
            wall_us: What time it is.
            inputs: Computation, or injected stream at level 0, -> its low watermark in the task.
        """
        self._sent_us = wall_us
        return TaskStatus(
            self._level, self._task, self.records, dict(inputs), self.groups, self.busy_s
        )


def silent() -> None:
    """Do nothing: whoever hosts the task gives it turns anyway."""


#: A packet on its way: the number of the task of the next level, and its bytes.
Sent = tuple[int, bytes]


class LiveTask(Protocol):
    """A task that does not end: a host calls it, from one thread, in a loop.

    Whatever it raises ends the incarnation.

    Attributes:
        level: Its level; 0 is an injector task.
        number: Its number in the level.
        outgoing: Messages for the coordinator since the host last took them (and cleared the list).
        wake_us: When it wants a turn though nothing has arrived.
        stats: What it has done in this incarnation, from its start on.
        ring: Called, in any thread, when the task wants a turn at once. The host sets it.
        calls_pending: How many calls of its computations have no outcome.
    """

    level: int
    number: int
    outgoing: list[FromTask]
    wake_us: int
    stats: TaskStats
    ring: Callable[[], None]

    @property
    def calls_pending(self) -> int:
        """See above."""
        ...

    def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
        """Take up where the task stood; yield what has to be sent again."""
        ...

    def tell(self, message: ToTask) -> None:
        """Take a message of the coordinator."""
        ...

    def receive(self, packets: Iterable[bytes]) -> None:
        """Take packets that arrived, in the order of their arrival. Level tasks only."""
        ...

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        """Do what there is to do; yield what leaves, when it may leave.

        Args:
            wall_us: What time it is.
            wait_s: How long an injector task may wait for input.
        """
        ...

    def after_turn(self) -> Iterator[Sent]:
        """Do what is left of a turn when all that it yielded has left; yield what leaves then."""
        ...

    def at_hand(self) -> str:
        """Return what it is in the middle of, in words; "" if it waits for others. Any thread."""
        ...

    def is_outside(self) -> bool:
        """Return whether that is up to what is outside: disk, sink or source. Any thread."""
        ...

    def close(self) -> None:
        """Give files and connections back. The task is not called again."""
        ...
