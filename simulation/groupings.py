"""Groupings: pipelines of windows, triggers, modes and aggregations, composed as a seed says.

One grouping, or one over the panes of another with a step or a computation between them, or a join,
within windows or without. What each comes to is checked against :mod:`.definitions` and
:mod:`.nearness`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.dataflow.joins.join_state import WEIGHT_MAX
from millrace.dataflow.stream import Stream
from millrace.model.computation import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK, Computation
from millrace.model.pane import Paned
from millrace.model.record import Record, Timer
from millrace.model.state import BagState, CombiningState, MapState, ValueState
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from simulation.composition import FAR_US, MODES, WHOLE, Grouping, grouping, regrouping, when, where
from simulation.definitions import Aggregate, Definition, Element, OutputPane, Wrong, at_the_end
from simulation.nearness import Pair, near
from simulation.program import NEVER_US, STREAM, Arrival, Ends, Evidence, Sunk


class Relay(Computation):
    """Stands before a grouping: sends numbers on, and every third one later, as of its own time."""

    inputs = {STREAM: by("user")}
    outputs = {"numbers": int}
    kept: MapState[list[int]] = MapState(list[int])
    count: ValueState[int] = ValueState(int)

    def process_record(self, record: Record) -> None:
        """Send a number, or keep it and hold the low watermark."""
        n, nth = record.value["n"], self.count.get(0)
        self.count.set(nth + 1)
        if record.late or n % 3:
            self.produce("numbers", n)
        else:
            self.kept[nth] = [n, record.timestamp]
            self.set_timer(nth, record.timestamp + 40 * SECOND, hold=record.timestamp)

    def process_timer(self, timer: Timer) -> None:
        """Send what was kept."""
        n, at_us = self.kept.pop(timer.tag)
        self.produce("numbers", n, timestamp=at_us)


class Straight(Computation):
    """Stands before a grouping, as :class:`Relay`; what it sends depends on the record alone."""

    inputs = {STREAM: by("user")}
    outputs = {"numbers": int}
    count: ValueState[int] = ValueState(int)
    seen: BagState[int] = BagState(int)

    def process_record(self, record: Record) -> None:
        """Send a number on, and keep it."""
        self.count.set(self.count.get(0) + 1)
        self.seen.add(record.value["n"])
        self.produce("numbers", record.value["n"])


class Between(Computation):
    """Stands between two groupings, and knows nothing of panes: none of some, two of others."""

    inputs = {"one": by(lambda total: total % 2)}
    outputs = {"parts": int}
    seen: CombiningState[int] = CombiningState(int)

    def process_record(self, record: Record) -> None:
        """Send the parts of a total."""
        self.seen.add(1)
        for part in _parts(record.value):
            self.produce("parts", part, key=part % 3)


def _parts(total: int) -> list[int]:
    return [] if total % 5 == 4 else [total] if total % 2 else [total, total + 1]


#: What adds a pipeline to an injected stream, and its check to the program; says what it made.
Shape = Callable[["Groupings", Random, Pipeline, Stream], str]


class Groupings:
    """A program of groupings; see :class:`~.program.Program`.

    Args:
        random: Composes it.
        ends: Where records come from and go to.
    """

    def __init__(self, random: Random, ends: Ends) -> None:
        self.ids = random.random() < 0.3
        self.ends = ends
        p = Pipeline("simulated")
        events = ends.inject(p, ids=self.ids, slack=FAR_US)
        self._users = "abc"[: random.randint(1, 3)]
        self._checks: list[Callable[[Evidence], None]] = []
        shape = random.choice(self.shapes())
        said = shape(self, random, p, events)
        self.name = f"{shape.__name__.strip('_')}: {said}"
        self.topology = build(p)

    def shapes(self) -> tuple[Shape, ...]:
        """Return what makes pipelines, of which one is chosen."""
        return _single, _single, _columns, _relayed, _two, _two, _joined

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number, and the side of a join that it is for."""
        return {
            "user": random.choice(self._users),
            "n": random.randint(0, 14),
            "side": random.choice(("left", "right")),
        }

    def check(self, evidence: Evidence) -> None:
        """Check each grouping against what it got."""
        for check in self._checks:
            check(evidence)

    def grouping(self, random: Random, *, columns: bool = False) -> Grouping:
        """Return how elements are grouped, so that what comes of it can be known here."""
        found = grouping(random, columns=columns)
        return found if self.ends.ordered else found.in_any_order(late=self.ends.late)

    def sink(self, p: Pipeline, stream: str) -> None:
        """Send a stream out."""
        p.sink(stream, self.ends.sink(stream))

    def defined(self, definition: Definition, fanout: int | None) -> None:
        """Have the panes of ``one``, a grouping of the source by user, checked."""

        def check(evidence: Evidence) -> None:
            elements = [e for _, e in self.elements(evidence, levels=2 if fanout else 1)]
            panes = [pane_of(*sunk) for sunk in evidence.outputs("one")]
            dropped = evidence.counted("one", "dropped_late")
            definition.check(elements, panes, evidence.low_watermarks(), dropped)

        self._checks.append(check)

    def elements(self, evidence: Evidence, *, levels: int = 1) -> list[tuple[Arrival, Element]]:
        """Return what a grouping by user gets from the source, ``levels`` below it."""
        found, seen = [], set()
        for epoch, batch in enumerate(evidence.batches):
            delivered, collected = evidence.stood(epoch, levels=levels)
            for arrival in batch:
                value, at_us = arrival
                if self.ids and value["id"] in seen:
                    continue
                seen.add(value["id"])
                element = Element(value["user"], value["n"], at_us, epoch, delivered, collected)
                found.append((arrival, element))
        return found


