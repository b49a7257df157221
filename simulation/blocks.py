"""Blocks: a pipeline of computations over columns, which run the records of many keys at once.

Two levels, the second of strong or weak productions. User code draws random numbers, as code that
asks a service does; it fails on some records, and what it produces of others is refused. Both are
to leave nothing of the block that they were in, and all of what else was in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import msgspec
import numpy as np

from millrace.compile.build import build
from millrace.model.column_computation import ColumnComputation, KeyBlock
from millrace.model.computation import STRONG, WEAK
from millrace.model.state import ValueState
from millrace.model.stream import by
from millrace.model.time import LATEST_RECORD
from millrace.pipeline import Pipeline
from simulation import computations
from simulation.computations import POISON
from simulation.definitions import Wrong
from simulation.program import Ends, Evidence

#: Of records with this value a production is refused, when others of the block have been encoded.
REFUSED = 12
_SUNK = ("enriched", "thirds", "gathered", "refused")


class Payment(msgspec.Struct):
    """What the source delivers."""

    id: int
    user: str
    n: int


class Drawn(msgspec.Struct):
    """A payment, and the random number that it got.

    Attributes:
        key: The user.
        nth: How many payments the user had before.
        number: The random number.
        id: Of the payment.
        n: Of the payment.
        total: Of the user, since it was cleared.
        late: Whether the payment was late.
        stood: Where the low watermark stood.
    """

    key: str
    nth: int
    number: int
    id: int
    n: int
    total: int
    late: bool
    stood: int


class Gathered(msgspec.Struct):
    """How many numbers a group has, and a chain of them."""

    group: int
    nth: int
    number: int
    chain: int


class Draw(ColumnComputation):
    """Level 1: numbers the payments of each user, and draws a number for each."""

    inputs = {"payments": by("user")}
    outputs = {"enriched": Drawn, "thirds": int}
    count: ValueState[int] = ValueState(int)
    total: ValueState[int] = ValueState(int)

    def process_batch(self, block: KeyBlock) -> None:
        """Send all payments on, and those of every third number twice."""
        counts, totals = (block.state[cell].to_pylist() for cell in ("count", "total"))
        numbers, ids = (block.records[field].to_pylist() for field in ("n", "id"))
        columns: dict[str, list[Any]] = {name: [] for name in Drawn.__struct_fields__}
        for at, key_of in enumerate(block.key_of.tolist()):
            n, key, nth = numbers[at], block.keys[key_of], counts[key_of] or 0
            if n == POISON:
                raise ValueError(f"{n} is not to be had")
            total = (totals[key_of] or 0) + n
            drawn = computations.draw(key, nth)
            late, stood = bool(block.late[at]), block.low_watermark
            row = (key, nth, drawn, ids[at], n, total, late, stood)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            counts[key_of] = nth + 1
            totals[key_of] = total if total % 4 else None
        block.set_state(count=counts, total=totals)
        block.produce("enriched", columns)
        of = np.array(numbers)
        third = of % 3 == 0
        # The second stream of the block: what is refused here comes behind what was taken.
        times = np.where(of[third] == REFUSED, LATEST_RECORD + 1, block.timestamps[third])
        block.produce("thirds", of[third], key_of=block.key_of[third], timestamps=times)


class Gather(ColumnComputation):
    """Level 2: chains the numbers of each group."""

    inputs = {"enriched": by(lambda value: value.n % 3)}
    outputs = {"gathered": Gathered}
    count: ValueState[int] = ValueState(int)
    chain: ValueState[int] = ValueState(int)

    def process_batch(self, block: KeyBlock) -> None:
        """Send each number with the chain so far, so that order and repetition show."""
        counts, chains = (block.state[cell].to_pylist() for cell in ("count", "chain"))
        numbers = block.records["number"].to_pylist()
        columns: dict[str, list[int]] = {name: [] for name in Gathered.__struct_fields__}
        for number, key_of in zip(numbers, block.key_of.tolist(), strict=True):
            nth = counts[key_of] or 0
            counts[key_of] = nth + 1
            chains[key_of] = chained(chains[key_of] or 0, number)
            row = (block.keys[key_of], nth, number, chains[key_of])
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        block.set_state(count=counts, chain=chains)
        block.produce("gathered", columns)


def chained(chain: int, number: int) -> int:
    """Return a chain with one number more."""
    return (chain * 31 + number + 1) % (1 << 40)


class Blocks:
    """The program of blocks; see :class:`~.program.Program`.

    Args:
        random: Chooses.
        ends: Where records come from and go to.
    """

    def __init__(self, random: Random, ends: Ends) -> None:
        self.ids = random.random() < 0.6
        weak = random.random() < 0.4
        self._users = "abcdef"[: random.choice((2, 4, 6))]
        p = Pipeline("simulated")
        events = ends.inject(p, ids=self.ids, slack="30 s")
        events.key_by("user").map(payment).to("payments", format=Payment)
        p.add(Draw)
        p.add(Gather, productions=WEAK if weak else STRONG)
        p.dead_letter("refused")
        for stream in _SUNK:
            p.sink(stream, ends.sink(stream))
        self.topology = build(p)
        self.name = f"blocks: {'weak' if weak else 'strong'}"

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice(self._users), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check that each payment counts once, in one order, and those that fail not at all."""
        came: Counter[tuple[Any, ...]] = Counter()
        for batch in evidence.batches:
            came.update((a.value["id"], a.value["user"], a.value["n"], a.at_us) for a in batch)
        good = Counter({one: times for one, times in came.items() if not _fails(one[2])})
        enriched = evidence.outputs("enriched")
        found = Counter((one.value.id, one.key, one.value.n, one.at_us) for one in enriched)
        # An id is kept for a while only, so what comes again late counts again.
        least = Counter(dict.fromkeys(good, 1)) if self.ids else good
        if found - good or least - found:
            raise Wrong(f"enriched: {found - good} too often, {least - found} missing")
        _check_totals([one.value for one in enriched])
        for one in enriched:
            if one.value.late != (one.at_us < one.value.stood):
                raise Wrong(f"enriched: at {one.at_us}, {one.value}")
        thirds = Counter((one.key, one.value, one.at_us) for one in evidence.outputs("thirds"))
        wanted = Counter((o.key, o.value.n, o.at_us) for o in enriched if o.value.n % 3 == 0)
        if thirds != wanted:
            raise Wrong(f"thirds: {thirds - wanted} too many, {wanted - thirds} missing")
        _check_chains(
            [one.value for one in evidence.outputs("gathered")], [one.value for one in enriched]
        )
        self._check_letters(evidence, came - good)
        late, counters = sum(one.value.late for one in enriched), evidence.last.counters["Draw"]
        if not late <= counters.late <= late + counters.dead_letters:
            raise Wrong(f"{counters.late} late records were counted, and {late} were late")

    def _check_letters(self, evidence: Evidence, bad: Counter[tuple[Any, ...]]) -> None:
        """Check that each record that fails has a dead letter."""
        letters = [sunk.value for sunk in evidence.outputs("refused")]
        for number, reason in ((POISON, "not to be had"), (REFUSED, "after 2262")):
            most = sum(times for one, times in bad.items() if one[2] == number)
            least = sum(one[2] == number for one in bad) if self.ids else most
            found = sum(reason in letter.reason for letter in letters)
            if not least <= found <= most:
                raise Wrong(f"{found} dead letters of {number}, and not {least} to {most}")
        if len(letters) != evidence.last.counters["Draw"].dead_letters:
            raise Wrong(f"dead letters: {[letter.reason for letter in letters]}")


