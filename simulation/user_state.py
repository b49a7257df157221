"""What user code keeps: cells that expire, and a map of times that is read by range.

Source: docs/how-to/keep-state-that-expires.md; docs/guide.md, "State".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from millrace.model.computation import Computation
from millrace.model.record import WALL_TIME, Record, Timer
from millrace.model.state import CombiningState, MapState, ValueState
from millrace.model.stream import by
from millrace.model.time import SECOND
from simulation.definitions import Element, Wrong
from simulation.program import STREAM, Sunk

_LAST_US, _TOTAL_US, _NEWEST_US = 9 * SECOND, 20 * SECOND, 14 * SECOND
_RECENT_US = 10 * SECOND


class Keep(Computation):
    """Says what is kept of earlier records, and keeps its own number, or has all forgotten."""

    inputs = {STREAM: by("user")}
    outputs = {"kept": list}
    last: ValueState[int] = ValueState(int, expires=_LAST_US)
    total: CombiningState[int] = CombiningState(int, expires=_TOTAL_US)
    newest: MapState[int] = MapState(int, expires=_NEWEST_US)
    lately: ValueState[int] = ValueState(int, expires=70 * SECOND, domain=WALL_TIME)

    def process_record(self, record: Record) -> None:
        """Say it, then keep the number."""
        n = record.value["n"]
        kept = [self.last.get(-1), self.total.get(0), sorted(self.newest.items())]
        self.produce("kept", [n, *kept, self.lately.get(-1)])
        self.lately.set(n)
        if n % 5:
            self.last.set(n)
            self.total.add(n)
            self.newest[n % 4] = n
        else:
            self.last.clear()
            self.total.clear()
            self.newest.pop(n % 4, None)


class Recent(Computation):
    """Says, for each time, which numbers came in the ten seconds up to it."""

    inputs = {STREAM: by("user")}
    outputs = {"recent": list}
    numbers: MapState[list[int]] = MapState(list[int])

    def process_record(self, record: Record) -> None:
        """Keep the number, and wait until all of its time are here."""
        at_us = record.timestamp
        self.numbers[at_us] = [*self.numbers.get(at_us, ()), record.value["n"]]
        self.set_timer(at_us, at=at_us + _RECENT_US)

    def process_timer(self, timer: Timer) -> None:
        """Say them, and forget what is older."""
        times = self.numbers.between(timer.tag - _RECENT_US, timer.tag + 1)
        said = sorted(n for at_us in times for n in self.numbers[at_us])
        self.produce("recent", [timer.tag, said])
        for at_us in list(self.numbers.between(None, timer.tag - _RECENT_US)):
            del self.numbers[at_us]


def check_kept(
    elements: Iterable[Element], said: Sequence[Sunk], low_watermarks: Sequence[int]
) -> None:
    """Raise Wrong if a record found something else than what was kept, and had not expired.

    Args:
        elements: In the order of arrival.
        said: What was said.
        low_watermarks: At which each epoch fired timers.
    """
    wanted: dict[Any, list[list[Any]]] = defaultdict(list)
    cells: dict[Any, dict[Any, tuple[int, int]]] = defaultdict(dict)
    by_epoch = defaultdict(list)
    for element in elements:
        by_epoch[element.epoch].append(element)
    for epoch, low_watermark in enumerate(low_watermarks):
        for element in by_epoch[epoch]:
            mine, n = cells[element.key], element.value
            newest = [[k, v] for k, (v, _) in sorted(_newest(mine).items())]
            found = [mine.get(cell, (none,))[0] for cell, none in (("last", -1), ("total", 0))]
            wanted[element.key].append([element.at, n, *found, newest])
            total = found[1] + n
            for cell, value, after in (
                ("last", n, _LAST_US),
                ("total", total, _TOTAL_US),
                (n % 4, n, _NEWEST_US),
            ):
                if n % 5:
                    until = max(mine.get(cell, (0, 0))[1], element.at + after)
                    mine[cell] = value, until
                else:
                    mine.pop(cell, None)
        for mine in cells.values():
            for cell in [cell for cell, (_, until) in mine.items() if until <= low_watermark]:
                del mine[cell]
    got: dict[Any, list[list[Any]]] = defaultdict(list)
    for sunk in said:
        n, last, total, newest, _ = sunk.value
        got[sunk.key].append([sunk.at_us, n, last, total, [list(one) for one in newest]])
    if got != wanted:
        raise Wrong(f"kept: {dict(got)}\n  and not {dict(wanted)}")


def _newest(cells: dict[Any, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    return {cell: kept for cell, kept in cells.items() if isinstance(cell, int)}


def check_kept_at_all(elements: Iterable[Element], said: Iterable[Sunk]) -> None:
    """Raise Wrong if a record found what its key never had; in whatever order records came."""
    came = Counter((element.key, element.value, element.at) for element in elements)
    answered = Counter((sunk.key, sunk.value[0], sunk.at_us) for sunk in said)
    if came != answered:
        raise Wrong(f"kept: {answered - came} too many, {came - answered} missing")
    numbers: dict[Any, set[int]] = defaultdict(set)
    for key, n, _ in came:
        numbers[key].add(n)
    for sunk in said:
        _, last, _, newest, lately = sunk.value
        had = {n for n in numbers[sunk.key] if n % 5}
        for found in (last, *(n for _, n in newest)):
            if found != -1 and found not in had:
                raise Wrong(f"kept: key {sunk.key!r} found {found}, and had {had}")
        if lately != -1 and lately not in numbers[sunk.key]:
            raise Wrong(f"kept: key {sunk.key!r} found {lately}, and had {numbers[sunk.key]}")


def check_recent(
    elements: Iterable[Element], said: Iterable[Sunk], low_watermarks: Sequence[int]
) -> None:
    """Raise Wrong if what was said of a time is not what had come.

    Args:
        elements: In the order of arrival.
        said: What was said.
        low_watermarks: At which each epoch fired timers; one, if no element is late: then the order
            in which they came is no matter.
    """
    kept: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    waiting: dict[Any, set[int]] = defaultdict(set)
    wanted: Counter[tuple[Any, ...]] = Counter()
    by_epoch = defaultdict(list)
    for element in elements:
        by_epoch[element.epoch].append(element)
    for epoch, low_watermark in enumerate(low_watermarks):
        for element in by_epoch[epoch]:
            kept[element.key][element.at].append(element.value)
            waiting[element.key].add(element.at)
        for key, times in waiting.items():
            for time in sorted(time for time in times if time + _RECENT_US <= low_watermark):
                times.discard(time)
                numbers = kept[key]
                near = (at for at in numbers if time - _RECENT_US <= at <= time)
                wanted[key, time, *sorted(n for at in near for n in numbers[at])] += 1
                for at in [at for at in numbers if at < time - _RECENT_US]:
                    del numbers[at]
    found = Counter((sunk.key, sunk.value[0], *sunk.value[1]) for sunk in said)
    if found != wanted:
        raise Wrong(f"recent: {found - wanted} too many, {wanted - found} missing")
