"""What groupings come to, from the definitions of windows, modes and aggregations alone.

Nothing here is taken from the code that it judges: elements are plain values, a window is a pair of
instants, and what a pane must hold follows from the order of the elements and from where the low
watermark stood. Where a trigger goes by a clock, only what holds under every schedule is checked.

Source: the Dataflow paper, 2.2 and 2.3; docs/windows-and-triggers.md, docs/time.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Start and end; neither, of the window over everything.
Span = tuple[int | None, int | None]


class Wrong(Exception):
    """A pane is not what the definitions say."""


class Element(NamedTuple):
    """An element of a grouping's input, in the order of arrival.

    Attributes:
        key: Its key.
        value: What is aggregated.
        at: Event time.
        epoch: When it was delivered.
        low_watermark: Where the low watermark stood then.
        collected: Where it stood when windows were last collected.
        taken_back: Whether it takes an equal element before it back.
    """

    key: Any
    value: Any
    at: int
    epoch: int
    low_watermark: int
    collected: int
    taken_back: bool = False


class OutputPane(NamedTuple):
    """A pane that a sink got, in the order of emission.

    Attributes:
        key: Its key.
        window: Its window.
        value: The result.
        number: Its number among the panes of the window.
        timing: ``EARLY``, ``ON_TIME`` or ``LATE``.
        first: Whether it says that it is the first.
        last: Whether it says that it is the last.
        retraction: Whether it takes one before it back.
        at: Event time.
        epoch: When it was emitted.
    """

    key: Any
    window: Span
    value: Any
    number: int
    timing: str
    first: bool
    last: bool
    retraction: bool
    at: int
    epoch: int


# -- where -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows of a size, every so often; or sessions; or one over everything.

    Attributes:
        size: Of a window; of sessions, the gap that ends them; None for one over everything.
        every: How far the starts of windows are apart.
        merge: Whether they are sessions.
    """

    size: int | None = None
    every: int = 0
    merge: bool = False

    def of(self, at: int) -> list[Span]:
        """Return the windows of an element, before they merge."""
        if self.size is None:
            return [(None, None)]
        if self.merge:
            return [(at, at + self.size)]
        last = at // self.every * self.every
        starts = range(last, at - self.size, -self.every)
        return [(start, start + self.size) for start in starts]

    def contents(
        self, elements: Iterable[Element], lateness: int
    ) -> tuple[dict[tuple[Any, Span], list[Element]], int]:
        """Return key and window -> elements, by arrival, and how many came when theirs was over.

        Args:
            elements: By arrival.
            lateness: How long after its end a window takes elements.
        """
        if self.merge:
            return self._sessions(elements, lateness)
        found: dict[tuple[Any, Span], list[Element]] = defaultdict(list)
        dropped = 0
        for element in elements:
            for window in self.of(element.at):
                if _over(window, lateness, element.low_watermark):
                    dropped += 1
                else:
                    found[element.key, window].append(element)
        return dict(found), dropped

    def _sessions(
        self, elements: Iterable[Element], lateness: int
    ) -> tuple[dict[tuple[Any, Span], list[Element]], int]:
        found: dict[tuple[Any, Span], list[Element]] = {}
        active: dict[Any, dict[Span, list[Element]]] = defaultdict(dict)
        dropped = 0
        for element in elements:
            mine = active[element.key]
            for window in [w for w in mine if _over(w, lateness, element.collected)]:
                found[element.key, window] = mine.pop(window)
            ((start, end),) = self.of(element.at)
            together = [w for w in mine if _overlap(w, (start, end))]
            if not together and _over((start, end), lateness, element.low_watermark):
                dropped += 1
                continue
            members = [one for window in together for one in mine.pop(window)]
            bounds = [bound for window in (*together, (start, end)) for bound in window]
            whole = min(b for b in bounds if b is not None), max(b for b in bounds if b is not None)
            mine[whole] = [*members, element]
        for key, windows in active.items():
            found.update({(key, window): members for window, members in windows.items()})
        return found, dropped


def _over(window: Span, lateness: int, low_watermark: int) -> bool:
    return window[1] is not None and window[1] + lateness <= low_watermark


def _overlap(one: Span, other: Span) -> bool:
    (a, b), (c, d) = one, other
    return a is not None and b is not None and c is not None and d is not None and a < d and c < b


