"""Pressure: that sources wait for calls, as soon as they can know that too many are pending.

How many are pending is counted here, from what pools have and what runs of user code keep. A task
that is full says so, the driver listens, and an injector task takes its orders: from then on it
reads nothing that leads there, until the task has room again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millrace.compile.topology import Topology
from millrace.model.async_computation import AsyncComputation
from millrace.runtime.realtime.messages import Mark, StartTask, ToTask
from millrace.runtime.worker_process import WorkerProcess
from simulation.call_pool import AttemptingPool, DrawnPool

if TYPE_CHECKING:
    from millrace.runtime.realtime.coordinator import TaskKey

Alive = Callable[["TaskKey"], bool]


class Pressure:
    """What is known of calls that are pending in the tasks of one query.

    Args:
        topology: The pipeline, in which all computations that make calls are behind all sources.
        pending_most: How many calls may be pending in a task, for each that may be in flight.
    """

    def __init__(self, topology: Topology, pending_most: int) -> None:
        self._most = {
            spec.name: (spec, pending_most * spec.instance.calls.concurrency)
            for spec in topology.computations
            if isinstance(spec.instance, AsyncComputation)
        }
        self._kept: dict[TaskKey, Counter[str]] = {}
        self._full_since: dict[TaskKey, int] = {}
        self._listened: int | None = None
        self._last: set[TaskKey] = set()

    def ordered(self, where: TaskKey, message: ToTask) -> None:
        """Take it that a task has taken an order."""
        if isinstance(message, StartTask):
            self._kept[where] = Counter()
            self._full_since.pop(where, None)
            self._last.discard(where)
        elif isinstance(message, Mark) and message.last:
            # What was begun is read to its end before it.
            self._last.add(where)

    def kept(self, where: TaskKey, computation: str, count: int) -> None:
        """Take how many more records of a computation a task keeps in rows."""
        self._kept[where][computation] += count

    def turned(self, where: TaskKey, runtime: WorkerProcess) -> bool:
        """Return whether a level task is full after a turn, of which it has said nothing yet."""
        is_full = any(self._is_full(where, runtime, name) for name in self._of(where))
        if not is_full:
            self._full_since.pop(where, None)
        return is_full

    def full(self, where: TaskKey, step: int) -> None:
        """Take it that a task is full, and that all that it said before a step is on its way."""
        self._full_since.setdefault(where, step)

    def listened(self, since: int | None) -> None:
        """Take it that the driver has heard all that was said before a step; None: of nobody."""
        self._listened = since

    def __bool__(self) -> bool:
        return bool(self._most)

    def reads(self, where: TaskKey, alive: Alive) -> bool:
        """Return whether an injector task may read, now that it has taken all orders."""
        if where in self._last or self._listened is None:
            return True
        waits = (at for at, full in self._full_since.items() if full <= self._listened)
        return not any(map(alive, waits))

    def _of(self, where: TaskKey) -> Iterable[str]:
        return (name for name, (spec, _) in self._most.items() if spec.level == where[0])

    def _is_full(self, where: TaskKey, runtime: WorkerProcess, name: str) -> bool:
        spec, most = self._most[name]
        pool = runtime.call_pools.of(spec)
        assert isinstance(pool, AttemptingPool | DrawnPool), "they are simulated"
        return max(pool.untaken, self._kept[where][name]) >= most
