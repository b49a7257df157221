"""CallPool: makes the calls of one computation in one process.

A call is submitted once and has one outcome: whatever fails, is retried or takes too long between.
Coroutines run in an asyncio loop, plain functions in threads beside it. All that decides happens in
the loop's thread; whoever submits calls and takes outcomes is in another.

An *attempt* is one call of the user's function, for one request or a batch of them. When it takes
too long the calls are decided without it, but it keeps its place among those in flight until it has
really ended. So a function that cannot be cancelled is never called more often at once than the
policy allows.

A *caller* is an asyncio task that makes attempts, one after another. A task for each attempt would
be a fifth of what the pool costs. It is one to user code: a caller whose context an attempt has
changed ends, so that no attempt sees another's context variables.

Source: the execution model's document, "Long-Running or Stuck Operations".
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import math
import queue
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent import futures
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from millrace.kernel.results import CallStats
from millrace.model.calls import (
    BatchPolicy,
    Call,
    CallAttempt,
    CallPolicy,
    Outcome,
    WaitingCall,
    is_async,
    takes_attempt,
)
from millrace.model.coroutines import unrun
from millrace.model.errors import RAISED, PipelineError, brief_error
from millrace.model.time import SECOND, format_duration
from millrace.runtime.call_batches import WrongNumber, responses_of, table_of
from millrace.runtime.retries import Retries

_log = logging.getLogger("millrace")

#: For so long a pool that closes waits for what it has cancelled.
_GRACE_S: Final = 1.0
#: Whoever waits is told no more often. A thread that wakes for each outcome takes Python's lock
#: from the loop's again and again, which costs as much as all else that the pool does.
_TOGETHER_S: Final = 0.002
#: Nor while the calls that wait for a place keep all places busy for twice as long. What follows
#: from an outcome would have to wait behind them, and a task runs few bundles instead of many.
_TOGETHER_MOST_S: Final = 0.02
#: To wait for less could be to wait for less than a clock's float can say, again and again.
_INSTANT_S: Final = 1e-6
#: After so many attempts a caller lets the loop turn, unless it has turned meanwhile: calls that
#: return at once must not keep it.
_IN_A_ROW: Final = 8
_MISSING: Final = object()


class PoolLoop(Protocol):
    """What a pool asks of the loop that it runs in, besides asyncio's."""

    def wait(self, is_there: Callable[[], bool], wait_s: float | None) -> None:
        """Return when something is there, or after ``wait_s`` seconds.

        Args:
            is_there: Asked at once, and whenever :meth:`notify` is called.
            wait_s: None: however long it takes.
        """
        ...

    def notify(self) -> None:
        """Say that something may be there."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class LoopThread(asyncio.SelectorEventLoop):
    """An asyncio loop in a thread of its own, which does not keep its process from ending.

    >>> loop = LoopThread("calls")
    >>> asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result()
    'done'
    >>> loop.end()
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._there = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, is_there: Callable[[], bool], wait_s: float | None) -> None:
        """Return when something is there, or after ``wait_s`` seconds."""
        with self._there:
            self._there.wait_for(lambda: is_there() or self.is_closed(), wait_s)

    def notify(self) -> None:
        """Say that something may be there."""
        with self._there:
            self._there.notify_all()

    def end(self) -> None:
        """End the thread, unless code that blocks the loop keeps it; then leave it."""
        self.call_soon_threadsafe(self.stop)
        self._thread.join(2 * _GRACE_S)

    def _run(self) -> None:
        try:
            self.run_forever()
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            if tasks:
                self.run_until_complete(asyncio.wait(tasks, timeout=_GRACE_S))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()
            self.notify()


