"""A pool of calls: limits, retries, timeouts, the circuit breaker, batches, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest

from millrace.model.calls import BatchPolicy, Call, CallAttempt, CallPolicy, Outcome
from millrace.model.errors import PipelineError
from millrace.runtime.call_batches import WrongNumber
from millrace.runtime.call_pool import CallPool
from millrace.runtime.virtual_loop import VirtualTimeLoop

DOWN = ConnectionError("down")


@contextmanager
def virtual(call: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[CallPool]:
    """A pool in virtual time, whose pauses are as long as they may be."""
    loop = VirtualTimeLoop()
    policy = arguments[0] if arguments else CallPolicy()
    pool = CallPool(call, policy, *arguments[1:], loop=loop, **{"jitter": lambda: 1.0, **named})
    yield pool
    pool.close()
    loop.close()


@contextmanager
def threaded(call: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[CallPool]:
    """A pool as in production."""
    pool = CallPool(call, arguments[0] if arguments else CallPolicy(), *arguments[1:], **named)
    yield pool
    pool.close()


def calls(*requests: Any) -> list[Call]:
    return [Call(b"%d" % n, f"key {n}", request) for n, request in enumerate(requests)]


def answers(pool: CallPool, *requests: Any) -> list[Outcome]:
    """Make calls; return their outcomes in the order of the calls."""
    pool.submit(calls(*requests))
    outcomes = list[Outcome]()
    while len(outcomes) < len(requests):
        outcomes += pool.completed(None)
    assert pool.completed(None) == []
    return sorted(outcomes, key=lambda outcome: int(outcome.call.id))


def responses(outcomes: list[Outcome]) -> list[Any]:
    return [outcome.response if outcome.error is None else outcome.error for outcome in outcomes]


class Service:
    """Answers after a while, and counts who asks at once."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.asked = list[Any]()
        self.now = self.most = 0

    async def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        return f"<{request}>"


# -- calls -----------------------------------------------------------------------------------------


def test_outcomes_are_there_as_soon_as_calls_return() -> None:
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    with virtual(sleep) as pool:
        pool.submit(calls(3, 1, 2))
        assert [[o.response for o in pool.completed(None)] for _ in range(3)] == [[1], [2], [3]]
        assert pool.completed(None) == []


def test_an_outcome_says_what_it_took() -> None:
    with virtual(Service()) as pool:
        (outcome,) = answers(pool, "tea")
    call = Call(b"0", "key 0", "tea")
    assert outcome == Outcome(call, "<tea>", None, attempts=1, took_us=1_000_000)


def test_no_more_are_in_flight_than_the_policy_allows() -> None:
    service = Service()
    with virtual(service, CallPolicy(concurrency=3)) as pool:
        pool.submit(calls(*range(8)))
        pool.completed(0.5)
        assert (pool.in_flight, pool.waiting) == (3, 5)
        assert len(pool.completed(1.0)) == 3
        while pool.completed(None):
            pass
    assert service.most == 3
    assert service.asked == list(range(8))


def test_a_call_is_told_its_id_and_which_attempt_it_is() -> None:
    told = list[CallAttempt]()

    async def score(value: int, call: CallAttempt) -> int:
        told.append(call)
        if call.attempt == 1:
            raise DOWN
        return value

    with virtual(score) as pool:
        answers(pool, 7)
    assert told == [CallAttempt("30", "key 0", 1), CallAttempt("30", "key 0", 2)]


def test_a_wait_ends_without_an_outcome() -> None:
    with virtual(Service(2.0)) as pool:
        pool.submit(calls("tea"))
        assert pool.completed(0) == []
        assert pool.completed(1.5) == []
        assert len(pool.completed(0.5)) == 1


def test_the_oldest_call_and_how_long_it_has_waited() -> None:
    with virtual(Service(2.0), CallPolicy(concurrency=1)) as pool:
        assert pool.oldest() is None
        pool.submit(calls("tea", "milk"))
        pool.completed(1.0)
        assert pool.oldest() == (Call(b"0", "key 0", "tea"), 1_000_000, 1, None)
        pool.completed(None)
        assert pool.oldest() == (Call(b"1", "key 1", "milk"), 2_000_000, 1, None)


async def down_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise DOWN


def test_the_oldest_call_has_its_attempts_and_its_last_error() -> None:
    with virtual(down_after, CallPolicy(retries=1, backoff=0)) as pool:
        pool.submit(calls(1.0))
        assert str(pool.oldest()) == "no attempt yet"
        pool.completed(0.5)
        assert str(pool.oldest()) == "attempt 1"
        pool.completed(1.0)
        assert str(pool.oldest()) == "attempt 2, after ConnectionError: down"


