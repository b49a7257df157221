"""Whatever calls do, each has one outcome: its own, and by its last attempt."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.calls import BatchPolicy, Call, CallPolicy, Outcome
from millrace.runtime.call_pool import CallPool
from millrace.runtime.virtual_loop import VirtualTimeLoop

#: What an attempt does: so many seconds, and then it answers, fails for a while or for good,
#: cancels itself, or does not let itself be cancelled.
ATTEMPTS = st.tuples(
    st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 1.5, 4.0]),
    st.sampled_from(["answers", "answers", "answers", "down", "refuses", "cancels", "stubborn"]),
)


@dataclass(frozen=True)
class Plan:
    """Of one call: its attempts; the last of them is repeated."""

    attempts: tuple[tuple[float, str], ...]


PLANS = st.lists(ATTEMPTS, min_size=1, max_size=4).map(lambda attempts: Plan(tuple(attempts)))

POLICIES = st.builds(
    CallPolicy,
    concurrency=st.integers(1, 4),
    timeout=st.sampled_from([None, "1 s", "2 s"]),
    retries=st.integers(0, 3),
    backoff=st.sampled_from([0, "100 ms", "1 s"]),
    breaker=st.none(),
)
BATCHES = st.builds(
    BatchPolicy,
    max_size=st.integers(1, 5),
    max_wait=st.sampled_from([0, "100 ms", "2 s"]),
    threads=st.integers(1, 3),
)
#: What the task does: submits so many, waits so long, or forgets all.
STEPS = st.lists(
    st.one_of(
        st.lists(PLANS, min_size=1, max_size=6),
        st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        st.just("cancel"),
    ),
    min_size=1,
    max_size=12,
)


class Service:
    """Does what requests say."""

    def __init__(self) -> None:
        self.attempts = Counter[int]()
        self.now = self.most = 0

    def step(self, request: tuple[int, Plan]) -> tuple[float, str]:
        number, plan = request
        nth = self.attempts[number]
        self.attempts[number] += 1
        return plan.attempts[min(nth, len(plan.attempts) - 1)]

    async def one(self, request: tuple[int, Plan]) -> Any:
        return (await self.many([request]))[0]

    async def many(self, requests: list[tuple[int, Plan]]) -> list[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        steps = [self.step(request) for request in requests]
        try:
            until = asyncio.get_running_loop().time() + max(seconds for seconds, _ in steps)
            while (left := until - asyncio.get_running_loop().time()) > 1e-9:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    if not any(does == "stubborn" for _, does in steps):
                        raise
            await asyncio.sleep(0)
            for does, error in (
                ("down", ConnectionError()),
                ("refuses", KeyError()),
                ("cancels", asyncio.CancelledError()),
            ):
                if any(done == does for _, done in steps):
                    raise error
            return [number for number, _ in requests]
        finally:
            self.now -= 1


def run(steps: list[Any], pool: CallPool) -> tuple[list[Outcome], set[int], set[int]]:
    """Return outcomes, the calls that were submitted, and those that may have none."""
    outcomes, submitted, excused = list[Outcome](), set[int](), set[int]()
    for step in steps:
        if step == "cancel":
            pool.cancel()
            excused |= submitted - {outcome.call.source for outcome in outcomes}
        elif isinstance(step, float):
            outcomes += pool.completed(step)
        else:
            first = len(submitted)
            numbers = range(first, first + len(step))
            submitted |= set(numbers)
            pool.submit(
                Call(b"%d" % n, n, (n, plan), source=n)
                for n, plan in zip(numbers, step, strict=True)
            )
    while more := pool.completed(None):
        outcomes += more
    return outcomes, submitted, excused


def expected(plan: Plan, policy: CallPolicy) -> tuple[str | type[BaseException], int]:
    """Return what comes of a call that is made alone, and how many attempts it takes."""
    for nth in range(policy.retries + 1):
        seconds, does = plan.attempts[min(nth, len(plan.attempts) - 1)]
        if policy.timeout_us is not None and seconds * 1e6 > policy.timeout_us:
            error: type[BaseException] = TimeoutError
        elif does in ("answers", "stubborn"):
            return "answered", nth + 1
        elif does == "down":
            error = ConnectionError
        else:
            return (KeyError if does == "refuses" else futures.CancelledError), nth + 1
    return error, policy.retries + 1


@given(steps=STEPS, policy=POLICIES, seed=st.integers(0, 9))
def test_each_call_has_the_outcome_that_it_would_have_alone(
    steps: list[Any], policy: CallPolicy, seed: int
) -> None:
    # An attempt that ends exactly when it is too late may do either.
    service, loop = Service(), VirtualTimeLoop()
    pool = CallPool(service.one, policy, loop=loop, jitter=random.Random(seed).random)
    outcomes, submitted, excused = run(_apart(steps), pool)
    pool.close()
    loop.close()

    got = Counter(outcome.call.source for outcome in outcomes)
    assert set(got.values()) <= {1}
    assert submitted - excused <= set(got) <= submitted
    assert service.most <= policy.concurrency
    for outcome in outcomes:
        number, plan = outcome.call.request
        came, attempts = expected(plan, policy)
        if came == "answered":
            assert (outcome.response, outcome.error) == (number, None)
        else:
            assert type(outcome.error) is came
        assert outcome.attempts == attempts
    assert (pool.in_flight, pool.waiting) == (0, 0)


@given(steps=STEPS, policy=POLICIES, batch=BATCHES, seed=st.integers(0, 9))
def test_each_call_of_a_batch_has_its_own_outcome(
    steps: list[Any], policy: CallPolicy, batch: BatchPolicy, seed: int
) -> None:
    service, loop = Service(), VirtualTimeLoop()
    pool = CallPool(service.many, policy, batch, loop=loop, jitter=random.Random(seed).random)
    outcomes, submitted, excused = run(_apart(steps), pool)
    pool.close()
    loop.close()

    got = Counter(outcome.call.source for outcome in outcomes)
    assert set(got.values()) <= {1}
    assert submitted - excused <= set(got) <= submitted
    assert service.most <= batch.threads
    for outcome in outcomes:
        number, plan = outcome.call.request
        if outcome.error is None:
            assert outcome.response == number
        if all(does == "refuses" for _, does in plan.attempts):
            assert outcome.error is not None
        if all(does == "answers" and seconds < 1 for seconds, does in plan.attempts):
            assert outcome.error is None, "the error of another record of its batch"


@given(
    steps=STEPS,
    policy=st.builds(
        CallPolicy,
        concurrency=st.integers(1, 4),
        retries=st.integers(0, 2),
        breaker=st.integers(1, 3),
        max_backoff=st.sampled_from(["100 ms", "5 s"]),
    ),
    back_s=st.sampled_from([0.0, 1.0, 60.0]),
    seed=st.integers(0, 9),
)
def test_an_outage_of_any_length_fails_no_call(
    steps: list[Any], policy: CallPolicy, back_s: float, seed: int
) -> None:
    async def ask(request: Any) -> Any:
        await asyncio.sleep(0.01)
        if asyncio.get_running_loop().time() < back_s:
            raise ConnectionError
        return request

    loop = VirtualTimeLoop()
    pool = CallPool(ask, policy, loop=loop, jitter=random.Random(seed).random)
    outcomes, submitted, excused = run(steps, pool)
    pool.close()
    loop.close()
    got = Counter(outcome.call.source for outcome in outcomes)
    assert set(got.values()) <= {1}
    assert submitted - excused <= set(got)
    if policy.breaker is not None and policy.breaker <= policy.retries:
        assert all(outcome.error is None for outcome in outcomes)


def _apart(steps: list[Any]) -> list[Any]:
    """Let no attempt end exactly when it is too late."""

    def moved(plan: Plan) -> Plan:
        return Plan(tuple((seconds * 1.01, does) for seconds, does in plan.attempts))

    return [[moved(plan) for plan in step] if isinstance(step, list) else step for step in steps]
