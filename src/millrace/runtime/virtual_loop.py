"""VirtualTimeLoop: an asyncio loop whose time is what a test says.

Nothing sleeps. When all coroutines wait, the clock jumps to the next instant that one waits for. So
timeouts, pauses and a user's own ``asyncio.sleep`` take no time, and come in the same order in
every run. Only time can be waited for: who opens a socket gets an error.

Source: trio's ``MockClock`` with ``autojump_threshold=0``.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from asyncio import events
from collections.abc import Callable
from typing import Any, Final, NoReturn

from millrace.model.errors import PipelineError

#: No test means to wait for longer, in seconds.
_LONGEST_S: Final = 86_400.0

_ADVICE: Final = (
    "Here, as in the Harness, time is virtual and nothing real can be waited for. Let the test "
    "replace the service: a function that answers after `await asyncio.sleep(0.02)`, say."
)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop with a clock of its own, for call pools in one thread.

    Plain functions that would run in threads run at once, and take no time.

    Args:
        start_s: Where its clock begins, in seconds.

    >>> loop = VirtualTimeLoop()
    >>> loop.run_until_complete(asyncio.sleep(3600))
    >>> loop.time()
    3600.0
    >>> loop.close()
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._limit_s = math.inf
        self._is_idle = False
        self._refusal: PipelineError | None = None
        self._selector_of_time = _TimeSelector(self)
        super().__init__(self._selector_of_time)
        self._selector_of_time.sealed = True  # the loop has registered its own pipe
        # What is due sooner is due now. By default it is a nanosecond, which the float of a time
        # of our days cannot say: the loop would look for ever at what is not quite due.
        self._clock_resolution = 1e-6

    def __del__(self) -> None:
        # Nobody waits for what it holds, so nobody is warned: a Harness need not be closed.
        self.close()

    def time(self) -> float:
        """Return the clock's time, in seconds."""
        return self._now_s

    def advance_to(self, instant_s: float) -> None:
        """Move the clock, and run what becomes due on the way.

        Raises:
            PipelineError: A call waits for something real.
        """
        self.wait(lambda: False, instant_s - self._now_s)

    def wait(self, is_there: Callable[[], bool], wait_s: float | None) -> None:
        """Run until something is there, moving the clock as far as it takes.

        Args:
            is_there: Asked whenever :meth:`notify` is called.
            wait_s: Move the clock no further than so many seconds; None: as far as it takes.

        Raises:
            PipelineError: A call waits for something real.
        """
        self._limit_s = self._now_s + (_LONGEST_S if wait_s is None else max(wait_s, 0.0))
        # A test may itself run in a loop, as cells of a notebook do.
        outer = events._get_running_loop()
        events._set_running_loop(None)
        try:
            while not is_there():
                self._is_idle = False
                self.run_forever()
                self._raise_refusal()
                if self._is_idle:
                    break
        finally:
            events._set_running_loop(outer)
            self._limit_s = math.inf
        if wait_s is None and not is_there():
            raise PipelineError(
                "No call returned within a day of virtual time. Either calls wait for what no "
                "clock brings (an event that nobody sets, another thread), or all attempts fail, "
                f"and a circuit breaker lets nobody give up. {_ADVICE}"
            )

    def notify(self) -> None:
        """Say that something may be there."""
        if self.is_running():
            self.stop()

    def refuse(self, what: str) -> NoReturn:
        """Refuse to wait for something real.

        Raises:
            PipelineError: In any case. Whoever waits for the loop gets it, too.
        """
        self._refusal = PipelineError(f"A call {what}. {_ADVICE}")
        self.notify()
        raise self._refusal

    def passes(self, seconds: float | None) -> None:
        """Move the clock: nothing is left to do before that.

        Args:
            seconds: Until the next instant that is waited for; None if there is none.
        """
        limit_s = self._limit_s
        if seconds is not None and self._now_s + seconds <= limit_s:
            self._now_s += seconds
            return
        if limit_s < math.inf:
            self._now_s = limit_s
        self._is_idle = True
        self.stop()

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    # -- what a loop does by threads, and here at once ---------------------------------------------

    def call_soon_threadsafe(  # type: ignore[override] # the stub's is generic by TypeVarTuple
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> Any:
        """Call soon: there is one thread."""
        return self.call_soon(callback, *arguments, context=context)

    def run_in_executor(  # type: ignore[override] # the stub's is generic by TypeVarTuple
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Call a function now."""
        future = self.create_future()
        try:
            future.set_result(func(*arguments))
        except Exception as error:  # noqa: BLE001 - it is handed on
            future.set_exception(error)
        return future

    # -- what is real ------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Refuse."""
        self.refuse(f"looks up the address of {host}:{port}")

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Refuse."""
        self.refuse(f"connects to {host}:{port}")

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **_: Any
    ) -> Any:
        """Refuse."""
        self.refuse(f"connects to {path}")

    async def create_datagram_endpoint(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        """Refuse."""
        self.refuse("opens a socket")

    async def sock_connect(self, sock: Any, address: Any) -> Any:
        """Refuse."""
        self.refuse(f"connects to {address}")

    async def subprocess_exec(self, protocol_factory: Any, *arguments: Any, **_: Any) -> Any:
        """Refuse."""
        self.refuse(f"starts the program {arguments[0]}")

    async def subprocess_shell(self, protocol_factory: Any, cmd: Any, **_: Any) -> Any:
        """Refuse."""
        self.refuse(f"starts the program {cmd}")


class _TimeSelector(selectors.SelectSelector):
    """Waits by moving a loop's clock, and for no file."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self.sealed = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register the loop's own pipe; refuse all others."""
        if self.sealed:
            self._loop.refuse("waits for a socket or a pipe")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass for which a loop would sleep."""
        if timeout is None or timeout > 0:
            self._loop.passes(timeout)
        return []