class DaemonThreads(futures.Executor):
    """Threads that do not keep their process from ending, whatever they wait for.

    Those of ``ThreadPoolExecutor`` are joined when the interpreter ends: a call that hangs would
    hang the process.

    Args:
        most: How many there are at most. They are started when they are needed.
        name: What they are called.

    >>> with DaemonThreads(1, "calls") as threads:
    ...     threads.submit(len, "tea").result()
    3
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None]
        self._work = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(  # type: ignore[override] # the stub's is generic by ParamSpec
        self, fn: Callable[..., Any], *arguments: Any
    ) -> futures.Future[Any]:
        """Have a thread call a function."""
        future = futures.Future[Any]()
        self._work.put((future, partial(fn, *arguments)))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end after what they do; wait for none."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is handed on
                    future.set_exception(error)
            del work, future, call
            self._idle.release()


class _Pending(msgspec.Struct, eq=False):
    """A call without an outcome."""

    call: Call
    submitted_s: float
    began_s: float = -1.0
    attempts: int = 0
    retried: int = 0
    error: BaseException | None = None


def _request(pending: _Pending) -> Any:
    """Return what the next attempt is to ask, whatever the last one has made of it."""
    call = pending.call
    if pending.attempts == 1 or call.data is None or call.decode is None:
        return call.request
    return call.decode(call.data)


class _Attempt(msgspec.Struct, eq=False):
    """One call of the user's function."""

    calls: list[_Pending]
    began_s: float
    trial: bool
    is_decided: bool = False
    is_cancelled: bool = False
    caller: asyncio.Task[None] | None = None


def _has_same_values(context: contextvars.Context, other: contextvars.Context) -> bool:
    """Return whether the same variables have the same values. A value's ``==`` is not asked."""
    if len(context) != len(other):
        return False
    for variable in context:  # noqa: SIM110 - a generator costs three times as much, for mostly none
        if other.get(variable, _MISSING) is not context[variable]:
            return False
    return True


def _cancelled_by_itself(raised: asyncio.CancelledError) -> Exception:
    """Return a failure as any other: who gets asyncio's would take itself for cancelled."""
    error = futures.CancelledError(
        "the call was cancelled, and not by Millrace. Was a task that it awaits, or its client?"
    )
    error.__cause__ = raised
    return error


