"""Calls: a pipeline whose records wait for a service, with state, without, and levels behind.

Calls return in an order that is drawn. By epochs that order follows from their ids alone, one call
after the other, so that a run on fewer tasks makes the same productions in the same order.

Where attempts are simulated too, a pool as in production makes them, in virtual time. They fail for
a while, hang, and meet a circuit breaker: none of that may be seen in what comes of a record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.compile.topology import ComputationSpec
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import CallOrder, CallPolicy
from millrace.model.computation import Computation
from millrace.model.record import Record
from millrace.model.state import BagState, ValueState
from millrace.model.stream import by, by_key
from millrace.pipeline import Pipeline
from millrace.runtime.calls import CallPools
from simulation.call_pool import ATTEMPTED, AttemptingPool, DrawnPool
from simulation.computations import POISON
from simulation.definitions import Wrong
from simulation.program import STREAM, Ends, Evidence, Program

_SUNK = ("answered", "echoed", "tailed", "refused")


class Ask(AsyncComputation):
    """Asks with the total of its user so far, which the response must find as it was."""

    inputs = {STREAM: by("user")}
    outputs = {"answered": list}
    calls = CallPolicy(concurrency=3)
    total: ValueState[int] = ValueState(int)
    seen: BagState[int] = BagState(int)

    def request(self, record: Record) -> Any:
        """Return number and total; nothing of some records."""
        n = record.value["n"]
        return None if n % 5 == 0 else [n, self.total.get(0), record.value["id"]]

    async def call(self, request: Any) -> Any:
        """Return what was asked."""
        if request[0] == POISON:
            raise ValueError(f"{POISON} is not to be had")
        return request

    def process_response(self, record: Record, response: Any) -> None:
        """Add to the total, and say so."""
        n, number, total = record.value["n"], record.value["id"], self.total.get(0)
        if response is not None and response != [n, total, number]:
            raise AssertionError(f"{[n, total, number]} was answered {response}")
        nth = len(list(self.seen))
        self.seen.add(n)
        self.total.set(total + n)
        self.produce("answered", [self.key, nth, total + n, number, n])


async def echo(value: dict[str, Any]) -> list[Any]:
    """Return what came."""
    return [value["user"], value["id"], value["n"]]


class AskAgain(Ask):
    """Asks a service that is down now and then."""

    calls = CallPolicy(concurrency=3, **ATTEMPTED, breaker=2)


class Tail(Computation):
    """Says of all that was answered whether it came late."""

    inputs = {"answered": by_key(), "echoed": by_key()}
    outputs = {"tailed": list}

    def process_record(self, record: Record) -> None:
        """Say so."""
        self.produce("tailed", [record.stream, *record.value[-2:], record.late])


class Calling:
    """The program of calls; see :class:`~.program.Program`.

    Args:
        random: Chooses.
        ends: Where records come from and go to.
        attempts: Whether each attempt at a call is simulated.
        slow: Whether calls return so slowly that others wait for them.

    Attributes:
        attempts: Whether each attempt is simulated.
        idle: The chance that none returns when a pool is asked.
        overloads: What a pool asked of the service at a time, where that was too much.
    """

    def __init__(
        self, random: Random, ends: Ends, *, attempts: bool = False, slow: bool = False
    ) -> None:
        self.attempts = attempts
        self.idle: float | None = None
        if slow:  # with attempts, each of a call takes its time
            self.idle = random.choice((0.6, 0.8) if attempts else (0.8, 0.95, 0.98))
        self.overloads: list[str] = []
        self.ids = random.random() < 0.6
        order: CallOrder = random.choice(("key", "none"))
        p = Pipeline("simulated")
        events = ends.inject(p, ids=self.ids, slack="30 s")
        keyed = events.key_by("user")
        if attempts:
            p.add(AskAgain, name="Ask")
            breaker = random.choice((None, 3))
            asking: Callable[..., object] = partial(keyed.map_async, breaker=breaker, **ATTEMPTED)
        else:
            p.add(Ask)
            asking = keyed.map_async
        asking(echo, order=order, concurrency=2, name="echoed", format=list)
        p.add(Tail)
        p.dead_letter("refused")
        for stream in _SUNK:
            p.sink(stream, ends.sink(stream))
        self.topology = build(p)
        self.name = (
            f"{'slow ' if slow else ''}calls{' with attempts' if attempts else ''}, order {order}"
        )

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice("abcd"), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check that each record was answered once, and each answer given to its record."""
        if self.overloads:
            raise Wrong(self.overloads[0])
        came: Counter[tuple[int, str, int, int]] = Counter()
        for batch in evidence.batches:
            came.update((a.value["id"], a.value["user"], a.value["n"], a.at_us) for a in batch)
        answered = evidence.outputs("answered")
        by_user: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for user, nth, total, _, n in (sunk.value for sunk in answered):
            by_user[user].append((nth, total, n))
        for user, rows in by_user.items():
            total = 0
            for at, (nth, said, n) in enumerate(sorted(rows)):
                total += n
                if (nth, said) != (at, total):
                    raise Wrong(
                        f"user {user}: answer {at} is {nth}, with total {said}, not {total}"
                    )
        good = Counter({one: times for one, times in came.items() if one[2] != POISON})
        told = Counter((*_picked(one.value, 3, 0, 4), one.at_us) for one in answered)
        self._compare("answered", good, told)
        echoed = evidence.outputs("echoed")
        if wrong := [one for one in echoed if one.key != one.value[0]]:
            raise Wrong(f"echoed: an answer went to another key: {wrong[:3]}")
        told = Counter((*_picked(one.value, 1, 0, 2), one.at_us) for one in echoed)
        self._compare("echoed", came, told)
        tailed = Counter(sunk.value[0] for sunk in evidence.outputs("tailed"))
        if tailed != Counter({"answered": len(answered), "echoed": len(echoed)}):
            raise Wrong(f"tailed {tailed}, of {len(answered)} and {len(echoed)}")
        letters = [sunk.value for sunk in evidence.outputs("refused")]
        if bad := [one for one in letters if "not to be had" not in one.reason]:
            raise Wrong(f"a dead letter: {bad[0].reason}")

    def _compare(self, what: str, most: Counter[Any], found: Counter[Any]) -> None:
        # An id is kept for a while only, so what comes again late counts again.
        least = Counter(dict.fromkeys(most, 1)) if self.ids else most
        if found - most or least - found:
            raise Wrong(f"{what}: {found - most} too often, {least - found} missing")


def _picked(value: list[Any], *places: int) -> list[Any]:
    return [value[place] for place in places]


def drawn_pools(program: Program, random: Random | None) -> CallPools:
    """Return pools whose calls return when it is drawn.

    Args:
        program: Whose calls they make.
        random: Draws it; None: they return in the order of their ids, one after the other.
    """

    def make(spec: ComputationSpec) -> Any:
        assert isinstance(spec.instance, AsyncComputation)
        assert isinstance(program, Calling), "no other one makes calls"
        if program.attempts:
            return AttemptingPool(spec.instance, random, program.overloads, idle=program.idle)
        if program.idle is None:
            return DrawnPool(spec.instance, random)
        return DrawnPool(spec.instance, random, idle=program.idle)

    return CallPools(make=make)
