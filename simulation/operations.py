"""Operations: pipelines of what users reach for beside windows, composed as a seed says.

Tables that change and tables that do not, several aggregates in one pass, keys after a grouping,
and what cells keep. What each comes to is checked against :mod:`.tables`, :mod:`.definitions` and
:mod:`.user_state`. Aggregates are in :func:`drawn`, each with what it comes to by definition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from millrace.dataflow.aggregations import catalog
from millrace.dataflow.stream import Stream
from millrace.model.computation import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK
from millrace.model.stream import Element as Seen
from millrace.model.stream import of_record
from millrace.model.time import MAX_TIMESTAMP, SECOND
from millrace.pipeline import Pipeline
from simulation.composition import FAR_US, WHOLE, regrouping, without_punctuation
from simulation.definitions import Aggregate, Definition, Element, Wrong, at_the_end
from simulation.groupings import Groupings, Shape, is_left, is_right, number, of_source, pane_of
from simulation.program import NEVER_US, Evidence
from simulation.tables import Row, at_once, rows_in_force
from simulation.user_state import Keep, Recent, check_kept, check_kept_at_all, check_recent


class _One(NamedTuple):
    """An aggregate, what it is of the numbers, and how its parts add up, if they do."""

    aggregate: catalog.Aggregate
    of: Callable[[list[int]], Any]
    together: Callable[[list[Any]], Any] | None = None


def _odd(value: Any) -> bool:
    return bool(value["n"] % 2)


def _small(value: Any) -> bool:
    return bool(value["n"] < 5)


def _odds(numbers: list[int]) -> list[int]:
    return [n for n in numbers if n % 2]


def _smalls(numbers: list[int]) -> list[int]:
    return [n for n in numbers if n < 5]


def _mean(numbers: list[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _least(parts: list[Any]) -> Any:
    return min((part for part in parts if part is not None), default=None)


def _most(parts: list[Any]) -> Any:
    return max((part for part in parts if part is not None), default=None)


_ALL = {
    "n": _One(catalog.count(), len, sum),
    "odd": _One(catalog.count(where=_odd), lambda all: len(_odds(all)), sum),
    "total": _One(catalog.sum("n"), sum, sum),
    "little": _One(catalog.sum("n", where=_small), lambda all: sum(_smalls(all)), sum),
    "high": _One(catalog.max("n"), _most, _most),
    "low": _One(catalog.min("n", where=_odd), lambda all: _least(_odds(all)), _least),
    "mean": _One(catalog.mean("n", where=_small), lambda all: _mean(_smalls(all))),
    "best": _One(catalog.top(2, "n", where=_odd), lambda all: sorted(_odds(all), reverse=True)[:2]),
    "kinds": _One(catalog.distinct("n", where=_odd), lambda all: len({*_odds(all)})),
}


def drawn(
    random: Random, definition: Definition
) -> tuple[dict[str, catalog.Aggregate], Definition]:
    """Return some aggregates by name, and the definition of a grouping by them.

    Args:
        random: Chooses.
        definition: Of a grouping by one aggregation.
    """
    names = random.sample([*_ALL], random.randint(2, 5))
    chosen = {name: _ALL[name] for name in names}

    def of(numbers: list[int]) -> dict[str, Any]:
        return {name: one.of(numbers) for name, one in chosen.items()}

    def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            name: one.together([part[name] for part in parts])
            for name, one in chosen.items()
            if one.together is not None
        }

    aggregate = Aggregate(of, together)
    made = {name: one.aggregate for name, one in chosen.items()}
    return made, replace(definition, aggregate=aggregate, ordered=True)


#: The table that does not change; one user has no row.
_TEAMS = {"a": "red", "b": "blue"}


class Operations(Groupings):
    """A program of operations; see :class:`~.program.Program`."""

    def shapes(self) -> tuple[Shape, ...]:
        """Return what makes pipelines, of which one is chosen."""
        return _enriched, _enriched, _looked_up, _several, _several, _keyed_again, _cells


def _enriched(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """Values with the rows of a table that changes."""
    drops = self.ends.ordered or not self.ends.late
    kind = random.choice(("left", "inner"))
    expires = random.choice((None, None, 12 * SECOND))
    lateness = random.choice((0, 8 * SECOND)) if drops else FAR_US
    waits = random.random() < 0.75
    how: dict[str, Any] = {"waits": waits, "expires": expires, "allowed_lateness": lateness}
    values = events.filter(is_left).key_by("user").map(number).to("values", format=int)
    rows = events.filter(is_right).key_by("user").map(number).to("rows", format=int)
    values.enrich(rows, kind, name="one", **how).to("pairs")
    self.sink(p, "pairs")

    def check(evidence: Evidence) -> None:
        asked: dict[tuple[Any, ...], list[Element]] = defaultdict(list)
        table: dict[Any, list[Row]] = defaultdict(list)
        dropped = 0
        for arrival, element in self.elements(evidence):
            if is_right(arrival.value):
                late = _late(self, element)
                table[element.key].append(Row(element.value, element.at, element.epoch, late))
            elif waits and element.at < element.low_watermark - lateness:
                dropped += 1
            else:
                asked[element.key, element.value, element.at].append(element)
        if evidence.counted("one", "dropped_late") != dropped:
            raise Wrong(f"{evidence.counted('one', 'dropped_late')} dropped, and not {dropped}")
        found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for key, (value, row), at_us, _ in evidence.outputs("pairs"):
            found[key, value, at_us].append(row)
        if more := found.keys() - asked.keys():
            raise Wrong(f"values {more} were not asked for")
        for what, elements in asked.items():
            answers: list[Any] = []
            for element in elements:
                rows_of = table[element.key]
                epoch = element.epoch if self.ends.ordered else None
                late = _late(self, element)
                if not waits or late:
                    answers += at_once(_reach(rows_of, element, waits), element.at, epoch, expires)
                    answers += [None] if late else []
                else:
                    answers += rows_in_force(rows_of, element.at, expires)
            _check_answers(what, found[what], answers, len(elements), inner=kind == "inner")

    self._checks.append(check)
    return f"{kind} {how}"


def _late(self: Groupings, element: Element) -> bool:
    """Return whether an element may have come behind the low watermark."""
    return element.at < element.low_watermark if self.ends.ordered else self.ends.late


def _reach(rows: list[Row], element: Element, waits: bool) -> list[Row]:
    return [row for row in rows if row.at <= element.at] if waits else rows


def _check_answers(
    what: tuple[Any, ...], found: list[Any], answers: list[Any], times: int, *, inner: bool
) -> None:
    for row in found:
        if row not in answers or (row is None and inner):
            raise Wrong(f"value {what} got the row {row}; it could be one of {answers}")
    least = times if not inner else 0 if None in answers else times
    if not least <= len(found) <= times:
        raise Wrong(f"value {what} came {times} times, and is there {len(found)} times: {answers}")


def _looked_up(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """Values with the rows of a table that does not change, and a grouping by these."""
    kind = random.choice(("left", "inner"))
    chosen = self.grouping(random)
    how, combine, fanout, definition = chosen
    pairs = events.key_by("user").lookup(_TEAMS, kind).to("pairs")
    numbers = pairs.key_by(_team).map(_number_of).to("numbers", format=int)
    numbers.window(**how).aggregate(combine, fanout=fanout).to("one")
    if self.ends.ordered:
        # In real time, what the source sends straight to a sink is in no commit that says so.
        self.sink(p, "pairs")
    self.sink(p, "one")

    def check(evidence: Evidence) -> None:
        elements, wanted = [], Counter[tuple[Any, ...]]()
        for _, element in self.elements(evidence, levels=2 if fanout else 1):
            team = _TEAMS.get(element.key)
            if team is not None or kind == "left":
                wanted[element.key, element.value, team, element.at] += 1
                elements.append(element._replace(key=team or "none"))
        found = Counter(
            (key, value["n"], team, at_us)
            for key, (value, team), at_us, _ in evidence.outputs("pairs")
        )
        if found != wanted and self.ends.ordered:
            raise Wrong(f"looked up: {found - wanted} too many, {wanted - found} missing")
        panes = [pane_of(*sunk) for sunk in evidence.outputs("one")]
        dropped = evidence.counted("one", "dropped_late")
        definition.check(elements, panes, evidence.low_watermarks(), dropped)

    self._checks.append(check)
    return f"{kind} then {combine!r} {how} fanout {fanout}"


def _several(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """Several aggregates in one pass, each of the elements that it goes by."""
    how, _, fanout, definition = self.grouping(random)
    while not without_punctuation(how["trigger"]):
        how, _, fanout, definition = self.grouping(random)
    if definition.cut is not at_the_end:
        definition = replace(definition, cut=None)  # what is kept of an element is no number
    aggregates, definition = drawn(random, definition)
    guarantees = {
        "productions": random.choice((STRONG, WEAK)),
        # What the source delivers twice would count twice, as often as it says so.
        "delivery": EXACTLY_ONCE if self.ids else random.choice((EXACTLY_ONCE, AT_LEAST_ONCE)),
    }
    arguments: dict[str, Any] = {"fanout": fanout, **guarantees, **aggregates}
    events.key_by("user").window(**how).aggregate(**arguments).to("one")
    self.sink(p, "one")
    self.defined(definition, fanout)
    return f"{', '.join(aggregates)} {how} fanout {fanout} {guarantees}"


def _keyed_again(self: Groupings, random: Random, p: Pipeline, events: Stream) -> str:
    """A grouping by what a pane says of itself, of values that know whose they were."""
    first = self.grouping(random)
    while type(first.combine).__name__.lower() not in WHOLE or not first.definition.windows.size:
        first = self.grouping(random)
    said = of_source(self, first, random, p, events)
    retracts = first.definition.mode == "ACCUMULATING_AND_RETRACTING"
    how, combine, definition = regrouping(random, retracts=retracts)
    by = random.choice(("_key", "_window_start", _turn))
    signed = p.stream("one").map(of_record(_signed)).to("signed", format=int)
    signed.key_by(of_record(by) if callable(by) else by).window(**how).aggregate(combine).to("two")
    self.sink(p, "two")

    def check(evidence: Evidence) -> None:
        elements = []
        for key, paned, at_us, epoch in evidence.outputs("one"):
            pane, never = paned.pane, NEVER_US
            again = {"_key": key, "_window_start": pane.window.start}.get(str(by), pane.index % 2)
            value = _sign(paned.value, key, pane.index)
            elements.append(Element(again, value, at_us, epoch, never, never, pane.retraction))
        panes = [pane_of(*sunk) for sunk in evidence.outputs("two")]
        definition.check(elements, panes, evidence.low_watermarks(), None)

    self._checks.append(check)
    return f"{said} then by {by} {combine!r} {how}"


def _cells(self: Groupings, _: Random, p: Pipeline, __: Stream) -> str:
    """Cells that expire, and a map of times that is read by range."""
    p.add(Keep)
    p.add(Recent)
    self.sink(p, "kept")
    self.sink(p, "recent")

    def check(evidence: Evidence) -> None:
        elements = [element for _, element in self.elements(evidence)]
        kept, recent = evidence.outputs("kept"), evidence.outputs("recent")
        check_kept_at_all(elements, kept)
        if self.ends.ordered:
            check_kept(elements, kept, evidence.low_watermarks())
            check_recent(elements, recent, evidence.low_watermarks())
        elif not self.ends.late:
            check_recent(elements, recent, [MAX_TIMESTAMP])

    self._checks.append(check)
    return "that expire, and by range"


def _team(pair: Any) -> str:
    return str(pair[1] or "none")


def _number_of(pair: Any) -> int:
    return int(pair[0]["n"])


def _turn(seen: Seen) -> int:
    assert seen.pane is not None, "it came out of a grouping"
    return int(seen.pane.index % 2)


def _signed(seen: Seen) -> int:
    assert seen.pane is not None, "it came out of a grouping"
    return _sign(seen.value, seen.key, seen.pane.index)


def _sign(value: int, key: str, index: int) -> int:
    place: int = "abc".index(key)
    return value * 100 + place * 10 + index % 10
