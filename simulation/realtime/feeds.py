"""Feeds: what processes of an injector deliver, lot after lot, and when each lot is there."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from millrace.dataflow.stream import Stream
from millrace.injectors.advance import Advance
from millrace.injectors.follower import Follower, Polling
from millrace.injectors.injector import Injector
from millrace.injectors.watermark_policy import BoundedDelay
from millrace.model.declarations import INGRESS
from millrace.model.time import SECOND, Duration
from millrace.pipeline import Pipeline
from simulation.program import DELAY_US, STREAM, Arrival, Ends, Program

#: An advance takes so many lots at the most.
_LOTS = 2


class Feeds(Injector):
    """An injector whose rows come in lots; those of one advance are read newest lot first.

    So the order of the rows depends on when the injector was asked, as it does of files.

    Attributes:
        lots: Process -> its lots.
        there_at: Process -> from which step on each lot is there, ascending.
        step: Which step it is; the world's.
    """

    schema = "id long, user string, n long, side string, at long"

    def __init__(self) -> None:
        self.lots: dict[str, list[list[Arrival]]] = {}
        self.there_at: dict[str, list[int]] = {}
        self.most = 1
        self.step = 0

    def processes(self) -> list[str]:
        """Return all names; they are there from the beginning."""
        return list(self.lots)

    def there(self, process: str) -> int:
        """Return how many lots of a process are there."""
        return bisect_right(self.there_at[process], self.step)

    def advance(self, process: str, offset: Any) -> Advance:
        """Return up to where to read, in lots."""
        start = offset or 0
        return Advance(max(start, min(self.there(process), start + _LOTS)))

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of some lots, newest lot first."""
        for lot in reversed(self.lots[process][start or 0 : end]):
            for value, at_us in lot:
                yield value["id"], value["user"], value.get("n"), value.get("side"), at_us

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Follower:
        """Return what reads on and on, without a clock: it asks whenever it has a turn."""
        clock = itertools.count(0, 1000)
        return Polling(
            self, places, most=self.most, clock=lambda: next(clock), sleep=lambda _: None
        )

    @property
    def records(self) -> list[Arrival]:
        """All that is ever delivered."""
        return [one for lots in self.lots.values() for lot in lots for one in lot]

    def late(self) -> int:
        """Return how many rows may be late: behind what their process has promised by then."""
        found = 0
        for lots in self.lots.values():
            newest_us = 0
            for n, lot in enumerate(lots):
                ahead = [one.at_us for near in lots[n : n + _LOTS] for one in near]
                newest_us = max(newest_us, *ahead)
                found += sum(one.at_us < newest_us - DELAY_US for one in lot)
        return found

    def fill(
        self, random: Random, program: Program, *, late: bool, lots: tuple[int, int] = (3, 10)
    ) -> None:
        """Make rows.

        Args:
            random: Chooses.
            program: Makes the values.
            late: Whether some come behind the low watermark.
            lots: How many each process has, from and to.
        """
        self.most = random.choice((1, 2, 5))
        ids, fresh = itertools.count(), itertools.count(1_000)
        late_share = random.choice((0.1, 0.3)) if late else 0.0
        for name in "abc"[: random.choice((1, 2, 2, 3))]:
            now, step = 1_000, random.randrange(60)
            mine: list[list[Arrival]] = []
            self.lots[name], self.there_at[name] = mine, []
            pace = random.choice((5, 20, 40))
            for _ in range(random.randint(*lots)):
                step += random.randrange(pace)
                self.there_at[name].append(step)
                lot: list[Arrival] = []
                for _ in range(random.choice((1, 1, 2))):
                    now += random.randint(0, 7)
                    if mine and random.random() < 0.15:
                        lot.append(random.choice(mine[-1]))  # delivered again
                        continue
                    behind = random.randint(30, 60) if random.random() < late_share else 0
                    at = now - (behind or random.randint(0, 5))
                    lot.append(Arrival({"id": next(ids)} | program.value(random), at * SECOND))
                mine.append(lot)
            if not late:
                self._clamp(mine, fresh)

    @staticmethod
    def _clamp(lots: list[list[Arrival]], fresh: Iterator[int]) -> None:
        """Let no row be late, in whatever order it is read; one that moves is a row of its own."""
        for n in reversed(range(len(lots))):
            # What moves in a lot has a say in the one before, with which it may be read.
            earliest_us = max(one.at_us for near in lots[: n + _LOTS] for one in near) - DELAY_US
            for m, one in enumerate(lots[n]):
                if one.at_us < earliest_us:
                    lots[n][m] = Arrival(one.value | {"id": next(fresh)}, earliest_us)


class LiveEnds(Ends):
    """Where a program's records come from on the real-time plane.

    Attributes:
        feeds: The injector.
        late: Whether records come behind the low watermark.
    """

    ordered = False

    def __init__(self, feeds: Feeds, *, late: bool) -> None:
        self.feeds = feeds
        self.late = late

    def inject(self, p: Pipeline, *, ids: bool, slack: Duration, ingress: bool = False) -> Stream:
        """Declare the injected stream."""
        how: dict[str, Any] = {
            "timestamp": "at",
            "unit": "us",
            "low_watermark": BoundedDelay(DELAY_US),
        }
        if ingress:
            how = {"timestamp": INGRESS}
        if ids:
            how |= {"id": "id", "slack": slack}
        return p.inject(STREAM, self.feeds, **how)