def test_no_call_sees_what_another_has_set_in_its_context() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    async def ask(name: str) -> str:
        before = user.get()
        if name != "tea":
            user.set(name)
        await asyncio.sleep(1)
        return f"{before}, {user.get()}"

    with virtual(ask, CallPolicy(concurrency=1)) as pool:
        found = responses(answers(pool, "ann", "tea", "bob", "tea"))
    assert found == ["nobody, ann", "nobody, nobody", "nobody, bob", "nobody, nobody"]


def test_calls_that_return_at_once_let_others_go_on() -> None:
    order = list[int]()

    async def ask(number: int) -> int:
        if number == 0:
            for _ in range(3):
                await asyncio.sleep(0)
        order.append(number)
        return number

    with virtual(ask, CallPolicy(concurrency=2)) as pool:
        answers(pool, *range(1000))
    assert order.index(0) < 100


# -- failures --------------------------------------------------------------------------------------


def test_retries_end_with_the_last_error() -> None:
    errors = [ConnectionError(n) for n in range(4)]
    raised = iter(errors)

    async def ask(value: int) -> int:
        raise next(raised)

    with virtual(ask, CallPolicy(retries=3, backoff="1 s")) as pool:
        (outcome,) = answers(pool, 1)
        assert outcome.error is errors[-1]
        assert (outcome.attempts, outcome.took_us) == (4, 7_000_000)  # 1 + 2 + 4 s


def test_other_calls_go_on_in_a_pause() -> None:
    tried = Counter[str]()

    async def ask(request: str) -> str:
        tried[request] += 1
        if request == "bad" and tried[request] == 1:
            raise DOWN
        await asyncio.sleep(0.1)
        return request

    with virtual(ask, CallPolicy(concurrency=1, backoff="1 s")) as pool:
        pool.submit(calls("bad", "good", "also good"))
        order = [o.response for _ in range(3) for o in pool.completed(None)]
    assert order == ["good", "also good", "bad"]


def test_errors_that_are_not_named_fail_at_once() -> None:
    async def ask(value: int) -> int:
        raise KeyError(value)

    with virtual(ask) as pool:
        (outcome,) = answers(pool, 1)
    assert isinstance(outcome.error, KeyError)
    assert outcome.attempts == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_would_end_a_loop_is_the_error_of_its_call(error: BaseException) -> None:
    async def ask(fails: bool) -> str:
        if fails:
            raise error
        return "fine"

    for pool_in in (virtual, threaded):
        with pool_in(ask) as pool:
            failed, fine = answers(pool, True, False)
            assert type(failed.error).__name__ == type(error).__name__
            assert fine.response == "fine"


def test_a_call_that_takes_too_long_has_failed() -> None:
    service = Service(5.0)
    with virtual(service, CallPolicy(timeout="2 s", retries=1, backoff=0)) as pool:
        (outcome,) = answers(pool, "tea")
        assert isinstance(outcome.error, TimeoutError)
        assert str(outcome.error) == "no response within 2 s"
        assert (outcome.attempts, outcome.took_us) == (2, 4_000_000)
        pool.completed(0)
        assert service.now == 0


def test_a_call_that_cannot_be_cancelled_keeps_its_place() -> None:
    most = Counter[str]()

    async def ask(request: str) -> str:
        most["now"] += 1
        most["ever"] = max(most["ever"], most["now"])
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3)
        most["now"] -= 1
        return request

    with virtual(ask, CallPolicy(concurrency=1, timeout="1 s", retries=0)) as pool:
        outcomes = answers(pool, "a", "b")
        assert [type(o.error) for o in outcomes] == [TimeoutError, TimeoutError]
    assert most["ever"] == 1


# -- the circuit breaker ---------------------------------------------------------------------------