def payment(value: Any) -> Payment:
    """Return what the source delivers, as a payment."""
    return Payment(value["id"], value["user"], value["n"])


def _fails(n: int) -> bool:
    return n in (POISON, REFUSED)


def _check_totals(rows: list[Drawn]) -> None:
    """Check that each user's payments are numbered, and add up."""
    by_user: dict[str, list[Drawn]] = defaultdict(list)
    for row in rows:
        by_user[row.key].append(row)
    for user, mine in by_user.items():
        total = 0
        for at, row in enumerate(sorted(mine, key=lambda row: row.nth)):
            total += row.n
            if (row.nth, row.total) != (at, total):
                raise Wrong(f"user {user}: payment {at} is {row}, and not of total {total}")
            total = total if total % 4 else 0


def _check_chains(rows: list[Gathered], drawn: list[Drawn]) -> None:
    """Check that each group has all its numbers, once, and a chain of them."""
    wanted = Counter((row.n % 3, row.number) for row in drawn)
    found = Counter((row.group, row.number) for row in rows)
    if found != wanted:
        raise Wrong(f"gathered: {found - wanted} too many, {wanted - found} missing")
    for group in {row.group for row in rows}:
        chain = 0
        mine = sorted((row for row in rows if row.group == group), key=lambda row: row.nth)
        for at, row in enumerate(mine):
            chain = chained(chain, row.number)
            if (row.nth, row.chain) != (at, chain):
                raise Wrong(f"group {group}: number {at} is {row}, and not of chain {chain}")
