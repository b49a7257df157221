"""What a live task has to report when it passes a mark: what its turns since the last one did."""

from __future__ import annotations

from msgspec.structs import replace

from millrace.plane import wire
from millrace.store import NOTHING, Repair
from millrace.windmill.counters import Counters
from millrace.windmill.dead_letters import Reasons
from millrace.windmill.results import IntervalResult


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
        #: (computation, interval) -> repairs of its cache that no report has yet.
        self._repairs: dict[tuple[str, int], Repair] = {}
        self._begin()
        self.covered: dict[str, dict[int, int]] = {}

    def _begin(self) -> None:
        self._intervals: dict[tuple[str, int], IntervalResult] = {}
        self._seconds = 0.0
        self.letters: dict[str, Reasons] = {}
        self.received: dict[str, int] = {}

    def add(self, result: IntervalResult) -> None:
        """Take what a commit changed."""
        at = result.computation, result.interval
        found = self._intervals.get(at)
        if found is None:
            counters, load = Counters(), result.load
        else:
            counters, load = found.counters, found.load.then(result.load)
        counters.add(result.counters)
        if result.repair is not NOTHING:
            self.repaired(*at, result.repair)
        self._intervals[at] = IntervalResult(
            *at,
            result.number,
            result.report,
            counters,
            False,
            result.chain,
            NOTHING,  # until the report is taken
            load,
        )
        self.covered.setdefault(result.computation, {})[result.interval] = result.number

    def repaired(self, computation: str, interval: int, repair: Repair) -> None:
        """Take what it took to bring the cache of an interval to where it had to be."""
        if repair != NOTHING:
            at = computation, interval
            self._repairs[at] = self._repairs.get(at, NOTHING).then(repair)

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

        A cache that was brought forward for an interval without a commit is in a later one.

        Args:
            more: What an injector task adds, and what became of snapshots.
        """
        report = wire.TaskReport(
            self._level,
            self._task,
            [
                replace(one, load=one.load.reported(), repair=self._repairs.pop(at, NOTHING))
                for at, one in self._intervals.items()
            ],
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
