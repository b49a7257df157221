"""Pools of calls that have no threads: what returns when, and what fails, is drawn.

Calls return in any order, some never until others have. In a :class:`DrawnPool` one that has failed
has been made as often as its policy allows. An :class:`AttemptingPool` makes each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, Final, TypedDict

from millrace.kernel.results import CallStats
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import Call, CallAttempt, Outcome, WaitingCall, takes_attempt
from millrace.runtime.call_pool import CallPool
from millrace.runtime.virtual_loop import VirtualTimeLoop


class _Attempted(TypedDict):
    timeout: str
    retries: int
    backoff: str
    max_backoff: str


#: How calls are made whose attempts are simulated.
ATTEMPTED: Final[_Attempted] = {
    "timeout": "1 s", "retries": 5, "backoff": "100 ms", "max_backoff": "500 ms",
}  # fmt: skip
#: At most so many attempts of a call fail by themselves.
_FAILING: Final = 2
#: The service is down so often in the life of a pool with a circuit breaker, for so many attempts.
#: A call has not failed for it: at most one attempt of each outage counts as a retry.
_OUTAGES, _OUTAGE = 3, 30


class DrawnPool:
    """The pool of one computation; see :class:`~millrace.runtime.calls.Pool`.

    Args:
        computation: Whose calls are made.
        random: Draws which return; None: always one, in the order of their ids.
        made: Called with each call that is made.
        idle: The chance that none returns when asked.
    """

    def __init__(
        self,
        computation: AsyncComputation,
        random: Random | None,
        made: Callable[[Call], None] | None = None,
        *,
        idle: float = 0.4,
    ) -> None:
        self._computation = computation
        self._random = random
        self._made = made
        self._idle = idle
        self.pending: list[Call] = []

    @property
    def untaken(self) -> int:
        """How many calls it has whose outcomes nobody has taken."""
        return len(self.pending)

    def submit(self, calls: Iterable[Call]) -> None:
        """Take calls to make."""
        for call in calls:
            if self._made is not None:
                self._made(call)
            self.pending.append(call)

    def completed(self, wait_s: float | None = 0.0) -> list[Outcome]:
        """Return the outcomes of some calls, in any order; of at least one if it is to wait."""
        count, random = len(self.pending), self._random
        if random is None:
            self.pending.sort(key=lambda call: call.id)
            return [self._outcome(self.pending.pop(0))] if count else []
        if not count or (wait_s is not None and random.random() < self._idle):
            return []
        random.shuffle(self.pending)
        count = random.randint(1, count)
        returning, self.pending = self.pending[:count], self.pending[count:]
        return [self._outcome(call) for call in returning]

    def wake(self, callback: Callable[[], None]) -> None:
        """Take what is called in another thread: there is none."""

    def cancel(self) -> None:
        """Forget all calls."""
        self.pending.clear()

    def oldest(self) -> WaitingCall | None:
        """Return a call that waits."""
        return WaitingCall(self.pending[0], 0, 1, None) if self.pending else None

    def take_stats(self) -> CallStats:
        """Return that nothing is known."""
        return CallStats()

    def close(self) -> None:
        """Forget all calls."""
        self.pending.clear()

    def _outcome(self, call: Call) -> Outcome:
        attempt = CallAttempt(call.id.hex(), call.key, 1)
        function = self._computation.call
        more = (attempt,) if takes_attempt(function) else ()
        try:
            response = function(call.request, *more)
            if isinstance(response, Coroutine):
                response = _run(response)
        except Exception as error:  # noqa: BLE001  it is the outcome
            return Outcome(call, None, error, 1, 0)
        return Outcome(call, response, None, 1, 0)


class AttemptingPool:
    """A pool as in production, in virtual time, before a service that is down now and then.

    What becomes of an attempt follows from the id of its call: fewer fail than are retried. With
    a circuit breaker, the service is down for longer, too.

    Args:
        computation: Whose calls are made.
        random: Draws how much time passes; None: one call returns after the other, in the order of
            their ids.
        overloads: Takes in words where more calls are in flight than may be.
        idle: The chance that no time passes when asked; None: as that is drawn.

    Attributes:
        untaken: How many calls it has whose outcomes nobody has taken.
    """

    def __init__(
        self,
        computation: AsyncComputation,
        random: Random | None,
        overloads: list[str],
        *,
        idle: float | None = None,
    ) -> None:
        self._computation = computation
        self._random = random
        self._overloads = overloads
        self._idle = idle
        self._in_flight = self.untaken = 0
        self._loop = VirtualTimeLoop()
        self._pool = CallPool(
            self._served,
            computation.calls,
            loop=self._loop,
            jitter=(lambda: 0.5) if random is None else random.random,
        )
        self._outages = _OUTAGES if computation.calls.breaker is not None else 0
        self._down = 0
        # Where they return in order: ids of the calls that have not, and outcomes that are there.
        self._pending: set[bytes] = set()
        self._there: dict[bytes, Outcome] = {}

    async def _served(self, request: Any, attempt: CallAttempt) -> Any:
        self._in_flight += 1
        most = self._computation.calls.concurrency
        if self._in_flight > most:
            self._overloads.append(f"{self._in_flight} calls are in flight, and not {most} at most")
        try:
            return await self._answered(request, attempt)
        finally:
            self._in_flight -= 1

    async def _answered(self, request: Any, attempt: CallAttempt) -> Any:
        fate = bytes.fromhex(attempt.id)
        if not self._down and self._outages and attempt.attempt == 1 and fate[6] < 32:
            self._outages -= 1
            self._down = _OUTAGE
        if self._down:
            self._down -= 1
            raise ConnectionError("the service is down")
        if attempt.attempt <= fate[0] % (1 + _FAILING):
            how = fate[attempt.attempt] % 3
            # It is down at once, after a while, or says nothing for longer than anybody waits.
            await asyncio.sleep((0.0, 0.3, 60.0)[how])
            raise ConnectionError("the service is down")
        await asyncio.sleep(fate[5] / 1000)
        answer = self._computation.call(request)
        return await answer if isinstance(answer, Coroutine) else answer

    def submit(self, calls: Iterable[Call]) -> None:
        """Take calls to make."""
        calls = [*calls]
        self.untaken += len(calls)
        self._pending |= {call.id for call in calls}
        self._pool.submit(calls)

    def completed(self, wait_s: float | None = 0.0) -> list[Outcome]:
        """Return outcomes that are there after a time that is drawn, or the next in order."""
        if self._random is not None:
            if wait_s is not None:
                if self._idle is None:
                    wait_s = self._random.choice((0.0, 0.0, 0.05, 1.0))
                elif self._random.random() < self._idle:
                    return []
                else:
                    wait_s = self._random.choice((0.05, 1.0, 4.0))
            outcomes = self._pool.completed(wait_s)
            self.untaken -= len(outcomes)
            return outcomes
        if not self._pending:
            return []
        first = min(self._pending)
        while first not in self._there:
            self._there |= {one.call.id: one for one in self._pool.completed(None)}
        self._pending.discard(first)
        self.untaken -= 1
        return [self._there.pop(first)]

    def wake(self, callback: Callable[[], None]) -> None:
        """Take what is called when outcomes are there: who has calls pending asks anyway."""

    def cancel(self) -> None:
        """Forget all calls."""
        self._pending.clear()
        self._there.clear()
        self.untaken = 0
        self._pool.cancel()

    def oldest(self) -> WaitingCall | None:
        """Return a call that waits."""
        return self._pool.oldest()

    def take_stats(self) -> CallStats:
        """Return that nothing is known."""
        return CallStats()

    def close(self) -> None:
        """Forget all calls, and end."""
        self._pool.close()
        self._loop.close()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    coroutine.close()
    raise AssertionError("a call that is drawn waits for nothing")
