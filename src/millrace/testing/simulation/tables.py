"""Tables: a pipeline of what stands beside inputs, side inputs and signals.

A table that a computation fills is looked into by another, which waits for it, and does not wait
for it under another name; and windows fire by signals. What each record sees on the way is in what
leaves, so that a row that is missing, comes twice or comes to one interval only shows.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.dataflow.strategy import DISCARDING
from millrace.dataflow.triggers import OnSignal, Repeat
from millrace.dataflow.windows import FixedWindows
from millrace.model.computation import Computation
from millrace.model.record import Record, Timer
from millrace.model.side_input import SideInput
from millrace.model.state import CombiningState
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from millrace.testing.simulation.definitions import Wrong
from millrace.testing.simulation.program import STREAM, Ends, Evidence

#: Records with this value make user code fail, after they have waited.
POISON = 13
_SUNK = ("looked", "sums", "refused")


class Track(Computation):
    """Level 1: fills the table, with the last number of each user."""

    inputs = {STREAM: by("user")}
    outputs = {"table": list}

    def process_record(self, record: Record) -> None:
        """Send the row."""
        self.produce("table", [self.key, record.value["n"]])


class Look(Computation):
    """Level 2: says what each record sees."""

    inputs = {STREAM: by(lambda value: value["n"] % 3)}
    outputs = {"looked": list}
    waited: SideInput[list[Any]] = SideInput("table", lambda row: row[0])
    newest: SideInput[list[Any]] = SideInput("latest", lambda row: row[0], waits=False)
    count: CombiningState[int] = CombiningState(int)

    def process_record(self, record: Record) -> None:
        """Say what stands in both tables."""
        if record.value["n"] == POISON:
            raise ValueError("not to be had")
        self.count.add(1)
        self.set_timer("look", at=record.timestamp + 9 * SECOND)
        self._say(record.value["id"], [record.id.hex(), record.late])

    def process_timer(self, timer: Timer) -> None:
        """Say it again."""
        self._say(-1, [timer.at])

    def _say(self, id: int, what: list[Any]) -> None:
        tables = [dict(table.items()) for table in (self.waited, self.newest)]
        self.produce("looked", [id, self.count.get(0), *tables, *what])


class Tables:
    """The program of these; see :class:`~.program.Program`.

    Args:
        random: Chooses whether the source names its records.
        ends: Where records come from and go to.
    """

    name = "side inputs and signals"

    def __init__(self, random: Random, ends: Ends) -> None:
        self.ids = random.random() < 0.5
        p = Pipeline("simulated")
        events = ends.inject(p, ids=self.ids, slack="30 s")
        p.add(Track)
        p.stream("table").to("latest")
        p.add(Look)
        events.filter(lambda value: value["n"] % 5 == 0).to("signals")
        now = Repeat(OnSignal("signals", key="user"))
        by_user = events.key_by("user")
        windowed = by_user.window(FixedWindows(20 * SECOND), trigger=now, mode=DISCARDING)
        windowed.sum("n").to("sums")
        p.dead_letter("refused")
        for stream in _SUNK:
            p.sink(stream, ends.sink(stream))
        self.topology = build(p)

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice("abcd"), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check that each record looked once, or as often as the source delivered it."""
        came = Counter(
            arrival.value["id"]
            for batch in evidence.batches
            for arrival in batch
            if arrival.value["n"] != POISON
        )
        found = Counter(out.value[0] for out in evidence.outputs("looked") if out.value[0] >= 0)
        least = Counter(came.keys()) if self.ids else came
        if found - came or least - found:
            raise Wrong(f"looked: {found - came} too often, {least - found} missing")