class CallPool:
    """Makes the calls of one computation in one process.

    Args:
        call: The user's function: of a request, and a :class:`~millrace.model.calls.CallAttempt` if
            it takes one more argument; of a list of requests, or a table, with ``batch``.
        policy: How calls are made.
        batch: How they are gathered, if they are.
        setup: Called once, before the first call. What it returns is the first argument of each
            call, and is closed with the pool, by its ``aclose()`` or ``close()``.
        loop: Where coroutines run; by default a thread of the pool's own.
        jitter: Returns numbers in [0, 1), which pauses are drawn by.
        name: Of the computation, for messages and the names of threads.

    >>> async def double(number):
    ...     return 2 * number
    >>> pool = CallPool(double, CallPolicy())
    >>> pool.submit([Call(b"1", "tea", 21)])
    >>> [outcome.response for outcome in pool.completed(None)]
    [42]
    >>> pool.close()
    """

    def __init__(
        self,
        call: Callable[..., Any],
        policy: CallPolicy,
        batch: BatchPolicy | None = None,
        *,
        setup: Callable[[], Any] | None = None,
        loop: PoolLoop | None = None,
        jitter: Callable[[], float] = random.random,
        name: str = "calls",
    ) -> None:
        self._call = call
        self._policy = policy
        self._batch = batch
        self._setup = setup
        self._name = name
        self._own_loop = LoopThread(f"millrace-{name}") if loop is None else None
        self._loop: Any = self._own_loop or loop  # asyncio's, and a PoolLoop
        self._most = policy.concurrency if batch is None else batch.threads
        self._threads = DaemonThreads(self._most, f"millrace-{name}")
        self._timeout_s = None if policy.timeout_us is None else policy.timeout_us / SECOND
        self._is_async = is_async(call)
        self._is_single = self._is_async and batch is None
        given = 1 if setup is None else 2
        self._takes_attempt = batch is None and takes_attempt(call, given)
        self._before: tuple[Any, ...] = ()
        self._callback: Callable[[], None] | None = None

        # Both threads, under the lock.
        self._lock = threading.Lock()
        self._unanswered: dict[_Pending, None] = {}
        self._submitted: list[_Pending] = []
        self._outcomes: list[Outcome] = []
        self._stats = CallStats()
        self._is_admitting = self._is_closed = False
        self._broken: BaseException | None = None

        # The loop's thread alone.
        self._retries = Retries(policy, jitter)
        self._is_set_up: bool | None = None if setup is not None else True  # False: it is going on
        self._fresh = deque[_Pending]()
        self._again = deque[list[_Pending]]()  # as they were, or half of it
        self._attempts: dict[_Attempt, None] = {}
        self._callers = set[asyncio.Task[None]]()
        self._resting = deque[asyncio.Future[_Attempt | None]]()
        self._context = contextvars.copy_context()
        self._in_flight = 0
        # Until it is announced: what was decided, and what was counted.
        self._decided: list[tuple[_Pending, Any, BaseException | None, float]] = []
        self._durations_s: list[float] = []
        self._counted = CallStats()
        self._alarm: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_announcing = False
        self._announced_s = -math.inf
        self._announcements = 0
        self._took_s = 0.0

    # -- in the thread of a task ------------------------------------------------------------------

    def submit(self, calls: Iterable[Call]) -> None:
        """Take calls to make, in this order as far as the policy allows. It never waits."""
        now_s = self._loop.time()
        pending = [_Pending(call, now_s) for call in calls]
        with self._lock:
            if self._is_closed:
                raise PipelineError(
                    f"{self._name}: calls were submitted to a pool that is closed. Expected none "
                    "after close()."
                )
            self._unanswered.update(dict.fromkeys(pending))
            self._submitted += pending
            is_new, self._is_admitting = not self._is_admitting, True
        if is_new:
            self._loop.call_soon_threadsafe(self._admit)

    def completed(self, wait_s: float | None = 0.0) -> list[Outcome]:
        """Return the outcomes that are there; wait until one is, or nothing is to come.

        Args:
            wait_s: Wait no longer than so many seconds; None: as long as it takes.

        Raises:
            PipelineError: The setup has failed, or the loop has ended.
        """
        self._loop.wait(self._is_there, wait_s)
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
            broken = self._broken
        if broken is not None:
            raise PipelineError(
                f"{self._name}: setup() raised {brief_error(broken)}. No call can be made without "
                "what it returns."
            ) from broken
        if not outcomes and self._unanswered and self._loop.is_closed() and not self._is_closed:
            raise PipelineError(
                f"{self._name}: the thread that makes calls has ended. Did a call stop its event "
                "loop?"
            )
        return outcomes

    def wake(self, callback: Callable[[], None]) -> None:
        """Have a function called in the loop's thread whenever outcomes are there."""
        self._callback = callback

    def cancel(self) -> None:
        """Forget all calls without an outcome, and outcomes that nobody has taken.

        An attempt that does not end when it is cancelled keeps its place until it ends.
        """
        with self._lock:
            self._unanswered.clear()
            self._submitted.clear()
            self._outcomes.clear()
        self._loop.notify()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop)

    def close(self) -> None:
        """Cancel all calls, and end. What does not end within a second is left behind."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.cancel()
        own = self._own_loop
        if own is None:
            if not self._loop.is_closed():
                self._finish_by(self._loop.create_task(self._finish()))
        elif not own.is_closed():
            future = asyncio.run_coroutine_threadsafe(self._finish(), own)
            futures.wait([future], 3 * _GRACE_S)
            own.end()
        self._threads.shutdown()

    @property
    def in_flight(self) -> int:
        """How many requests are being answered now."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """How many calls wait for a place, a pause or the breaker."""
        return max(0, len(self._unanswered) - self._in_flight - len(self._decided))

    @property
    def breaker_open_us(self) -> int:
        """For how long the breaker has been open; 0 if it is closed."""
        return round(self._retries.open_s(self._loop.time()) * SECOND)

    def oldest(self) -> WaitingCall | None:
        """Return the call that has waited longest for its outcome."""
        with self._lock:
            pending = next(iter(self._unanswered), None)
        if pending is None:
            return None
        waited_us = round((self._loop.time() - pending.submitted_s) * SECOND)
        return WaitingCall(pending.call, waited_us, pending.attempts, pending.error)

    def take_stats(self) -> CallStats:
        """Return what was announced since this was last called, and what is in flight now."""
        with self._lock:
            stats, self._stats = self._stats, CallStats()
        stats.in_flight = self.in_flight
        stats.waiting = self.waiting
        stats.breaker_open_us = self.breaker_open_us
        return stats

    def _is_there(self) -> bool:
        return bool(self._outcomes or not self._unanswered or self._broken or self._is_closed)

    def _finish_by(self, task: asyncio.Task[None]) -> None:
        """Run a loop in virtual time until it has finished."""
        task.add_done_callback(lambda _: self._loop.notify())
        self._loop.wait(task.done, 3 * _GRACE_S)

    # -- in the loop's thread ----------------------------------------------------------------------

    def _admit(self) -> None:
        with self._lock:
            submitted, self._submitted = self._submitted, []
            self._is_admitting = False
        self._fresh.extend(submitted)
        self._pump()

    def _pump(self) -> None:
        """Begin as many attempts as may begin."""
        while (attempt := self._next()) is not None:
            if self._resting:
                self._resting.pop().set_result(attempt)
            else:
                context = self._context.copy()
                caller = self._loop.create_task(self._run_caller(attempt), context=context)
                self._callers.add(caller)
                caller.add_done_callback(self._callers.discard)

    def _next(self) -> _Attempt | None:
        """Begin an attempt if one may begin; if one may begin later, wake then."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if len(self._attempts) >= self._most or not (self._fresh or self._again):
            return None
        if self._is_closed or not (self._is_set_up or self._is_ready()):
            return None
        now_s = self._loop.time()
        wait_s = self._retries.wait_s(now_s)
        if self._batch is not None and not wait_s and not self._again:
            wait_s = self._gathers_s(now_s)
        if wait_s > _INSTANT_S:
            if wait_s < math.inf:
                self._alarm = self._loop.call_later(wait_s, self._pump)
            return None
        return self._begin(self._again.popleft() if self._again else self._gathered(), now_s)

    def _is_ready(self) -> bool:
        """Return whether the setup is done; begin it if it is not."""
        if self._is_set_up is None and self._fresh:
            self._is_set_up = False
            task = self._loop.create_task(self._set_up())
            task.add_done_callback(lambda _: self._pump())
        return bool(self._is_set_up)

    async def _set_up(self) -> None:
        assert self._setup is not None
        try:
            if is_async(self._setup):
                resource = await self._setup()
            else:
                resource = await self._loop.run_in_executor(self._threads, self._setup)
        except BaseException as error:  # noqa: BLE001 - calls wait for it, whatever it is
            self._broken = error
            if not self._is_announcing:
                self._announce()
        else:
            self._before = (resource,)
            self._is_set_up = True

    def _gathers_s(self, now_s: float) -> float:
        """Return for how long the next batch waits for more requests."""
        batch = self._batch
        if batch is None or len(self._fresh) >= batch.max_size:
            return 0.0
        return max(0.0, self._fresh[0].submitted_s + batch.max_wait_us / SECOND - now_s)

    def _gathered(self) -> list[_Pending]:
        if self._batch is None:
            return [self._fresh.popleft()]
        size = min(self._batch.max_size, len(self._fresh))
        return [self._fresh.popleft() for _ in range(size)]

    def _begin(self, calls: list[_Pending], now_s: float) -> _Attempt:
        attempt = _Attempt(calls, now_s, trial=self._retries.begin())
        for pending in calls:
            pending.attempts += 1
            if pending.began_s < 0:
                pending.began_s = now_s
        self._attempts[attempt] = None
        self._in_flight += len(calls)
        self._counted.made += 1
        self._counted.retried += calls[0].attempts > 1
        if self._timeout_s is not None and self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_out)
        return attempt

    async def _run_caller(self, first: _Attempt) -> None:
        """Make attempts until the pool is closed. This is a caller."""
        caller = asyncio.current_task()
        assert caller is not None
        attempt: _Attempt | None = first
        announcements = self._announcements
        for number in itertools.count(1):
            if attempt is None:
                self._resting.append(self._loop.create_future())
                attempt = await self._resting[-1]
                if attempt is None:
                    return
            attempt.caller = caller
            response = error = None
            try:
                if attempt.is_decided:  # dropped, before it began
                    pass
                elif self._is_single:
                    response = await self._call(*self._arguments(attempt.calls))
                else:
                    response, error = await self._call_once(self._arguments(attempt.calls))
            except BaseException as raised:  # noqa: BLE001 - user code must not end the loop
                error = raised
            if self._is_closed or self._loop.is_closed():
                return
            if attempt.is_cancelled:
                caller.uncancel()
            self._ended(attempt, response, error)
            if not _has_same_values(contextvars.copy_context(), self._context):
                break
            if number % _IN_A_ROW == 0:
                if announcements == self._announcements:
                    await asyncio.sleep(0)
                announcements = self._announcements
            attempt = self._next()
            if len(self._attempts) < self._most:
                self._pump()  # when the service is back, all may begin
        self._pump()

    def _arguments(self, calls: list[_Pending]) -> tuple[Any, ...]:
        if self._batch is not None:
            return *self._before, [_request(pending) for pending in calls]
        call = calls[0].call
        if self._takes_attempt:
            attempt = CallAttempt(call.id.hex(), call.key, calls[0].attempts)
            return *self._before, _request(calls[0]), attempt
        return *self._before, _request(calls[0])

    async def _call_once(self, arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        """Call the user's function once; return its response, or the error of a thread."""
        if not self._is_async:
            called = self._loop.run_in_executor(self._threads, self._called, arguments)
            response, error = await called
            return response, error
        return self._answer(arguments, await self._call(*self._given(arguments))), None

    def _called(self, arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        try:
            answer = self._call(*self._given(arguments))
            if isinstance(answer, Awaitable) and (kind := unrun(answer)) is not None:
                raise PipelineError(
                    f"{self._name}: the call returned {kind}, which nobody has run. Expected a "
                    "response: declare the function with `async def`, or run it to its end there."
                )
            return self._answer(arguments, answer), None
        except BaseException as error:  # noqa: BLE001 - it is handed on
            return None, error

    def _given(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._batch is None or not self._batch.arrow:
            return arguments
        return *arguments[:-1], table_of(arguments[-1])

    def _answer(self, arguments: tuple[Any, ...], answer: Any) -> Any:
        if self._batch is None:
            return answer
        return responses_of(answer, len(arguments[-1]), self._name)

    def _time_out(self) -> None:
        """Let those attempts fail that have taken too long.

        One timer for all: they stand in the order of their beginning, and a timer for each would
        be a third of what the pool costs.
        """
        self._timer = None
        assert self._timeout_s is not None
        now_s = self._loop.time()
        for attempt in list(self._attempts):
            left_s = attempt.began_s + self._timeout_s - now_s
            if attempt.is_decided:
                continue
            if left_s > _INSTANT_S:
                self._timer = self._loop.call_later(left_s, self._time_out)
                break
            self._counted.timed_out += 1
            limit = format_duration(self._policy.timeout_us or 0)
            self._fails(attempt, TimeoutError(f"no response within {limit}"))
            self._cancel(attempt)
        self._pump()

    def _cancel(self, attempt: _Attempt) -> None:
        """Cancel a coroutine. A future of a thread would only say so, and the thread go on."""
        if self._is_async and attempt.caller is not None:
            attempt.is_cancelled = True
            attempt.caller.cancel()

    def _ended(self, attempt: _Attempt, response: Any, error: BaseException | None) -> None:
        """Take that an attempt has ended, and with it the place that it had."""
        del self._attempts[attempt]
        if attempt.is_decided:
            return
        if error is None:
            self._answered(attempt, response)
        else:
            self._fails(attempt, error)

    def _decide(self, attempt: _Attempt) -> float:
        """Take that it is known what came of an attempt; return when that was."""
        now_s: float = self._loop.time()
        attempt.is_decided = True
        self._in_flight -= len(attempt.calls)
        self._took_s = took_s = now_s - attempt.began_s
        self._durations_s.append(took_s)
        return now_s

    def _answered(self, attempt: _Attempt, answer: Any) -> None:
        now_s = self._decide(attempt)
        self._retries.answered()
        if self._batch is None:
            self._decided.append((attempt.calls[0], answer, None, now_s))
        else:
            for pending, response in zip(attempt.calls, answer, strict=True):
                self._decided.append((pending, response, None, now_s))
        if not self._is_announcing:
            self._announce()

    def _fails(self, attempt: _Attempt, error: BaseException) -> None:
        now_s = self._decide(attempt)
        calls = attempt.calls
        for pending in calls:
            pending.error = error
        again = self._retries.failed(
            error, retried=calls[0].retried, now_s=now_s, trial=attempt.trial
        )
        if again is None:
            self._gives_up(calls, error, now_s)
        elif not again.counts:
            self._fresh.extend(calls)  # others go first, so that not one call is each trial
        else:
            for pending in calls:
                pending.retried += 1
            self._loop.call_later(again.pause_s, self._returns, calls)

    def _gives_up(self, calls: list[_Pending], error: BaseException, now_s: float) -> None:
        """Halve a batch that has failed, until the request is alone that it fails with."""
        if len(calls) == 1 or isinstance(error, WrongNumber):
            if isinstance(error, asyncio.CancelledError):
                error = _cancelled_by_itself(error)
            self._decided += [(pending, None, error, now_s) for pending in calls]
            if not self._is_announcing:
                self._announce()
            return
        middle = len(calls) // 2
        for pending in calls:
            pending.retried = self._policy.retries
        self._again.appendleft(calls[middle:])
        self._again.appendleft(calls[:middle])

    def _returns(self, calls: list[_Pending]) -> None:
        """Make calls again after a pause."""
        still = [pending for pending in calls if pending in self._unanswered]
        if still:
            self._again.append(still)
            self._pump()

    def _announce(self) -> None:
        """Tell whoever waits, once for all outcomes of some turns of the loop."""
        self._is_announcing = True
        wait_s = self._announced_s + self._together_s() - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._announces)
        else:
            self._loop.call_soon(self._announces)

    def _together_s(self) -> float:
        """Return how long outcomes are gathered; not at all in virtual time."""
        if self._own_loop is None:
            return 0.0
        busy_s = self._took_s * len(self._fresh) / self._most
        return min(max(_TOGETHER_S, busy_s / 2), _TOGETHER_MOST_S)

    def _announces(self) -> None:
        self._is_announcing = False
        self._announced_s = self._loop.time()
        self._announcements += 1
        decided, self._decided = self._decided, []
        durations_s, self._durations_s = self._durations_s, []
        counted, self._counted = self._counted, CallStats()
        counted.took(*durations_s)
        failed = 0
        with self._lock:
            unanswered, outcomes = self._unanswered, self._outcomes
            before = len(outcomes)
            for pending, response, error, at_s in decided:
                if pending not in unanswered:
                    continue  # cancelled
                del unanswered[pending]
                if error is not None:
                    failed += 1
                took_us = round((at_s - pending.began_s) * SECOND)
                outcomes.append(Outcome(pending.call, response, error, pending.attempts, took_us))
            counted.failed = failed
            counted.answered = len(outcomes) - before - failed
            self._stats.add(counted)
        self._loop.notify()
        if self._callback is not None:
            self._callback()

    def _drop(self) -> None:
        """Cancel what nobody waits for any more."""
        with self._lock:
            unanswered = self._unanswered
            self._fresh = deque(p for p in self._fresh if p in unanswered)
            groups = [[p for p in calls if p in unanswered] for calls in self._again]
        self._again = deque(calls for calls in groups if calls)
        for attempt in list(self._attempts):
            if not attempt.is_decided and not any(p in unanswered for p in attempt.calls):
                attempt.is_decided = True
                self._in_flight -= len(attempt.calls)
                self._retries.dropped(trial=attempt.trial)
                self._cancel(attempt)
        self._pump()

    async def _finish(self) -> None:
        """Wait a little for what was cancelled, and close what the setup has made."""
        while self._resting:
            self._resting.pop().set_result(None)
        if self._callers and self._is_async:
            await asyncio.wait(self._callers, timeout=_GRACE_S)
        for caller in self._callers:
            caller.cancel()  # also of a thread: when it ends at last, there is no loop to tell
        for resource in self._before:
            close = getattr(resource, "aclose", None) or getattr(resource, "close", None)
            if close is None:
                continue
            try:
                closing = close()
                if inspect.isawaitable(closing):
                    await asyncio.wait_for(closing, _GRACE_S)
            except (*RAISED, asyncio.CancelledError) as error:
                _log.warning(
                    "%s: closing what setup() returned: %s", self._name, brief_error(error)
                )
