"""What a live task has to report when it passes a mark: what its turns since the last one did."""

from __future__ import annotations

from msgspec.structs import replace

from millrace.plane import wire
from millrace.store import NOTHING
from millrace.windmill.counters import Counters
from millrace.windmill.dead_letters import Reasons
from millrace.windmill.replay import Result


class MarkReport:
    """Gathers one task's report between two marks.

    Args:
        level: The task's level.
        task: Its number.

    Attributes:
        letters: Injected stream -> its records that became dead letters, by reason.
        received: Computation -> bytes of the values that came to it.
        covered: Computation -> interval -> number of its last commit in the open journal part.
    """

    def __init__(self, level: int, task: int) -> None:
        self._level = level
        self._task = task
        self._begin()
        self.covered: dict[str, dict[int, int]] = {}

    def _begin(self) -> None:
        self._intervals: dict[tuple[str, int], wire.IntervalReport] = {}
        self._seconds = 0.0
        self.letters: dict[str, Reasons] = {}
        self.received: dict[str, int] = {}

    def add(self, result: Result) -> None:
        """Take what a commit changed."""
        at = result.computation, result.interval
        found = self._intervals.get(at)
        if found is None:
            counters, repair, load = Counters(), NOTHING, result.load
        else:
            counters, repair, load = found.counters, found.repair, found.load.then(result.load)
        counters.add(result.counters)
        self._intervals[at] = wire.IntervalReport(
            *at,
            result.number,
            result.report,
            counters,
            False,
            result.chain,
            repair if repair != NOTHING else result.repair,
            load,
        )
        self.covered.setdefault(result.computation, {})[result.interval] = result.number

    def spend(self, seconds: float) -> None:
        """Count time in turns."""
        self._seconds += seconds

    def touched(self) -> dict[str, list[int]]:
        """Return computation -> intervals that had a commit."""
        found: dict[str, list[int]] = {}
        for computation, interval in self._intervals:
            found.setdefault(computation, []).append(interval)
        return found

    def take(self, **more: object) -> wire.TaskReport:
        """Return the report and begin the next one.

        Args:
            more: What an injector task adds, and what became of snapshots.
        """
        report = wire.TaskReport(
            self._level,
            self._task,
            [replace(one, load=one.load.reported()) for one in self._intervals.values()],
            {},
            {},
            {},
            self._seconds,
            received=self.received,
            letters=self.letters,
        )
        for name, value in more.items():
            setattr(report, name, value)
        self._begin()
        return report
