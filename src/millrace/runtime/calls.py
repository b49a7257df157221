"""Calls of a task: which pool makes them, and which key interval gets what came of them.

A process has one pool for each computation that makes calls. A task submits calls when what made
them pending may count: within an epoch at once, in real time when its commit is durable. Where
results of a key keep their order, an outcome waits here for those before it. It is in memory alone:
what is pending is state, and after a failure its calls are made again.

Source: docs/design/2026-11-28-calls.md.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.positions import Positions
from millrace.kernel.bundle import Attempt, Bundle
from millrace.kernel.calls import CallSource, PendingRecords, remember
from millrace.kernel.machine import Effects
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import Call, Outcome, WaitingCall
from millrace.model.errors import InvariantViolation, brief
from millrace.runtime.call_pool import CallPool, PoolLoop

#: Sources wait while so many calls are pending in a task for each that may be in flight.
PENDING_MOST: Final = 8


class CallPools:
    """The pools of a process, each made when it is first used, and closed when nobody has them.

    Args:
        loop: Makes the loop in which calls are made; None: each pool has a thread of its own.
        make: Makes a pool for a computation; by default one for what it declares.
    """

    def __init__(
        self,
        loop: Callable[[], PoolLoop] | None = None,
        make: Callable[[ComputationSpec], CallPool] | None = None,
    ) -> None:
        self._make_loop = loop
        self._make = make or self._declared
        self._pools: dict[str, CallPool] = {}
        self._loops: list[PoolLoop] = []
        weakref.finalize(self, _close, self._pools, self._loops)

    def of(self, spec: ComputationSpec) -> CallPool:
        """Return the pool of a computation."""
        pool = self._pools.get(spec.name)
        if pool is None:
            pool = self._pools[spec.name] = self._make(spec)
        return pool

    def _declared(self, spec: ComputationSpec) -> CallPool:
        one = spec.instance
        assert isinstance(one, AsyncComputation), "it makes calls"
        if self._make_loop is not None and not self._loops:
            self._loops.append(self._make_loop())
        loop = self._loops[0] if self._loops else None
        return CallPool(one.call, one.calls, one.batch, setup=one.setup, loop=loop, name=spec.title)

    def waiting(self) -> list[tuple[str, WaitingCall]]:
        """Return computation -> its call that waits longest, if one does. Any thread may ask."""
        found = [(name, pool.oldest()) for name, pool in list(self._pools.items())]
        return [(name, oldest) for name, oldest in found if oldest is not None]

    def close(self) -> None:
        """Cancel all calls, and end the pools; further ones may be made."""
        _close(self._pools, self._loops)


def _close(pools: dict[str, CallPool], loops: list[PoolLoop]) -> None:
    for pool in pools.values():
        pool.close()
    for loop in loops:
        loop.close()
    pools.clear()
    loops.clear()


class TaskCalls:
    """The calls of one computation in one task.

    Args:
        spec: The computation.
        pool: Makes them.
        again: Intervals in which calls may be pending of which no pool knows.

    Attributes:
        pending: How many were submitted, and were not taken since.
        kept: How many records are pending in rows, those that wait for others too. Records that
            were before the task began count when they are asked for again.
    """

    def __init__(self, spec: ComputationSpec, pool: CallPool, again: Iterable[int] = ()) -> None:
        one = spec.instance
        assert isinstance(one, AsyncComputation), "it makes calls"
        self.pool = pool
        self.pending = self.kept = 0
        self._title = spec.title
        self._most = PENDING_MOST * one.calls.concurrency
        self._in_order = one.calls.order == "key"
        self._again = {*again}
        #: Key row -> names of its pending records, in order; and those, with an outcome too early.
        self._queues: dict[bytes, deque[bytes]] = {}
        self._early: dict[bytes, Outcome] = {}

    def is_full(self, was: bool) -> bool:
        """Return whether so many calls are pending that no more records are to be read for them.

        Args:
            was: Whether it was; then half of the calls must have returned first, so that not every
                outcome changes it.
        """
        return max(self.pending, self.kept) >= (self._most // 2 if was else self._most)

    @property
    def asks_again(self) -> bool:
        """Whether there are intervals whose calls are to be made again."""
        return bool(self._again)

    def submit(self, calls: Iterable[Call]) -> None:
        """Have calls made."""
        calls = [*calls]
        self.pending += len(calls)
        if self._in_order:
            queues = self._queues
            for call in calls:
                source: CallSource = call.source
                queue = queues.get(source.key_row)
                if queue is None:
                    queues[source.key_row] = deque((source.name,))
                else:
                    queue.append(source.name)
        self.pool.submit(calls)

    def take(self, wait_s: float | None = 0.0) -> tuple[dict[int, list[Outcome]], set[int]]:
        """Return interval -> the outcomes that are there, and the intervals to be asked again.

        Args:
            wait_s: So long it waits until one is there; None: as long as it takes.
        """
        again, self._again = self._again, set()
        found: dict[int, list[Outcome]] = {}
        if self.pending:
            completed = self.pool.completed(wait_s)
            if wait_s is None and not completed:
                raise InvariantViolation("calls are pending, and their pool knows none of them")
            released = self._released(completed) if self._in_order else completed
            self.pending -= len(released)
            for outcome in released:
                interval = outcome.call.source.interval
                of_interval = found.get(interval)
                if of_interval is None:
                    found[interval] = [outcome]
                else:
                    of_interval.append(outcome)
        return found, again

    def at_hand(self) -> str:
        """Return the call that has waited longest, in words; "" if none waits. Any thread."""
        oldest = self.pool.oldest()
        if oldest is None:
            return ""
        key = brief(oldest.call.key)
        return f"a call of computation {self._title!r}, key {key} ({oldest})"

    def cancel(self) -> None:
        """Forget all that is not answered: it is asked again by whoever goes on."""
        self.pool.cancel()
        self._queues.clear()
        self._early.clear()
        self.pending = 0

    def _released(self, completed: list[Outcome]) -> list[Outcome]:
        """Return the outcomes whose turn within their keys has come with these."""
        queues, early, released = self._queues, self._early, list[Outcome]()
        for outcome in completed:
            source: CallSource = outcome.call.source
            key_row, queue = source.key_row, queues[source.key_row]
            if queue[0] != source.name:
                early[key_row + source.name] = outcome
                continue
            queue.popleft()
            released.append(outcome)
            while queue and early:
                following = early.pop(key_row + queue[0], None)
                if following is None:
                    break
                queue.popleft()
                released.append(following)
            if not queue:
                del queues[key_row]
        return released


class _Ongoing:
    """The bundles of one interval that commit together.

    Attributes:
        bundle: The first.
        effects: Of all so far.
        pending: What is pending after them.
    """

    __slots__ = ("bundle", "effects", "pending")

    def __init__(self, bundle: Bundle, effects: Effects, pending: PendingRecords) -> None:
        self.bundle = bundle
        self.effects = effects
        self.pending = pending


#: Runs a bundle over the effects of those that it commits with, and adds its own to them.
GoOn = Callable[[Bundle, Effects], Effects]


class CallRounds:
    """Runs bundles of one computation until none of their calls is pending.

    Calls of all intervals are made together, and what has returned is taken at once.

    Args:
        calls: Of the computation in the task.
        go_on: Runs a further bundle of an interval.
    """

    def __init__(self, calls: TaskCalls, go_on: GoOn) -> None:
        self._calls = calls
        self._go_on = go_on
        self._ongoing: dict[int, _Ongoing] = {}

    def begun(self, bundle: Bundle) -> Bundle:
        """Return a bundle, the first of its interval, whose pending calls are kept in memory."""
        return msgspec.structs.replace(bundle, within={})

    def add(self, bundle: Bundle, effects: Effects) -> None:
        """Have the calls of a first bundle made. Its effects become those of all that follow."""
        one = self._ongoing[bundle.interval.id] = _Ongoing(bundle, effects, {})
        self._ask(one, effects)

    def finish(self) -> None:
        """Take outcomes until none is to come.

        Raises:
            UserCodeError: A call has failed, and no stream takes dead letters.
        """
        while self._calls.pending:
            outcomes, _ = self._calls.take(None)
            for interval, some in outcomes.items():
                self.further(interval, some)

    def further(
        self, interval: int, outcomes: Sequence[Outcome] = (), attempt: Attempt | None = None
    ) -> None:
        """Run a further bundle of an interval.

        Args:
            interval: Its id.
            outcomes: Of calls that were pending.
            attempt: At the bundle; None: as at the first.
        """
        one = self._ongoing[interval]
        first, effects = one.bundle, one.effects
        bundle = Bundle(
            first.interval,
            msgspec.structs.replace(first.position, report=effects.report),
            first.attempt if attempt is None else attempt,
            signals=first.signals,
            outcomes=outcomes,
            within=one.pending,
            goes_on=True,
            calls_before=effects.call_count,
        )
        self._ask(one, self._go_on(bundle, effects))

    def _ask(self, one: _Ongoing, effects: Effects) -> None:
        if effects.pending:
            remember(one.pending, effects.pending)
        if effects.calls:
            self._calls.submit(effects.calls)


def calls_of(
    specs: Iterable[ComputationSpec],
    pools: CallPools,
    positions: Positions,
    owned: Mapping[str, range],
) -> dict[str, TaskCalls]:
    """Return computation -> its calls in a task.

    Intervals where a wall-clock timer is pending may have pending calls, as each has one.

    Args:
        specs: Computations of the task that make calls.
        pools: Of the process.
        positions: Where intervals stand.
        owned: Computation -> places in its interval map of the intervals that the task owns.
    """
    found: dict[str, TaskCalls] = {}
    for spec in specs:
        task_calls = owned[spec.name]
        intervals = positions.maps[spec.name].intervals[task_calls.start : task_calls.stop]
        again = [
            interval
            for interval in (one.id for one in intervals)
            if positions.numbers[spec.name].get(interval)
            and positions.of(spec.name, interval).report.wall_timers
        ]
        found[spec.name] = TaskCalls(spec, pools.of(spec), again)
    return found


NO_CALLS: Final[Mapping[str, TaskCalls]] = {}
NO_OUTCOMES: Final[tuple[Mapping[int, Sequence[Outcome]], Collection[int]]] = {}, ()
