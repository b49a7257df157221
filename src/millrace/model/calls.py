"""Calls: what user code asks a service for a record, by which rules, and what comes of it.

A *call* is made for one record. Its *request* is what the service is asked, and its *outcome* is a
response or an error. Between the two the call is *pending*. A call may be made several times, by
retries and again after a failure; each time is an *attempt*, and all of them have one id.

Policies are values: they say how calls are made, and make none.

Source: the execution model's document, "Long-Running or Stuck Operations"; Flink, "Asynchronous
I/O for External Data Access".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from millrace.model.errors import PipelineError, brief, brief_error
from millrace.model.time import MILLISECOND, SECOND, Duration, duration_literal, duration_us

#: What the calls of one key keep: the order of their records, or none.
CallOrder = Literal["key", "none"]

RetryOn = type[BaseException] | tuple[type[BaseException], ...]


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request to a service, made for one record.

    Attributes:
        id: Of the record's; the same in each attempt, after each retry, epoch and failure.
        key: Of the record.
        request: What the service is asked.
        source: Where the outcome belongs. Who makes the call hands it back as it is.
        data: The request, encoded, as an attempt may change it; None: it cannot be changed, or
            nobody knows it as it was.
        decode: Returns it of that.
    """

    id: bytes
    key: Any
    request: Any
    source: Any = None
    data: bytes | None = None
    decode: Callable[[bytes], Any] | None = None


class CallAttempt(NamedTuple):
    """What a call is told about itself, as its second argument if it takes one.

    Attributes:
        id: Names the call to a service that is idempotent: text, the same in each attempt.
        key: Of the record.
        attempt: 1 for the first attempt; it counts again from 1 after a failure of the process.

    >>> async def charge(payment, call):
    ...     return {"Idempotency-Key": call.id, "retry": call.attempt > 1}
    """

    id: str
    key: Any
    attempt: int


class Outcome(msgspec.Struct, frozen=True):
    """What came of a call.

    Attributes:
        call: The call.
        response: What it returned; None if it failed.
        error: The error of the last attempt; None if it did not fail.
        attempts: How often it was made.
        took_us: Microseconds from the beginning of the first attempt to the end of the last.
    """

    call: Call
    response: Any
    error: BaseException | None
    attempts: int
    took_us: int


class WaitingCall(NamedTuple):
    """A call without an outcome, and how far it has come.

    Attributes:
        call: The call.
        waited_us: For how many microseconds it has been waiting.
        attempts: How often it was made.
        error: What the last attempt that failed raised; None if none has.
    """

    call: Call
    waited_us: int
    attempts: int
    error: BaseException | None

    def __str__(self) -> str:
        made = f"attempt {self.attempts}" if self.attempts else "no attempt yet"
        return made if self.error is None else f"{made}, after {brief_error(self.error)}"


