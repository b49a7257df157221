"""A table of a run's computations that is drawn again while somebody watches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from millrace.model.time import SECOND
from millrace.spark.plain_text import in_words
from millrace.spark.status import Status

#: It is put together anew no more often.
_EVERY_S: Final = 1.0
#: A rate is that since so long ago, or longer: epochs come in steps.
_RATE_S: Final = 5.0
#: Columns that numbers take beside a name, and the least that a name takes.
_NUMBERS_WIDE: Final = 62
_NAME_LEAST: Final = 12
#: Lines beside those of computations: the header, and what says how many have none.
_BESIDE: Final = 3


class LiveTable:
    """Makes the table: a line a computation.

    Args:
        status: Returns where the run stands; any thread may call it.
        clock: Returns seconds.
    """

    def __init__(
        self, status: Callable[[], Status], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._status = status
        self._clock = clock
        self._made: Table | None = None
        self._made_at = 0.0
        self._before: list[tuple[float, Mapping[str, int]]] = []

    def table(self, width: int, lines: int) -> Table:
        """Return the table as of now, or a moment ago.

        What is taller than a terminal cannot be drawn over. Where not all computations have room,
        those in most trouble have it: that hang, that have dead letters, that are furthest behind.

        Args:
            width: How many columns there are.
            lines: How many lines.
        """
        now = self._clock()
        if self._made is None or now - self._made_at >= _EVERY_S:
            self._made, self._made_at = self._new(now, width, lines), now
        return self._made

    def _new(self, now: float, width: int, lines: int) -> Table:
        status = self._status()
        rates = self._rates({name: one.records for name, one in status.counters.items()}, now)
        stuck = Counter(one.computation for one in status.stuck)
        behind = {name: status.behind(status.low_watermarks[name]) for name in status.counters}

        def trouble(name: str) -> tuple[float, ...]:
            lag = behind[name]
            dead = status.counters[name].dead_letters
            return stuck[name], bool(dead), -1.0 if lag is None else lag

        room = len(status.counters)
        if room > lines - 1:
            room = max(1, lines - _BESIDE)
        worst = set(sorted(status.counters, key=trouble, reverse=True)[:room])
        table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
        table.add_column("computation", no_wrap=True)
        for column in ("records/s", "behind", "late", "dead letters", "stuck"):
            table.add_column(column, justify="right", no_wrap=True)
        for name, counters in status.counters.items():
            if name not in worst:
                continue
            said = Text(name)  # no markup: it is the user's
            said.truncate(max(_NAME_LEAST, width - _NUMBERS_WIDE), overflow="ellipsis")
            lag = behind[name]
            table.add_row(
                said,
                f"{rates.get(name, 0.0):,.0f}",
                "-" if lag is None else in_words(round(lag * SECOND)),
                _told(counters.late, "yellow"),
                _told(counters.dead_letters, "red"),
                _told(stuck[name], "bold red"),
            )
        if others := len(status.counters) - len(worst):
            table.caption = Text(f"and {others} in less trouble: `millrace status` has all")
        return table

    def _rates(self, records: Mapping[str, int], now: float) -> dict[str, float]:
        """Return computation -> records a second, lately."""
        self._before.append((now, records))
        while len(self._before) > 2 and now - self._before[1][0] >= _RATE_S:
            del self._before[0]
        since, earlier = self._before[0]
        if now == since:
            return {}
        return {name: (n - earlier.get(name, 0)) / (now - since) for name, n in records.items()}


def _told(n: int, style: str) -> Text:
    return Text(f"{n:,}", style=style if n else "dim")
