"""Tables: a pipeline of what stands beside inputs, side inputs and signals.

A table that a computation fills is looked into by another, which waits for it, and does not wait
for it under another name; and windows fire by signals. What each record sees on the way is in what
leaves, so that a row that is missing, comes twice or comes to one interval only shows.

:func:`rows_in_force` says which row of a table is in force at a time, by definition. A row is in
force from its timestamp until the next of its key, or until it expires. Who waits for the low
watermark sees that one. What a row that comes late still meets depends on who was first, and so
does what a late question sees: then there is more than one right answer.

Source: docs/how-to/look-up-a-table.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from millrace.compile.build import build
from millrace.dataflow.triggers import OnSignal, Repeat
from millrace.dataflow.windowing import DISCARDING
from millrace.dataflow.windows import FixedWindows
from millrace.model.computation import Computation
from millrace.model.record import Record, Timer
from millrace.model.state import CombiningState, SideInput
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from simulation.definitions import Wrong
from simulation.program import STREAM, Ends, Evidence


class Row(NamedTuple):
    """A row of a table's stream.

    Attributes:
        value: The row.
        at: Since when it stands.
        epoch: When it came.
        late: Whether it may have come after somebody asked for its time.
    """

    value: Any
    at: int
    epoch: int
    late: bool


def rows_in_force(rows: Iterable[Row], at: int, expires: int | None = None) -> list[Any]:
    """Return the rows that a question about a time may find if it waited; None stands for none.

    Args:
        rows: Of the key.
        at: The time.
        expires: For how long a row stands.
    """
    reach = [row for row in rows if row.at <= at]
    sure = max((row.at for row in reach if not row.late), default=None)
    found = [row for row in reach if sure is None or row.at >= sure]
    answers = [] if sure is not None else [None]
    return answers + [_unless_over(row, at, expires) for row in found]


def at_once(
    rows: Iterable[Row], at: int, epoch: int | None, expires: int | None = None
) -> list[Any]:
    """Return the rows that a question may find if it did not wait: the newest that is there.

    Args:
        rows: Of the key.
        at: The time of the question, by which rows expire.
        epoch: When it was asked; None: nobody knows.
        expires: For how long a row stands.
    """
    there = [row for row in rows if epoch is None or row.epoch <= epoch]
    before = [row.at for row in there if epoch is not None and row.epoch < epoch]
    found = [row for row in there if not before or row.at >= max(before)]
    answers = [] if before else [None]
    return answers + [_unless_over(row, at, expires) for row in found]


def _unless_over(row: Row, at: int, expires: int | None) -> Any:
    return row.value if expires is None or at < row.at + expires else None


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
        self._say(record.value["user"], [record.value["n"], record.id.hex(), record.late])

    def process_timer(self, timer: Timer) -> None:
        """Say it again."""
        self._say("", [timer.at])

    def _say(self, user: str, what: list[Any]) -> None:
        tables = [dict(table.items()) for table in (self.waited, self.newest)]
        self.produce("looked", [user, self.count.get(0), *tables, *what])


class Tables:
    """The program of these; see :class:`~.program.Program`.

    Args:
        random: Chooses whether the source names its records.
        ends: Where records come from and go to.
    """

    name = "side inputs and signals"

    def __init__(self, random: Random, ends: Ends) -> None:
        self._ends = ends
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
        """Check what each record saw, once, or as often as the source delivered it."""
        asked: dict[tuple[Any, ...], list[bool]] = defaultdict(list)
        tables: dict[str, list[Row]] = defaultdict(list)
        for epoch, batch in enumerate(evidence.batches):
            for value, at in batch:
                late = at < evidence.stood(epoch)[0] if self._ends.ordered else self._ends.late
                tables[value["user"]].append(Row([value["user"], value["n"]], at, epoch, late))
                if value["n"] != POISON:
                    asked[value["id"], value["user"], value["n"], at].append(late)
        came = Counter[tuple[Any, ...]]()
        for (_, *what), times in asked.items():
            came[tuple(what)] += 1 if self.ids else len(times)
        seen = evidence.outputs("looked")
        found = Counter((one.value[0], one.value[4], one.at_us) for one in seen if one.value[0])
        most = Counter((*what,) for (_, *what), times in asked.items() for _ in times)
        if found - most or came - found:
            raise Wrong(f"looked: {found - most} too often, {came - found} missing")
        came_late = {(*what,) for (_, *what), times in asked.items() if any(times)}
        for one in seen:
            user, _, waited, newest, *_ = one.value
            if not user:
                continue
            waits = (user, one.value[4], one.at_us) not in came_late
            for key, rows in tables.items():
                self._check_row(key, rows, one.at_us if waits else None, waited.get(key))
                self._check_row(key, rows, None, newest.get(key))

    @staticmethod
    def _check_row(key: str, rows: list[Row], at_us: int | None, found: Any) -> None:
        answers = at_once(rows, 0, None) if at_us is None else rows_in_force(rows, at_us)
        if found not in answers:
            raise Wrong(f"of key {key!r} the row {found} was seen; it could be one of {answers}")
