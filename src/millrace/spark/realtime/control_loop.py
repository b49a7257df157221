"""The control loop: one thread in the driver between the coordinator and its tasks.

What tasks say and the clock go in, the coordinator's orders go out. Everything that reads or writes
the checkpoint for the coordinator happens in this thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import TypeVar

from millrace.model.errors import MillraceError, PipelineError
from millrace.runtime.realtime.coordinator import Coordinator, Orders, TaskKey
from millrace.runtime.realtime.messages import (
    At,
    Hold,
    RenewTask,
    StartTask,
    Stepped,
    StopTask,
    TaskEnded,
    TaskReady,
    ToDriver,
)
from millrace.spark.realtime.control_connection import Address, Switchboard
from millrace.spark.realtime.latency import StepsSeen
from millrace.spark.realtime.liveness import Liveness, StalledMark, task_hung

#: How often the clock is looked at.
_TICK_S = 0.05

_Seen = TypeVar("_Seen")


class TaskLost(MillraceError):
    """A task has ended without a word: its process was killed, or its host is gone."""


class ControlLoop:
    """Runs a coordinator.

    Args:
        coordinator: Of the run; called from one thread at a time.
        board: Where tasks call.
        clock: Returns wall-clock microseconds since 1970.
        changed: Called after whatever may have changed something.
        where: All tasks.
        hang_s: How long a task may do nothing, though it waits for nobody.

    Attributes:
        steps: What tasks have told of how long records' steps take.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        board: Switchboard,
        clock: Callable[[], int],
        changed: Callable[[], None],
        where: list[TaskKey],
        hang_s: float = inf,
    ) -> None:
        self._coordinator = coordinator
        self._board = board
        self._clock = clock
        self._changed = changed
        self._where = where
        self._expected = frozenset(where)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._hosts: dict[TaskKey, TaskReady] = {}
        self._called: set[TaskKey] = set()
        self._liveness = Liveness(lambda where, message: self._board.tell(where, message), hang_s)
        self._stalled_mark = StalledMark(self._liveness)
        self._held: tuple[list[str], dict[str, float]] = ([], {})
        self._read: Counter[str] = Counter()
        self._processes: dict[TaskKey, dict[str, list[str]]] = {}
        self.steps = StepsSeen()
        self._closed = False
        self._strangers = 0
        # What tasks that are taken over had said before.
        self._early: list[tuple[TaskKey, ToDriver | None]] = []
        self._thread = threading.Thread(target=self._run, name="millrace-coordinator", daemon=True)
        self._thread.start()

    def open(self) -> Address:
        """Expect the tasks of a new query, and forget how the one before failed."""
        with self._lock:
            address = self._board.open()
            self._forget()
        return address

    def take_over(self, board: Switchboard, ready: Iterable[TaskReady]) -> None:
        """Go on with the tasks of another query, and hang up on those of the one that failed.

        Args:
            board: Where they have called; it belongs to this from now on.
            ready: What they said.
        """
        with self._lock:
            self._board.hang_up()
            self._board.wake()
            self._strangers += self._board.strangers
            self._board = board
            self._forget()
            self._early += [((message.level, message.task), message) for message in ready]

    def _forget(self) -> None:
        """Forget the query before, of which nothing more is heard, and how it failed."""
        self._error = None
        self._hosts.clear()
        self._called.clear()
        for level, task in self._where:
            self._coordinator.lost(level, task, TaskLost("the query was started again"))
        self._coordinator.failed = None

    @property
    def strangers(self) -> int:
        """How many connections did not prove that they are of this run's tasks."""
        return self._strangers + self._board.strangers

    @property
    def failed(self) -> BaseException | None:
        """Why the incarnation, or the attempt to begin one, ended; None if it did not."""
        return self._error or self._coordinator.failed

    @property
    def incarnation(self) -> int | None:
        """Number of the incarnation that runs."""
        return self._coordinator.incarnation

    @property
    def ended(self) -> bool:
        """Whether the last mark is complete, and the tasks know."""
        if not self._coordinator.ended:
            return False
        with self._lock:
            return True

    @property
    def hosts(self) -> dict[TaskKey, TaskReady]:
        """Task -> where it runs, of those that have called and are there."""
        return dict(self._hosts)

    def absent(self) -> list[TaskKey]:
        """Return the tasks that have not called since the query was started, or a rest began.

        Those that were there before the rest are left out where a limit ends them if they hang.
        """
        watched = () if self._liveness.limit_s == inf else self._hosts.keys()
        return [
            where for where in self._where if where not in self._called and where not in watched
        ]

    def mark_soon(self) -> None:
        """Have a mark made without waiting for its time."""
        with self._lock:
            self._coordinator.mark_soon()
        self._board.wake()

    def end(self, *, draining: bool = False) -> None:
        """Have a last mark made."""
        with self._lock:
            self._coordinator.end(draining=draining)
        self._board.wake()

    def rest(self) -> None:
        """Have a last mark made, after which all tasks stay, and the run goes on."""
        with self._lock:
            self._coordinator.rest()
        self._board.wake()

    def go_on(self) -> None:
        """Let another incarnation begin, once all tasks have called again."""
        with self._lock:
            self._coordinator.go_on()
        self._board.wake()

    def halt(self) -> None:
        """Tell all tasks that no incarnation follows, and that Spark is about to end them."""
        for where in self._where:
            self._board.tell(where, StopTask())

    def look(self, at: Callable[[], _Seen]) -> _Seen:
        """Return what is seen while no mark completes."""
        with self._lock:
            return at()

    def hold(self, paused: list[str], rates: dict[str, float]) -> None:
        """Have streams held back, in this incarnation and in those to come.

        Args:
            paused: Of them nothing is read.
            rates: Injected stream -> records a second, of all its processes together.
        """
        with self._lock:
            self._held = paused, rates
            if self._coordinator.incarnation is not None:
                self._tell_held()
        self._board.wake()

    def _tell_held(self) -> None:
        paused, rates = self._held
        of_one = {stream: rate / max(1, self._read[stream]) for stream, rate in rates.items()}
        for where in self._where:
            if where[0] == 0:
                self._board.tell(where, Hold(paused, of_one))

    def close(self) -> None:
        """Hang up on all tasks."""
        self._closed = True
        self._board.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        self._board.close()

    def _run(self) -> None:
        board = self._board
        while not self._closed:
            board = self._board
            heard = board.listen(0.0 if self._early else _TICK_S)
            with self._lock:
                # The query has perhaps been started again between the two: that closes this lock.
                if board is not self._board:
                    board.close()
                    heard = []
                elif board.stale:
                    heard = []
                early, self._early = self._early, []
                for where, message in (*early, *heard):
                    self._carry(partial(self._hear, where, message))
                self._carry(lambda: self._coordinator.tick(self._clock()))
                if hung := self._liveness.look(self._watched()):
                    self._carry(partial(self._give_up, hung))
                self._stalled_mark.look(self._coordinator.awaited, self._hosts)
            self._changed()
        if board is not self._board:
            board.close()

    def _watched(self) -> list[TaskKey]:
        """Return the tasks that have something to do: an incarnation, or to close at a rest."""
        in_incarnation = self._coordinator.incarnation is not None
        return [where for where in self._hosts if in_incarnation or where not in self._called]

    def _give_up(self, hung: Sequence[TaskKey]) -> Orders:
        """End an incarnation in which tasks hang."""
        first = hung[0]
        has = self._coordinator.owned(*first) if first[0] else self._processes.get(first, {})
        error = task_hung(hung, self._hosts, self._liveness, has)
        for where in hung:
            self._gone(where)
        return self._coordinator.lost(*first, error)

    def _hear(self, where: TaskKey, message: ToDriver | None) -> Orders:
        if message is not None:
            if where not in self._expected:
                raise PipelineError(
                    f"task {where[1]} of level {where[0]} has called, and there are tasks 0 to "
                    f"{self._where[-1][1]}. Has the topic of pacemaker= more partitions than there "
                    "are tasks? Give it as many."
                )
            self._liveness.receive(message)
            if isinstance(message, At):
                return []
            if isinstance(message, Stepped):
                self.steps.receive(message)
                return []
            if isinstance(message, TaskReady):
                self._hosts[where] = message
                self._called.add(where)
            elif isinstance(message, TaskEnded):
                self._gone(where)
            return self._coordinator.receive(message, self._clock())
        host = self._gone(where)
        if host is None:
            return []  # it has said goodbye
        return self._coordinator.lost(
            *where,
            TaskLost(
                f"task {where[1]} of level {where[0]} has ended without a word: process {host.pid} "
                f"on host {host.host} was killed or has crashed, or the host is gone."
            ),
        )

    def _gone(self, where: TaskKey) -> TaskReady | None:
        self._called.discard(where)
        return self._hosts.pop(where, None)

    def _carry(self, step: Callable[[], Orders]) -> None:
        """Send what a step of the coordinator orders; an error of the step ends the incarnation."""
        try:
            orders = step()
        except BaseException as error:  # noqa: BLE001  whatever it was, the run is told
            self._error = self._error or error
            self._coordinator.lost(*self._where[0], error)
            orders = [(where, StopTask()) for where in self._where]
        for where, message in orders:
            if isinstance(message, RenewTask):
                self._called.discard(where)
            if isinstance(message, StartTask):
                self._processes[where] = {
                    name: sorted(processes) for name, processes in message.input.items()
                }
            self._board.tell(where, message)
        starts = [message for _, message in orders if isinstance(message, StartTask)]
        if starts:
            self._read = Counter()
            for start in starts:
                self._read.update(
                    {stream: len(processes) for stream, processes in start.input.items()}
                )
            if any(self._held):
                self._tell_held()
