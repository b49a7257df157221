"""Computations: a pipeline of user code that uses all that a computation may.

Three levels, state cells of every kind, holds, timers of both domains, set, moved and deleted, late
records, records that user code fails on, records that the source delivers again, strong and weak
productions, and user code whose outcome is different each time it runs (it draws random numbers),
as code that reads a clock or asks a service is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.model.computation import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK, Computation
from millrace.model.record import WALL_TIME, Record, Timer
from millrace.model.state import BagState, CombiningState, MapState, ValueState
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from simulation.definitions import Wrong
from simulation.program import Ends, Evidence

#: Records with this value make user code fail.
POISON = 13
#: The streams that have sinks: all but the injected one.
SUNK = ("aggregates", "alerts", "enriched", "refused")

#: (key, how many it asked for before) -> a number.
Draw = Callable[[str, int], int]


def _nobody(key: str, nth: int) -> int:
    raise AssertionError(f"draw {nth} of key {key!r}: no simulation is running")


#: What the non-deterministic computation asks for a number: (key, how many it asked for before).
#: A simulation puts its own function here; user code has no other way to be handed one.
draw: Draw = _nobody


def drawn_in(value: Any) -> tuple[str, int, int]:
    """Return key, how many draws it had before, and the number, of a value of ``enriched``."""
    if isinstance(value, list):
        key, nth, number, *_ = value
        return key, nth, number
    return value.key, value.nth, value.number


class Enrich(Computation):
    """Level 1: attaches a random number to every record."""

    inputs = {"events": by("user")}
    outputs = {"enriched": list}
    drawn: ValueState[int] = ValueState(int)
    last: ValueState[int] = ValueState(int)
    numbers: BagState[int] = BagState(int)

    def process_record(self, record: Record) -> None:
        """Send the record on, with a number that no second run would draw again."""
        n = record.value["n"]
        self.numbers.add(n)
        if n % 3 == 0:
            self.hold(record.timestamp)
            self.set_timer("flush", at=record.timestamp + 20 * SECOND)
        self._send(n, [record.id.hex(), record.late])
        if n == POISON:
            raise ValueError(f"{n} is not to be had")

    def process_timer(self, timer: Timer) -> None:
        """Tell how many numbers there were, and let the low watermark go on."""
        self._send(len(list(self.numbers)), ["flush", timer.at])
        self.numbers.clear()
        self.hold(None)

    def _send(self, n: int, what: list[Any]) -> None:
        nth = self.drawn.get(0)
        self.drawn.set(nth + 1)
        self.last.set(draw(self.key, nth))
        self.produce("enriched", [self.key, nth, self.last.get(), n, *what])


class Aggregate(Computation):
    """Level 2: counts by bucket of event time, and by wall clock."""

    inputs = {"enriched": by(lambda value: value[3] % 3)}
    outputs = {"aggregates": list}
    buckets: MapState[int] = MapState(int)
    total: CombiningState[int] = CombiningState(int)
    chain: ValueState[int] = ValueState(int)

    def process_record(self, record: Record) -> None:
        """Count, and chain the numbers seen, so that order and repetition show."""
        bucket = record.timestamp // (10 * SECOND)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.total.add(1)
        self.chain.set((self.chain.get(0) * 31 + record.value[2] + 1) % (1 << 40))
        self.set_timer(bucket, at=(bucket + 1) * 10 * SECOND)
        if record.value[3] % 4 == 1:
            self.delete_timer(bucket - 1)
        self.set_timer("wall", at=self.wall_time + 90 * SECOND, domain=WALL_TIME)

    def process_timer(self, timer: Timer) -> None:
        """Produce a bucket's count, or on the wall clock the whole state."""
        if timer.domain == WALL_TIME:
            value = ["wall", self.total.get(), self.chain.get(), sorted(self.buckets.items())]
            self.produce("aggregates", [self.key, *value], timestamp=max(self.low_watermark, 0))
        else:
            count = self.buckets.pop(timer.tag)
            self.produce(
                "aggregates", [self.key, timer.tag, count, self.chain.get()], timestamp=timer.at - 1
            )


class Alert(Computation):
    """Level 3: a fan-in of two levels."""

    inputs = {
        "aggregates": by(lambda value: str(value[1])),
        "enriched": by(lambda value: value[0]),
    }
    outputs = {"alerts": list}
    count: ValueState[int] = ValueState(int)
    chain: ValueState[int] = ValueState(int)

    def process_record(self, record: Record) -> None:
        """Number what comes, and say what it was."""
        self.count.set(self.count.get(0) + 1)
        number = record.value[3] if record.stream == "aggregates" else record.value[2]
        self.chain.set((self.chain.get(0) * 31 + number + 1) % (1 << 40))
        self.set_timer("silence", at=record.timestamp + 12 * SECOND)
        if self.count.get(0) % 2:
            said = [self.key, self.count.get(), self.chain.get(), record.late, record.id.hex()]
            self.produce("alerts", said)

    def process_timer(self, timer: Timer) -> None:
        """Say that nothing more came."""
        self.produce("alerts", [self.key, self.count.get(), self.chain.get(), timer.at])


class Computations:
    """The program of the three computations; see :class:`~.program.Program`.

    Args:
        random: Chooses what they ask of the commit protocol.
        ends: Where records come from and go to.
    """

    def __init__(self, random: Random, ends: Ends) -> None:
        weak = random.random() < 0.4
        self.ids = random.random() < 0.6
        self._filters = self.ids and random.random() < 0.8
        p = Pipeline("simulated")
        ends.inject(p, ids=self.ids, slack="30 s")
        p.add(Enrich, delivery=EXACTLY_ONCE if self._filters else AT_LEAST_ONCE)
        p.add(Aggregate, productions=WEAK if weak else STRONG)
        p.add(Alert)
        p.dead_letter("refused")
        for stream in SUNK:
            p.sink(stream, ends.sink(stream))
        self.topology = build(p)
        delivery = "once" if self._filters else "as often as they come"
        self.name = f"computations: {'weak' if weak else 'strong'}, records {delivery}"

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice("abcdef"), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check that each record came once, or as often as the source delivered it."""
        came: Counter[tuple[Any, ...]] = Counter()
        for batch in evidence.batches:
            came.update((a.value["id"], a.value["user"], a.value["n"]) for a in batch)
        rows = evidence.outputs("enriched")
        found = Counter((sunk.value[0], sunk.value[3]) for sunk in rows if sunk.value[4] != "flush")
        least: Counter[tuple[Any, ...]] = Counter()
        most: Counter[tuple[Any, ...]] = Counter()
        for (_, user, n), times in came.items():
            if n != POISON:
                most[user, n] += times
                # An id is kept for a while only, so what comes again late counts again.
                least[user, n] += 1 if self._filters else times
        if found - most or least - found:
            raise Wrong(f"enriched: {found - most} too often, {least - found} missing")
        poison = sum(times for (*_, n), times in came.items() if n == POISON)
        letters = sum(sunk.value.computation == "Enrich" for sunk in evidence.outputs("refused"))
        if letters > poison or (not self._filters and letters < poison):
            raise Wrong(f"{letters} dead letters, of {poison} records that user code fails on")
