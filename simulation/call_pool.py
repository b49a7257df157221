"""A pool of calls that has no threads: what returns when, and what fails, is drawn.

Calls return in any order, some never until others have. One that has failed has been made as often
as its policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

from millrace.kernel.results import CallStats
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import Call, CallAttempt, Outcome, WaitingCall, takes_attempt


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


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    coroutine.close()
    raise AssertionError("a call that is drawn waits for nothing")
