"""What hosts a task must know of it: Spark's stage, the runner in one process, the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from millrace.plane.realtime.messages import FromTask, Start, ToTask
from millrace.plane.realtime.task_stats import TaskStats

#: A packet on its way: the number of the task of the next level, and its bytes.
Sent = tuple[int, bytes]


class LiveTask(Protocol):
    """A task that does not end: a host calls it, from one thread, in a loop.

    Whatever it raises ends the session.

    Attributes:
        level: Its level; 0 is an injector task.
        number: Its number in the level.
        said: Messages for the coordinator since the host last took them (and cleared the list).
        wake_us: When it wants a turn though nothing has arrived.
        stats: What it has done in this session, from its start on.
    """

    level: int
    number: int
    said: list[FromTask]
    wake_us: int
    stats: TaskStats

    def start(self, start: Start, wall_us: int) -> Iterator[Sent]:
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