class Outage:
    """A service that is down until an instant of its loop."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.asked = list[tuple[float, Any]]()

    async def __call__(self, request: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        self.asked.append((now_s, request))
        if now_s < self.until_s:
            raise DOWN
        return request


def test_an_outage_pauses_the_stream_and_burns_no_retries() -> None:
    outage = Outage(until_s=3600)
    policy = CallPolicy(concurrency=2, retries=1, backoff="1 s", max_backoff="1 min", breaker=2)
    with virtual(outage, policy) as pool:
        outcomes = answers(pool, *range(20))
    assert responses(outcomes) == list(range(20))
    while_down = [at for at, _ in outage.asked if at < 3600]
    assert len(while_down) < 70  # about one a minute
    assert {request for at, request in outage.asked if at < 3600} == set(range(20))


def test_the_breaker_is_seen_while_it_is_open() -> None:
    with virtual(Outage(10.0), CallPolicy(breaker=1, backoff="8 s", max_backoff="8 s")) as pool:
        pool.submit(calls("tea"))
        pool.completed(5.0)
        assert pool.breaker_open_us == 5_000_000
        assert (pool.in_flight, pool.waiting) == (0, 1)
        assert [o.response for o in pool.completed(None)] == ["tea"]
        assert pool.breaker_open_us == 0


def test_a_request_that_always_fails_does_not_keep_the_breaker_open_alone() -> None:
    async def ask(request: str) -> str:
        if request == "poison":
            raise DOWN
        return request

    with virtual(ask, CallPolicy(concurrency=1, retries=2, breaker=1)) as pool:
        pool.submit(calls("poison", "a", "b"))
        got = list[str]()
        while len(got) < 2:
            got += [o.response for o in pool.completed(None)]
    assert got == ["a", "b"]


def test_in_virtual_time_an_outage_without_end_is_an_error() -> None:
    with virtual(Outage(float("inf")), CallPolicy(breaker=1)) as pool:
        pool.submit(calls("tea"))
        with pytest.raises(PipelineError, match="a circuit breaker lets nobody give up"):
            pool.completed(None)


# -- batches ---------------------------------------------------------------------------------------


def test_a_full_batch_goes_at_once_and_a_smaller_one_waits() -> None:
    sizes = list[tuple[float, int]]()

    async def label(values: list[int]) -> list[int]:
        sizes.append((asyncio.get_running_loop().time(), len(values)))
        return [value * 2 for value in values]

    with virtual(label, CallPolicy(), BatchPolicy(max_size=4, max_wait="1 s")) as pool:
        assert responses(answers(pool, *range(10))) == [n * 2 for n in range(10)]
    assert sizes == [(0.0, 4), (0.0, 4), (1.0, 2)]


def test_a_batch_waits_from_its_oldest_request_on() -> None:
    async def label(values: list[str]) -> list[str]:
        return values

    with virtual(label, CallPolicy(), BatchPolicy(max_size=4, max_wait="1 s")) as pool:
        pool.submit(calls("a"))
        assert pool.completed(0.6) == []
        pool.submit(calls("b"))
        assert pool.completed(0.3) == []
        assert len(pool.completed(0.2)) == 2


def test_no_more_batches_are_in_flight_than_threads() -> None:
    now = Counter[str]()

    async def label(values: list[int]) -> list[int]:
        now["batches"] += 1
        now["most"] = max(now["most"], now["batches"])
        await asyncio.sleep(1)
        now["batches"] -= 1
        return values

    with virtual(label, CallPolicy(), BatchPolicy(max_size=2, threads=2)) as pool:
        answers(pool, *range(10))
    assert now["most"] == 2


def test_a_batch_that_raises_is_halved_down_to_its_record() -> None:
    sizes = list[int]()

    def label(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [100 // value for value in values]

    with virtual(label, CallPolicy(), BatchPolicy(max_size=16)) as pool:
        outcomes = answers(pool, *range(1, 6), 0, *range(6, 16))
    assert [type(o.error) for o in outcomes if o.error] == [ZeroDivisionError]
    assert outcomes[5].call.request == 0
    assert [o.response for o in outcomes if o.error is None] == [100 // n for n in range(1, 16)]
    assert sizes == [16, 8, 4, 4, 2, 1, 1, 2, 8]


def test_a_batch_is_retried_whole_and_then_halved_without_retries() -> None:
    sizes = list[int]()

    async def label(values: list[str]) -> list[str]:
        sizes.append(len(values))
        if "bad" in values:
            raise DOWN
        return values

    with virtual(label, CallPolicy(retries=2), BatchPolicy(max_size=4)) as pool:
        outcomes = answers(pool, "a", "bad", "b", "c")
    assert responses(outcomes) == ["a", DOWN, "b", "c"]
    assert sizes == [4, 4, 4, 2, 1, 1, 2]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ab", None, 5, {"a": 1, "b": 2}])
def test_another_number_of_responses_is_an_error_of_each(answer: Any) -> None:
    with virtual(lambda _values: answer, CallPolicy(), BatchPolicy()) as pool:
        outcomes = answers(pool, "a", "b")
    assert [type(o.error) for o in outcomes] == [WrongNumber, WrongNumber]
    assert "2 re" in str(outcomes[0].error)


def test_a_batch_as_a_table() -> None:
    def label(table: pa.Table) -> pa.Table:
        return table.select(["amount"])

    with virtual(label, CallPolicy(), BatchPolicy(arrow=True)) as pool:
        outcomes = answers(pool, {"card": "a", "amount": 3}, {"card": "b", "amount": 4})
    assert responses(outcomes) == [{"amount": 3}, {"amount": 4}]


def test_values_of_several_types_are_not_made_values_of_one():
    """Arrow has one type a column, and makes a date of an instant that follows on a date."""
    day, instant = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
    requests = [day, instant, 1.5, True, None, 2, b"a", "a"]

    def same(table: pa.Table) -> list[Any]:
        return table.column("value").to_pylist()

    with virtual(same, CallPolicy(), BatchPolicy(arrow=True)) as pool:
        made = responses(answers(pool, *requests))
    assert [type(response) for response in made] == list(map(type, requests))
    assert made == requests


# -- what is set up once ---------------------------------------------------------------------------


class Model:
    """What a setup returns."""

    loaded = 0
    closed = 0

    def __init__(self) -> None:
        Model.loaded += 1

    async def aclose(self) -> None:
        Model.closed += 1


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("pool_in", [virtual, threaded])
def test_the_setup_is_called_once_and_closed(pool_in: Any, is_awaited: bool) -> None:
    Model.loaded = Model.closed = 0

    async def load() -> Model:
        await asyncio.sleep(0)
        return Model()

    async def label(model: Model, values: list[int], threshold: int = 3) -> list[bool]:
        assert isinstance(model, Model)
        return [value > threshold for value in values]

    setup = load if is_awaited else Model
    with pool_in(label, CallPolicy(), BatchPolicy(max_size=2), setup=setup) as pool:
        assert responses(answers(pool, *range(6))) == [False] * 4 + [True] * 2
    assert (Model.loaded, Model.closed) == (1, 1)


class Unusual(BaseException):
    """Nothing that an ``except Exception`` would take."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Unusual("unusual")])
