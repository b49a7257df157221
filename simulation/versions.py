"""Versions: one program that is changed while it runs, and what must come of each version.

A computation that numbers what comes to it, key by key, gets other names, its cell too, and has its
values made anew; another is added, drained and removed. The numbers say whether state went along:
none is missing and none comes twice, and each value was made anew as often as there was reason to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.compile.topology import Topology
from millrace.model.computation import Computation
from millrace.model.record import Record, Timer
from millrace.model.state import ValueState
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from simulation import computations
from simulation.definitions import Wrong
from simulation.program import Ends, Evidence

#: What one migration adds to a number; more than a schedule has records.
MADE_ANEW = 1000
#: A stream that no one reads, and whose name says which version it is of.
_MARK = re.compile(r"version (\d+)")


class Draw(Computation):
    """Level 1: attaches a random number to every record."""

    inputs = {"events": by("user")}
    outputs = {"enriched": list}
    drawn: ValueState[int] = ValueState(int)

    def process_record(self, record: Record) -> None:
        """Send it on with a number that no second run would draw again."""
        nth = self.drawn.get(0)
        self.drawn.set(nth + 1)
        drawn = computations.draw(self.key, nth)
        self.produce("enriched", [self.key, nth, drawn, record.value["n"], record.value["id"]])


def _group(value: list[Any]) -> int:
    return int(value[3]) % 4


def first(value: int) -> int:
    """Make a number anew."""
    return value + MADE_ANEW


def second(value: int) -> int:
    """Make it anew once more."""
    return value + MADE_ANEW


class Numbering(Computation):
    """Level 2: numbers what comes, and says each number once more on a timer."""

    said = ""
    cell = ""

    def process_record(self, record: Record) -> None:
        """Say the next number."""
        number = self._number.get(0) + 1
        self._number.set(number)
        self.set_timer(f"{record.value[0]} {record.value[1]}", at=record.timestamp + 20 * SECOND)
        self.produce(self.said, [self.key, "next", number, record.value[2]])

    def process_timer(self, timer: Timer) -> None:
        """Say where it stands."""
        self.produce(self.said, [self.key, "timer", timer.tag, self._number.get()])

    @property
    def _number(self) -> Any:
        return getattr(self, self.cell)


@dataclass(frozen=True)
class Version:
    """What one version of the program is like.

    Attributes:
        names: Of the computation that is always there: now, and before.
        cells: The names of its cell: now, and before.
        made_anew: How many migrations its cell has had.
        extra: What is with the other computation: 0 not there yet, 1 at work, 2 drained, 3 gone.
    """

    names: tuple[str, ...] = ("Tally",)
    cells: tuple[str, ...] = ("count",)
    made_anew: int = 0
    extra: int = 0

    def changed(self, random: Random) -> Version:
        """Return the next one."""
        kind = random.choice(("name", "cell", "anew", "extra", "extra"))
        if kind == "name":
            return replace(self, names=(f"Tally {len(self.names) + 1}", *self.names))
        if kind == "cell":
            return replace(self, cells=(f"count{len(self.cells) + 1}", *self.cells))
        if kind == "anew" and self.made_anew < 2:
            return replace(self, made_anew=self.made_anew + 1)
        if self.extra == 1 and random.random() < 0.5:
            return replace(self, extra=3)
        return replace(self, extra=min(3, self.extra + 1))

    def build(self, number: int, ends: Ends, *, ids: bool) -> Topology:
        """Return its topology."""
        p = Pipeline("changing")
        ends.inject(p, ids=ids, slack="1 h")
        p.add(Draw)
        now, *before = self.names
        cell, *cells = self.cells
        named: dict[str, Any] = {cell: ValueState(int, was=cells[0] if cells else None)}
        tally = _numbering("tallies", cell, named, {f"version {number}": int})
        last = (None, first, second)[self.made_anew]
        p.add(tally, name=now, was=before, migrate=None if last is None else {cell: last})
        if self.extra in (1, 2):
            p.add(_numbering("extras", "n", {"n": ValueState(int)}, {}), name="Extra")
            p.sink("extras", ends.sink("extras"))
        if self.extra == 2:
            p.drain("Extra")
        if self.extra == 3:
            p.remove("Extra")
        for stream in ("enriched", "tallies"):
            p.sink(stream, ends.sink(stream))
        return build(p)


def _numbering(
    said: str, cell: str, cells: Mapping[str, Any], outputs: Mapping[str, type]
) -> type[Computation]:
    members = {
        "inputs": {"enriched": by(_group)},
        "outputs": {said: list, **outputs},
        "said": said,
        "cell": cell,
        **cells,
    }
    return type("Numbering", (Numbering,), members)


def version_of(streams: Iterable[str]) -> int:
    """Return which version has these streams."""
    return next(int(found[1]) for name in streams if (found := _MARK.fullmatch(name)))


class Versions:
    """The program of several versions; see :class:`~.program.Program`.

    Args:
        random: Chooses what changes.
        ends: Where records come from and go to.
    """

    def __init__(self, random: Random, ends: Ends) -> None:
        self.ids = random.random() < 0.5
        one = Version()
        self._versions = [one]
        for _ in range(random.randint(2, 5)):
            for _ in range(random.choice((1, 1, 2))):
                one = one.changed(random)
            self._versions.append(one)
        self.topologies = [
            version.build(number, ends, ids=self.ids)
            for number, version in enumerate(self._versions)
        ]
        self.topology = self.topologies[0]
        self.name = f"{len(self.topologies)} versions of a program"

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice("abcdef"), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check that numbers follow one another, and have been made anew when they were to be."""
        ran = [version_of(topology.streams) for topology in evidence.topologies]
        if ran != sorted(ran):
            raise Wrong(f"versions ran in this order: {ran}")
        versions = [self._versions[number] for number in ran]
        came = self._delivered(evidence)
        begun = {
            n: next((e for e, v in enumerate(versions) if v.made_anew >= n), len(versions))
            for n in (1, 2)
        }
        _numbered(evidence, "tallies", came, begun)
        live = [
            epoch if version.extra == 1 else []
            for epoch, version in zip(came, versions, strict=True)
        ]
        _numbered(evidence, "extras", live, {})
        said = [sunk.value for sunk in evidence.outputs("tallies") if sunk.value[1] == "timer"]
        timers = Counter(tag for _, _, tag, _ in said)
        if sum(timers.values()) != sum(map(len, came)) or max(timers.values(), default=1) > 1:
            raise Wrong(f"timers of {sum(map(len, came))} records: {timers}")

    def _delivered(self, evidence: Evidence) -> list[list[int]]:
        """Return the keys of the records that came to level 2, epoch by epoch."""
        seen, found = set[int](), list[list[int]]()
        for batch in evidence.batches:
            found.append([])
            for arrival in batch:
                if self.ids and arrival.value["id"] in seen:
                    continue
                seen.add(arrival.value["id"])
                found[-1].append(arrival.value["n"] % 4)
        return found