@dataclass(frozen=True, init=False, repr=False)
class CallPolicy:
    """How the calls of a computation are made.

    Args:
        concurrency: At most so many are in flight in a task. A plain function is called in as many
            threads.
        timeout: After so long an attempt has failed with ``TimeoutError``; None: it may take
            forever. A coroutine is cancelled. A thread cannot be: it goes on, and keeps its place
            in ``concurrency`` until the function returns.
        retries: After so many further attempts the call has failed.
        backoff: The longest pause before the first retry. Each further pause may be twice as long.
            A pause is drawn between nought and its longest (full jitter).
        max_backoff: No pause is longer.
        retry_on: Errors after which a call is made again, as an ``except`` clause would name them.
            A timeout is always among them.
        breaker: After so many failures in a row, of errors that are retried, the service is taken
            to be down. New attempts wait for a pause, then one is made: if it fails, the next pause
            is longer. Attempts that fail meanwhile do not count as retries. None: never.
        order: ``"key"``: results of a key leave in the order of its records. ``"none"``: as the
            calls return.

    Raises:
        PipelineError: An argument that is none of these.

    Source: "Exponential Backoff And Jitter" (AWS Architecture Blog); Nygard, "Release It!",
    "Circuit Breaker".

    >>> CallPolicy(concurrency=200, timeout="2 s")
    CallPolicy(concurrency=200, timeout='2 s')
    >>> CallPolicy(timeout="2 s") == CallPolicy(timeout=2_000_000)
    True
    """

    concurrency: int
    timeout_us: int | None
    retries: int
    backoff_us: int
    max_backoff_us: int
    retry_on: tuple[type[BaseException], ...]
    breaker: int | None
    order: CallOrder

    def __init__(
        self,
        *,
        concurrency: int = 100,
        timeout: Duration | None = 30 * SECOND,
        retries: int = 3,
        backoff: Duration = 100 * MILLISECOND,
        max_backoff: Duration = 10 * SECOND,
        retry_on: RetryOn = (OSError,),
        breaker: int | None = None,
        order: CallOrder = "key",
    ) -> None:
        timeout_us = None if timeout is None else duration_us(timeout, "CallPolicy(timeout)")
        if timeout_us == 0:
            raise PipelineError(
                "CallPolicy(timeout=0): every call would have failed before it began. Expected, "
                'say, timeout="2 s", or None for calls that may take forever.'
            )
        backoff_us = duration_us(backoff, "CallPolicy(backoff)")
        max_backoff_us = duration_us(max_backoff, "CallPolicy(max_backoff)")
        if max_backoff_us < backoff_us:
            raise PipelineError(
                f"CallPolicy(backoff={backoff!r}, max_backoff={max_backoff!r}): the first pause is "
                "longer than the longest. Expected a max_backoff of at least backoff."
            )
        if order not in get_args(CallOrder):
            raise PipelineError(
                f'CallPolicy(order={order!r}): expected "key", so that results of a key keep the '
                'order of its records, or "none".'
            )
        if breaker is not None:
            _whole(breaker, "CallPolicy(breaker)", 1)
        values = {
            "concurrency": _whole(concurrency, "CallPolicy(concurrency)", 1),
            "timeout_us": timeout_us,
            "retries": _whole(retries, "CallPolicy(retries)", 0),
            "backoff_us": backoff_us,
            "max_backoff_us": max_backoff_us,
            "retry_on": _errors(retry_on),
            "breaker": breaker,
            "order": order,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def retries_after(self, error: BaseException) -> bool:
        """Return whether an error is of those after which a call may be made again.

        >>> CallPolicy().retries_after(ConnectionError()), CallPolicy().retries_after(KeyError())
        (True, False)
        """
        return isinstance(error, (TimeoutError, *self.retry_on))

    def __repr__(self) -> str:
        shown = []
        for name, value in vars(self).items():
            if value == getattr(_DEFAULT, name):
                continue
            if name.endswith("_us") and value is not None:
                value = duration_literal(value)
            elif name == "retry_on":
                names = [error.__name__ for error in value]
                value = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
            else:
                value = repr(value)
            shown.append(f"{name.removesuffix('_us')}={value}")
        return f"CallPolicy({', '.join(shown)})"


@dataclass(frozen=True, init=False, repr=False)
class BatchPolicy:
    """How the requests of a computation are gathered into batches, one call for each.

    Args:
        max_size: No batch has more requests.
        max_wait: A batch with fewer requests begins when the oldest has waited for so long.
        threads: At most so many batches are in flight in a process. A plain function is called in
            as many threads.
        arrow: Whether the function is given a ``pyarrow.Table`` and not a list.

    Raises:
        PipelineError: An argument that is none of these.

    >>> BatchPolicy(max_size=32)
    BatchPolicy(max_size=32, max_wait='20 ms', threads=1)
    """

    max_size: int
    max_wait_us: int
    threads: int
    arrow: bool

    def __init__(
        self,
        *,
        max_size: int = 64,
        max_wait: Duration = 20 * MILLISECOND,
        threads: int = 1,
        arrow: bool = False,
    ) -> None:
        values = {
            "max_size": _whole(max_size, "BatchPolicy(max_size)", 1),
            "max_wait_us": duration_us(max_wait, "BatchPolicy(max_wait)"),
            "threads": _whole(threads, "BatchPolicy(threads)", 1),
            "arrow": arrow,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        more = ", arrow=True" if self.arrow else ""
        return (
            f"BatchPolicy(max_size={self.max_size}, max_wait={duration_literal(self.max_wait_us)}, "
            f"threads={self.threads}{more})"
        )


def takes_attempt(call: Callable[..., Any], given: int = 1) -> bool:
    """Return whether a call takes a :class:`CallAttempt` after what it is given anyway.

    It does if it has one more positional parameter, without a default.

    Args:
        call: The function.
        given: How many arguments it gets without that.

    >>> def score(payment, call): ...
    >>> def label(image, size=10): ...
    >>> takes_attempt(score), takes_attempt(label), takes_attempt(len)
    (True, False, False)
    """
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(required) > given


def takes_table(call: Callable[..., Any]) -> bool:
    """Return whether a parameter of a function is annotated as a ``pyarrow.Table``.

    >>> import pyarrow as pa
    >>> def score(model, values: pa.Table): ...
    >>> takes_table(score), takes_table(len)
    (True, False)
    """
    function = call if inspect.isroutine(call) else getattr(type(call), "__call__", call)  # noqa: B004
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # a name that is there for type checkers only
        hints = getattr(function, "__annotations__", {})
    return any(
        hint in ("pa.Table", "pyarrow.Table")
        or (getattr(hint, "__name__", ""), getattr(hint, "__module__", "")) == _TABLE
        for name, hint in hints.items()
        if name != "return"
    )


def is_async(call: Callable[..., Any]) -> bool:
    """Return whether calling it gives a coroutine.

    >>> async def fetch(value): ...
    >>> is_async(fetch), is_async(len)
    (True, False)
    """
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - of an object that can be called
    )


def _whole(value: Any, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PipelineError(
            f"{where}: {brief(value, 80)} is not a whole number from {least} on. Expected one."
        )
    return value


def _errors(retry_on: Any) -> tuple[type[BaseException], ...]:
    errors = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise PipelineError(
                f"CallPolicy(retry_on): {brief(error, 80)} is not a class of exceptions. Expected "
                "one, or a tuple of them, such as retry_on=(OSError, httpx.TransportError)."
            )
    return errors


#: Of ``pyarrow.Table``, which only those import who have one.
_TABLE: Final = "Table", "pyarrow.lib"

#: What a policy that says nothing is.
_DEFAULT: Final = CallPolicy()