# -- what ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate:
    """An aggregation by its definition.

    Attributes:
        of: Values -> result.
        together: Results of parts -> the result of the whole; None if there is no such thing.
    """

    of: Callable[[list[Any]], Any]
    together: Callable[[list[Any]], Any] | None = None


AGGREGATES: Mapping[str, Aggregate] = {
    "sum": Aggregate(sum, sum),
    "count": Aggregate(len, sum),
    "min": Aggregate(min, min),
    "max": Aggregate(max, max),
    "mean": Aggregate(lambda values: sum(values) / len(values)),
    "top": Aggregate(lambda values: sorted(values, reverse=True)[:2]),
    "distinct": Aggregate(lambda values: len(set(values))),
    "quantiles": Aggregate(lambda values: [sorted(values)[(len(values) - 1) // 2]]),
    "group": Aggregate(sorted, lambda lists: sorted(value for one in lists for value in one)),
    "spread": Aggregate(lambda values: max(values) - min(values)),
}


# -- how -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """A grouping by its definition.

    Attributes:
        windows: Where.
        aggregate: What.
        mode: ``DISCARDING``, ``ACCUMULATING`` or ``ACCUMULATING_AND_RETRACTING``.
        lateness: How long after its end a window takes elements.
        cut: (elements of a window, fired) -> the panes' elements; None where clocks have a say.
        ordered: Whether results are lists whose order is not part of the definition.
    """

    windows: Windows
    aggregate: Aggregate
    mode: str
    lateness: int
    cut: Cut | None = None
    ordered: bool = True

    def check(
        self,
        elements: Sequence[Element],
        panes: Sequence[OutputPane],
        low_watermarks: Sequence[int],
        dropped: int | None,
    ) -> None:
        """Raise Wrong if panes are not those of the elements.

        Args:
            elements: By arrival.
            panes: By emission.
            low_watermarks: At which each epoch fired timers.
            dropped: How many elements were counted as dropped; None if nobody knows.
        """
        if not self.ordered:
            panes = [pane._replace(value=sorted(pane.value)) for pane in panes]
        contents, late = self.windows.contents(elements, self.lateness)
        if dropped is not None and dropped != late:
            raise Wrong(f"{dropped} elements were counted as dropped, and {late} came too late")
        if not self.windows.merge and (others := {(p.key, p.window) for p in panes} - {*contents}):
            raise Wrong(f"panes of windows without elements: {others}")
        contents = {where: there for where, there in contents.items() if _left(there)}
        self._check_numbers(panes, low_watermarks)
        left = _current_panes(panes)
        if self.mode == "DISCARDING":
            self._check_parts(contents, panes)
        elif self.mode == "ACCUMULATING":
            self._check_last(contents, panes)
        else:
            wanted = Counter(
                (*where, _frozen(self._result(there))) for where, there in contents.items()
            )
            if left != wanted:
                raise Wrong(f"not taken back: {left - wanted}, missing: {wanted - left}")
        if self.cut is not None:
            self._check_cuts(self.cut, contents, panes, low_watermarks)

    def _result(self, elements: Sequence[Element]) -> Any:
        return self.aggregate.of(_left(elements))

    def _check_numbers(self, panes: Sequence[OutputPane], low_watermarks: Sequence[int]) -> None:
        """Check number, first, last and timing of the panes of each window."""
        by_window: dict[tuple[Any, Span], list[OutputPane]] = defaultdict(list)
        for pane in panes:
            if not pane.retraction:
                by_window[pane.key, pane.window].append(pane)
        for (key, window), mine in by_window.items():
            where = f"window {window} of key {key!r}"
            numbers = [pane.number for pane in mine]
            if not self.windows.merge and numbers != sorted(set(numbers)):
                raise Wrong(f"{where}: its panes are numbered {numbers}")
            if any(pane.first != (pane.number == 0) for pane in mine):
                raise Wrong(f"{where}: first is {[pane.first for pane in mine]} of {numbers}")
            if any(pane.last for pane in mine[:-1]):
                raise Wrong(f"{where}: more panes come after the last: {mine}")
            timings = [pane.timing for pane in mine]
            order = ["EARLY", "ON_TIME", "LATE"]
            if timings != sorted(timings, key=order.index) or timings.count("ON_TIME") > 1:
                raise Wrong(f"{where}: its panes are {timings}")
            for pane in mine:
                early = window[1] is None or low_watermarks[pane.epoch] < window[1]
                if early and pane.timing != "EARLY" and low_watermarks[pane.epoch] < 1 << 62:
                    raise Wrong(f"{where}: {pane} comes before the low watermark")

    def _check_parts(
        self, contents: Mapping[tuple[Any, Span], list[Element]], panes: Sequence[OutputPane]
    ) -> None:
        """Check that the panes of a window, or of the sessions of a key, add up."""
        together = self.aggregate.together
        if together is None:
            return
        wanted: dict[Any, list[Any]] = defaultdict(list)
        found: dict[Any, list[Any]] = defaultdict(list)
        for (key, window), elements in contents.items():
            wanted[key if self.windows.merge else (key, window)].append(self._result(elements))
        for pane in panes:
            found[pane.key if self.windows.merge else (pane.key, pane.window)].append(pane.value)
        for where in wanted.keys() | found.keys():
            parts, whole = found.get(where), wanted.get(where)
            if parts is None or whole is None or together(parts) != together(whole):
                raise Wrong(f"{where}: panes {parts} do not add up to {whole}")

    def _check_last(
        self, contents: Mapping[tuple[Any, Span], list[Element]], panes: Sequence[OutputPane]
    ) -> None:
        """Check that the last pane of each window has all of it."""
        last = {(pane.key, pane.window): pane.value for pane in panes}
        for where, elements in contents.items():
            if where not in last or last[where] != self._result(elements):
                raise Wrong(f"{where}: {last.get(where)} and not {self._result(elements)}")

    def _check_cuts(
        self,
        cut: Cut,
        contents: Mapping[tuple[Any, Span], list[Element]],
        panes: Sequence[OutputPane],
        low_watermarks: Sequence[int],
    ) -> None:
        """Check pane by pane what triggers that go by elements, or by the low watermark, make."""
        found: dict[tuple[Any, Span], list[Any]] = defaultdict(list)
        for pane in panes:
            if not pane.retraction:
                found[pane.key, pane.window].append(pane.value)
        for where, elements in contents.items():
            wanted, so_far = [], list[Element]()
            for part in cut(where[1], elements, low_watermarks):
                so_far += part
                wanted.append(self._result(part if self.mode == "DISCARDING" else so_far))
            if found[where] != wanted:
                raise Wrong(f"{where}: panes {found[where]} and not {wanted}")


#: (window, its elements, low watermarks by epoch) -> the elements that each pane adds.
Cut = Callable[[Span, Sequence[Element], Sequence[int]], Iterator[list[Element]]]


def each(done: Callable[[list[Element]], bool]) -> Cut:
    """Return the cut of a trigger that fires when the elements since the last pane say so."""

    def cut(_: Span, elements: Sequence[Element], __: Sequence[int]) -> Iterator[list[Element]]:
        pending: list[Element] = []
        for element in elements:
            pending.append(element)
            if done(pending):
                yield pending
                pending = []
        if pending:
            yield pending

    return cut


def at_the_end(
    window: Span, elements: Sequence[Element], low_watermarks: Sequence[int]
) -> Iterator[list[Element]]:
    """Cut as a low watermark does that reaches the end, and for late elements in every epoch."""
    pending: list[Element] = []
    for epoch, low_watermark in enumerate(low_watermarks):
        pending += [element for element in elements if element.epoch == epoch]
        if pending and (window[1] or (1 << 62)) <= low_watermark:
            yield pending
            pending = []
    if pending:
        raise Wrong(f"{window}: the low watermark never reached its end")


def _left(elements: Sequence[Element]) -> list[Any]:
    """Return the values that were not taken back, in order."""
    values: list[Any] = []
    for element in elements:
        if element.taken_back:
            values.remove(element.value)
        else:
            values.append(element.value)
    return values


def _current_panes(panes: Iterable[OutputPane]) -> Counter[tuple[Any, ...]]:
    """Return the panes that were not taken back, as key, window and value.

    Raises:
        Wrong: One was taken back that was not there, or was numbered as another one.
    """
    there: dict[tuple[Any, Span, int], list[tuple[Any, int]]] = defaultdict(list)
    for pane in panes:
        mine = there[pane.key, pane.window, pane.number]
        what = _frozen(pane.value), pane.at
        if not pane.retraction:
            mine.append(what)
        elif what in mine:
            mine.remove(what)
        else:
            raise Wrong(f"{pane} takes back what is not there: {mine}")
    return Counter((key, window, what) for (key, window, _), w in there.items() for what, _ in w)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _frozen(one)) for name, one in sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value