def _numbered(
    evidence: Evidence, stream: str, came: Sequence[Sequence[int]], begun: Mapping[int, int]
) -> None:
    """Check the numbers of a stream.

    Args:
        evidence: Of the schedule.
        stream: That carries them.
        came: The keys of what was to be numbered, epoch by epoch.
        begun: Migration -> the first epoch of a version that has it.
    """
    numbers = dict[int, int]()
    since = dict[int, int]()
    found = [sunk for sunk in evidence.outputs(stream) if sunk.value[1] == "next"]
    for sunk in found:
        key, _, number, _ = sunk.value
        first_epoch = since.setdefault(key, sunk.epoch)
        numbers[key] = numbers.get(key, 0) + 1
        # Two that begin together are one: a version that never ran migrates nothing.
        times = sum(first_epoch < epoch <= sunk.epoch for epoch in {*begun.values()})
        if number != numbers[key] + times * MADE_ANEW:
            raise Wrong(
                f"{stream}: {number} for record {numbers[key]} of key {key} in epoch {sunk.epoch}, "
                f"of which {times} migrations are to be seen"
            )
    expected = Counter(key for keys in came for key in keys)
    if expected != Counter(numbers):
        raise Wrong(f"{stream}: records by key {numbers}, expected {dict(expected)}")