def _single(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """One grouping of the source."""
    return of_source(self, self.grouping(random), random, p, events)


def _columns(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """One grouping whose windows are kept as columns."""
    return of_source(self, self.grouping(random, columns=True), random, p, events)


def _relayed(self: Groupings, random: Random, p: Pipeline, _: Stream) -> str:
    """One grouping of what a computation sends: its tasks lift it."""
    productions = random.choice((STRONG, WEAK))
    # In real time, productions of what has timers are strong whatever is asked for.
    weak = productions is WEAK and not self.ends.ordered
    p.add(Straight if weak else Relay, productions=productions)
    how, combine, fanout, definition = self.grouping(random)
    assert fanout is None or fanout, "parts are of the source"
    definition = replace(definition, lateness=FAR_US)
    if definition.cut is at_the_end:
        definition = replace(definition, cut=None)  # it waits for what is held
    how["allowed_lateness"] = FAR_US
    p.stream("numbers").window(**how).aggregate(combine).to("one")
    self.sink(p, "numbers")
    self.sink(p, "one")

    def check(evidence: Evidence) -> None:
        sent = [element for _, element in self.elements(evidence)]
        numbers = evidence.outputs("numbers")
        _same(sent, numbers)
        never = NEVER_US
        elements = [Element(key, n, at_us, epoch, never, never) for key, n, at_us, epoch in numbers]
        panes = [pane_of(*sunk) for sunk in evidence.outputs("one")]
        definition.check(elements, panes, evidence.low_watermarks(), None)
        late = evidence.late()
        found = evidence.last.counters["one"].late
        if found > late:
            raise Wrong(f"{found} records are late behind a computation, {late} were before it")

    self._checks.append(check)
    return f"{combine!r} {how}"


def _same(sent: list[Element], numbers: list[Sunk]) -> None:
    wanted = Counter((element.key, element.value, element.at) for element in sent)
    found = Counter((sunk.key, sunk.value, sunk.at_us) for sunk in numbers)
    if wanted != found:
        raise Wrong(f"numbers: {found - wanted} too many, {wanted - found} missing")


def of_source(
    self: Groupings, chosen: Grouping, random: Random, p: Pipeline, events: Stream
) -> str:
    """One grouping, of the numbers of the source."""
    how, combine, fanout, definition = chosen
    keyed = events.key_by("user")
    value: str | None = "n"
    if random.random() < 0.5:
        keyed, value = keyed.map(number).to("numbers", format=int), None
    keyed.window(**how).aggregate(combine, value, fanout=fanout).to("one")
    self.sink(p, "one")
    self.defined(definition, fanout)
    return f"{combine!r} {how} fanout {fanout}"


def _two(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """A grouping of the panes of another."""
    first = self.grouping(random, columns=random.random() < 0.2)
    while type(first.combine).__name__.lower() not in WHOLE or not first.definition.windows.size:
        first = self.grouping(random)
    said = of_source(self, first, random, p, events)
    retracts = first.definition.mode == "ACCUMULATING_AND_RETRACTING"
    how, combine, definition = regrouping(random, retracts=retracts)
    between = random.random() < 0.5
    if between:
        p.add(
            Between,
            productions=random.choice((STRONG, WEAK)),
            delivery=random.choice((EXACTLY_ONCE, AT_LEAST_ONCE)),
        )
    keyed = p.stream("parts" if between else "one").key_by(_third)
    keyed.window(**how).aggregate(combine).to("two")
    self.sink(p, "two")

    def check(evidence: Evidence) -> None:
        elements = []
        for _, paned, at_us, epoch in evidence.outputs("one"):
            for part in _parts(paned.value) if between else [paned.value]:
                back = paned.pane.retraction
                never = NEVER_US
                elements.append(Element(part % 3, part, at_us, epoch, never, never, back))
        panes = [pane_of(*sunk) for sunk in evidence.outputs("two")]
        definition.check(elements, panes, evidence.low_watermarks(), None)

    self._checks.append(check)
    return f"{said} then {'through a computation ' if between else ''}{combine!r} {how}"


def _joined(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """The pairs of two sides, within windows or without."""
    left = events.filter(is_left).key_by("user").map(number).to("left", format=int)
    right = events.filter(is_right).key_by("user").map(number).to("right", format=int)
    return random.choice((_join, _near))(self, random, p, left, right)


def _near(self: Groupings, random: Random, p: Pipeline, left: Stream, right: Stream) -> str:
    """The pairs of values that are near in time, or kept for a while, or for ever."""
    drops = self.ends.ordered or not self.ends.late
    kind, how, definition = near(random, drops=drops, far_us=FAR_US)
    left.join(right, kind, name="one", **how).to("pairs")
    # Nothing lies in a key's row; or so little that some keys have maps; or all that a user's has.
    # Drawn beside, so that the schedules are what they were.
    beside = Random()
    beside.setstate(random.getstate())
    weight = beside.choice((0, 160, WEIGHT_MAX))
    vars(p.computations["one"])["row_weight"] = weight
    self.sink(p, "pairs")

    def check(evidence: Evidence) -> None:
        said = [(arrival.value["side"], one) for arrival, one in self.elements(evidence)]
        pairs = [_pair(*sunk) for sunk in evidence.outputs("pairs")]
        definition.check(said, pairs, evidence.counted("one", "dropped_late"))

    self._checks.append(check)
    return f"{kind} {how} {weight} bytes in a row"


def _pair(key: Any, value: Any, at_us: int, _: int) -> Pair:
    paned = value if isinstance(value, Paned) else None
    left, right = value if paned is None else paned.value
    return Pair(key, left, right, at_us, paned is not None and paned.pane.retraction)


def _join(self: Groupings, random: Random, p: Pipeline, left: Stream, right: Stream) -> str:
    """The pairs of each window."""
    window_fn, spans = where(random)
    trigger, _ = when(random)
    mode = random.choice(MODES[1:])
    kind = random.choice(("inner", "left", "outer"))
    how: dict[str, Any] = {
        "window_fn": window_fn,
        "trigger": trigger,
        "mode": mode,
        "allowed_lateness": FAR_US,
    }
    left.window(**how).join(right, kind, name="one").to("pairs")
    self.sink(p, "one")
    self.sink(p, "pairs")

    def pairs(values: list[tuple[str, int]]) -> list[tuple[int | None, int | None]]:
        of = {side: [n for where, n in values if where == side] for side in ("left", "right")}
        if not of["right"] and kind != "inner":
            return sorted((n, None) for n in of["left"])
        if not of["left"] and kind == "outer":
            return sorted((None, n) for n in of["right"])
        return sorted((a, b) for a in of["left"] for b in of["right"])

    aggregate = Aggregate(pairs)
    definition = Definition(spans, aggregate, mode.name, FAR_US, None, ordered=False)

    def check(evidence: Evidence) -> None:
        elements = [
            element._replace(value=(arrival.value["side"], element.value))
            for arrival, element in self.elements(evidence)
        ]
        panes = [pane_of(*sunk) for sunk in evidence.outputs("one")]
        definition.check(elements, panes, evidence.low_watermarks(), None)

    self._checks.append(check)
    return f"{kind} {how}"


def pane_of(key: Any, paned: Paned, at_us: int, epoch: int) -> OutputPane:
    """Return a pane as definitions take it."""
    pane = paned.pane
    return OutputPane(
        key,
        (pane.window.start, pane.window.end),
        paned.value,
        pane.index,
        pane.timing.value,
        pane.is_first,
        pane.is_last,
        pane.retraction,
        at_us,
        epoch,
    )


def number(value: Any) -> int:
    """Return the number of a value."""
    return int(value["n"])


def _third(total: int) -> int:
    return total % 3


def is_left(value: Any) -> bool:
    """Return whether a value is for the left side of a join."""
    return bool(value["side"] == "left")


def is_right(value: Any) -> bool:
    """Return whether a value is for the right side of a join."""
    return bool(value["side"] == "right")