def test_no_call_waits_for_a_setup_that_has_raised_whatever_it_is(error: BaseException) -> None:
    async def opened() -> None:
        raise error

    with virtual(lambda _opened, value: value, setup=opened, name="labels") as pool:
        pool.submit(calls(1))
        with pytest.raises(PipelineError, match=rf"setup\(\) raised {type(error).__name__}"):
            pool.completed(None)


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_call_that_is_cancelled_by_itself_has_failed(is_awaited: bool, retries: int) -> None:
    def cancelled(value: int) -> int:
        if value == 1:
            raise asyncio.CancelledError
        return value

    async def awaited(value: int) -> int:
        if value == 1:
            task = asyncio.ensure_future(asyncio.sleep(1))
            asyncio.get_running_loop().call_later(0.1, task.cancel)
            await task
        return value

    policy = CallPolicy(concurrency=1, retries=retries, retry_on=asyncio.CancelledError)
    with virtual(awaited if is_awaited else cancelled, policy) as pool:
        outcomes = answers(pool, 0, 1, 2)
        assert [outcome.response for outcome in outcomes] == [0, None, 2]
        assert isinstance(outcomes[1].error, Exception)
        assert "was cancelled" in str(outcomes[1].error)
        assert outcomes[1].attempts == 1 + retries


def test_a_setup_that_raises_is_an_error() -> None:
    def load() -> Model:
        raise FileNotFoundError("model.bin")

    for pool_in in (virtual, threaded):
        with pool_in(lambda _model, value: value, setup=load, name="labels") as pool:
            pool.submit(calls("tea"))
            with pytest.raises(PipelineError, match=r"labels: setup\(\) raised FileNotFoundError"):
                pool.completed(None)


# -- its end ---------------------------------------------------------------------------------------


def test_cancelled_calls_have_no_outcome_and_make_room() -> None:
    service = Service(5.0)
    with virtual(service, CallPolicy(concurrency=2)) as pool:
        pool.submit(calls(*range(5)))
        pool.completed(1.0)
        pool.cancel()
        assert pool.completed(None) == []
        assert responses(answers(pool, "new")) == ["<new>"]
        assert (pool.in_flight, pool.waiting) == (0, 0)
    assert service.asked == [0, 1, "new"]
    assert service.now == 0


