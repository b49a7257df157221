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

    def table(self) -> Table:
        """Return the table as of now, or a moment ago."""
        now = self._clock()
        if self._made is None or now - self._made_at >= _EVERY_S:
            self._made, self._made_at = self._new(now), now
        return self._made

    def _new(self, now: float) -> Table:
        status = self._status()
        rates = self._rates({name: one.records for name, one in status.counters.items()}, now)
        stuck = Counter(one.computation for one in status.stuck)
        table = Table("computation", box=None, pad_edge=False, header_style="dim")
        for column in ("records/s", "behind", "late", "dead letters", "stuck"):
            table.add_column(column, justify="right")
        for name, counters in status.counters.items():
            behind = status.behind(status.low_watermarks[name])
            table.add_row(
                Text(name),  # no markup: it is the user's
                f"{rates.get(name, 0.0):,.0f}",
                "-" if behind is None else in_words(round(behind * SECOND)),
                _told(counters.late, "yellow"),
                _told(counters.dead_letters, "red"),
                _told(stuck[name], "bold red"),
            )
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
