"""The plane in one process: every task and the coordinator, turn by turn, by whoever asks.

It is the other host of the tasks besides Spark: for tests, and as an oracle. It has no clock and no
threads; which task has a turn, and how much of what was sent to it arrives by then, is the caller's
choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from millrace.runtime.realtime.coordinator import Coordinator, Orders, TaskKey
from millrace.runtime.realtime.messages import RenewTask, StartTask, StopTask, TaskReady
from millrace.runtime.realtime.task import LiveTask, Sent


class LocalPlane:
    """Hosts the tasks of one run.

    Args:
        coordinator: Of the run.
        depth: Number of levels.
        tasks: Tasks a level.
        reader: Makes the injector task of a number.
        level: Makes the task of a level and number.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        depth: int,
        tasks: int,
        *,
        reader: Callable[[int], LiveTask],
        level: Callable[[int, int], LiveTask],
    ) -> None:
        self._reader = reader
        self._level = level
        self._coordinator = coordinator
        self._where = [(level, n) for level in range(depth + 1) for n in range(tasks)]
        self._depth = depth
        self._tasks: dict[TaskKey, LiveTask] = {}
        self._arrived: dict[TaskKey, deque[bytes]] = {}

    @property
    def running(self) -> bool:
        """Whether an incarnation runs."""
        return self._coordinator.incarnation is not None

    def boot(self, wall_us: int) -> None:
        """Begin an incarnation, with tasks that know nothing."""
        self.crash()
        for where in self._where:
            self._seat(where)
            self._arrived[where] = deque()
        for where in self._where:
            self._carry(self._coordinator.receive(TaskReady(*where), wall_us), wall_us)

    def crash(self) -> None:
        """Take all tasks away, and all that was on its way."""
        tasks, self._tasks, self._arrived = self._tasks, {}, {}
        for task in tasks.values():
            task.close()
        for where in tasks:
            self._coordinator.lost(*where, ConnectionError("crash"))

    def turn(self, where: TaskKey, wall_us: int, most: int | None = None) -> bool:
        """Let a task have a turn; return whether anything arrived, left or was said.

        Args:
            where: The task.
            wall_us: What time it is.
            most: How many packets arrive by then; by default all.
        """
        task, queue = self._tasks[where], self._arrived[where]
        count = len(queue) if most is None else min(most, len(queue))
        task.receive([queue.popleft() for _ in range(count)])
        sent = self._send(where, task.turn(wall_us, 0.0)) + self._send(where, task.after_turn())
        messages, task.outgoing = task.outgoing, []
        for message in messages:
            self._carry(self._coordinator.receive(message, wall_us), wall_us)
        return bool(count or sent or messages)

    def tick(self, wall_us: int) -> None:
        """Let the coordinator look at the clock."""
        self._carry(self._coordinator.tick(wall_us), wall_us)

    def settle(self, wall_us: int) -> None:
        """Let all tasks have turns until nothing moves."""
        moved = True
        while moved and self.running:
            moved = False
            for where in self._where:
                if self.running:
                    moved |= self.turn(where, wall_us)

    def mark(self, wall_us: int) -> None:
        """Have a mark made, and let it pass everywhere."""
        self._coordinator.mark_soon()
        self.tick(wall_us)
        self.settle(wall_us)

    def end(self, wall_us: int, *, draining: bool = False) -> None:
        """Have the last mark made, and let it pass everywhere."""
        self._coordinator.end(draining=draining)
        self.tick(wall_us)
        self.settle(wall_us)

    def _seat(self, where: TaskKey) -> None:
        """Let a task that knows nothing take a place."""
        level, n = where
        self._tasks[where] = self._level(level, n) if level else self._reader(n)

    def _send(self, where: TaskKey, sent: Iterator[Sent]) -> int:
        count = 0
        for pid, packet in sent:
            self._arrived[where[0] + 1, pid].append(packet)
            count += 1
        return count

    def _carry(self, orders: Orders, wall_us: int) -> None:
        for where, message in orders:
            if isinstance(message, StopTask) or where not in self._tasks:
                continue
            if isinstance(message, StartTask):
                self._send(where, self._tasks[where].start(message, wall_us))
            elif isinstance(message, RenewTask):
                self._tasks[where].close()
                self._seat(where)
                self._carry(self._coordinator.receive(TaskReady(*where), wall_us), wall_us)
            else:
                self._tasks[where].tell(message)