def test_a_pool_closes_whatever_its_calls_do() -> None:
    begun = threading.Semaphore(0)
    never = threading.Event()

    async def stubborn(value: int) -> None:
        begun.release()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)

    def hangs(value: int) -> None:
        begun.release()
        never.wait()

    for call in (stubborn, hangs):
        pool = CallPool(call, CallPolicy(concurrency=2))
        pool.submit(calls(*range(4)))
        assert begun.acquire(timeout=30)
        pool.close()
        pool.close()
        assert pool.completed(None) == []
        with pytest.raises(PipelineError, match="closed"):
            pool.submit(calls(1))
    never.set()


def test_whoever_waits_is_woken_when_the_pool_closes() -> None:
    begun, got = threading.Event(), list[list[Outcome]]()

    async def ask(value: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    pool = CallPool(ask, CallPolicy())
    pool.submit(calls(1))
    waiter = threading.Thread(target=lambda: got.append(pool.completed(None)), daemon=True)
    waiter.start()
    assert begun.wait(30)
    pool.close()
    waiter.join(30)
    assert got == [[]]


# -- in threads ------------------------------------------------------------------------------------


def test_plain_functions_run_in_threads_at_once() -> None:
    together = threading.Barrier(5, timeout=30)

    def ask(value: int) -> int:
        together.wait()
        return value

    with threaded(ask, CallPolicy(concurrency=5)) as pool:
        assert responses(answers(pool, *range(20))) == list(range(20))


def test_a_thread_that_takes_too_long_keeps_its_place() -> None:
    go_on = threading.Event()
    began = list[str]()

    def ask(request: str) -> str:
        began.append(request)
        if request == "slow":
            go_on.wait(30)
        return request

    with threaded(ask, CallPolicy(concurrency=1, timeout="20 ms", retries=0)) as pool:
        pool.submit(calls("slow", "quick"))
        (slow,) = pool.completed(None)
        assert isinstance(slow.error, TimeoutError)
        assert began == ["slow"]
        go_on.set()
        (quick,) = pool.completed(None)
        assert quick.response == "quick"


def test_a_coroutine_of_a_plain_function_is_refused() -> None:
    async def fetch(value: int) -> int:
        return value

    for pool_in in (virtual, threaded):
        with pool_in(lambda value: fetch(value), name="scores") as pool:
            (outcome,) = answers(pool, 1)
            assert "scores: the call returned a coroutine, which nobody has run" in str(
                outcome.error
            )


def test_the_callback_is_called_when_outcomes_are_there() -> None:
    there = threading.Semaphore(0)
    with threaded(Service(0.0)) as pool:
        pool.wake(there.release)
        pool.submit(calls(1))
        assert there.acquire(timeout=30)
        assert len(pool.completed(0)) == 1


def test_a_thousand_calls_through_threads_have_one_outcome_each() -> None:
    number = itertools.count()

    async def ask(value: int) -> int:
        if next(number) % 7 == 0:
            raise DOWN
        await asyncio.sleep(0)
        return value

    with threaded(ask, CallPolicy(retries=20, backoff=1, concurrency=50)) as pool:
        got = Counter[int]()
        for first in range(0, 1000, 10):
            pool.submit(Call(b"", None, first + n) for n in range(10))
            got.update(outcome.response for outcome in pool.completed(0))
        while outcomes := pool.completed(None):
            got.update(outcome.response for outcome in outcomes)
    assert got == Counter(range(1000))


# -- stats -----------------------------------------------------------------------------------------


def test_what_happened_is_counted_once() -> None:
    tried = Counter[str]()

    async def ask(request: str) -> str:
        tried[request] += 1
        if request == "once" and tried[request] == 1:
            raise DOWN
        if request == "refused":
            raise KeyError(request)
        await asyncio.sleep(9 if request == "slow" else 0.1)
        return request

    with virtual(ask, CallPolicy(timeout="3 s", retries=1, backoff="1 s")) as pool:
        pool.submit(calls("fine", "once", "refused", "slow"))
        pool.completed(0)
        while pool.completed(1.0) or pool.waiting or pool.in_flight > 1:
            pass
        pool.completed(0.5)
        stats = pool.take_stats()
        assert (stats.made, stats.retried, stats.timed_out) == (5, 1, 0)
        assert (stats.answered, stats.failed, stats.in_flight, stats.waiting) == (2, 1, 1, 0)
        assert sum(stats.durations.values()) == 4
        while pool.completed(None):
            pass
        stats = pool.take_stats()
        assert (stats.made, stats.timed_out, stats.failed, stats.in_flight) == (1, 2, 1, 0)
        assert stats.times.percentiles((50,)) == [4.0]
