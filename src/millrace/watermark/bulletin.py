"""The bulletin: the last report of every key interval of one computation.

Source: MillWheel, "Low Watermarks" (7.2): low watermark updates are bucketed into key intervals;
the authority builds an interval map of them, a missing interval counts with its last known value,
and sequencers ensure that only the latest owner of an interval can update it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from millrace.model.errors import ZombieWriter
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.watermark.shown import Pending
from millrace.watermark.tournament import Tournament

#: Who reports, and when: the generation of the run and the number of the epoch. Of two reports of
#: an interval the one with the higher sequencer counts.
Sequencer = tuple[int, int]

_BEFORE_ALL: Sequencer = (0, -1)


class Bulletin:
    """Takes reports, and knows the oldest work of the computation at any time.

    Attributes:
        computation: Its name.
        reports: Interval id -> its last report. Do not write to it.

    >>> bulletin = Bulletin("count", [0, 1])
    >>> bulletin.record({0: Report(hold_us=70)}, (1, 0))
    >>> bulletin.missing()
    [1]
    >>> bulletin.record({1: Report()}, (1, 0))
    >>> bulletin.oldest_work_us
    70
    """

    def __init__(self, computation: str, intervals: Iterable[int] = ()) -> None:
        self.computation = computation
        self.reports: dict[int, Report] = {}
        self._places: dict[int, int] = {}
        self._sequencers = _nobody(0)
        self.cover(intervals)

    def cover(self, intervals: Iterable[int]) -> None:
        """Take another interval map: who is in it already keeps its report.

        One that is new has not reported, so :attr:`oldest_work_us` is before time until it has.
        """
        before, who = self._places, self._sequencers
        self._places = {interval: place for place, interval in enumerate(intervals)}
        size = len(self._places)
        self._sequencers = _nobody(size)
        self._oldest_work = Tournament(size, initial=MIN_TIMESTAMP)
        self._wall_timers = Tournament(size, initial=MAX_TIMESTAMP)
        self.reports = {n: report for n, report in self.reports.items() if n in self._places}
        for interval in self.reports:
            self._sequencers[self._places[interval]] = who[before[interval]]
        self._post(self.reports, [self._places[interval] for interval in self.reports])

    def restore(self, reports: Mapping[int, Report], sequencer: Sequencer = _BEFORE_ALL) -> None:
        """Take up what an earlier run knew of the intervals that are in the map."""
        known = {n: report for n, report in reports.items() if n in self._places}
        places = [self._places[interval] for interval in known]
        self._sequencers[places] = sequencer
        self._post(known, places)

    def record(self, reports: Mapping[int, Report], sequencer: Sequencer) -> None:
        """Record reports of one owner; an interval that is not among them keeps its last one.

        Args:
            reports: Interval id -> report.
            sequencer: Generation and epoch of who reports.

        Raises:
            ZombieWriter: An interval is not in the map, or a newer owner has reported for it.
                Nothing is recorded.
        """
        try:
            places = [self._places[interval] for interval in reports]
        except KeyError as gone:
            raise ZombieWriter(self._zombie(gone.args[0], sequencer)) from None
        generation, epoch = sequencer
        known = self._sequencers[places]
        newer = (known[:, 0] > generation) | ((known[:, 0] == generation) & (known[:, 1] > epoch))
        if newer.any():
            interval = list(reports)[int(newer.argmax())]
            raise ZombieWriter(self._zombie(interval, sequencer))
        self._sequencers[places] = sequencer
        self._post(reports, places)

    @property
    def oldest_work_us(self) -> int:
        """The oldest work of the computation; before time while an interval has not reported."""
        return self._oldest_work.minimum

    def pending(self, spread: bool) -> Pending:
        """Return the pending work of the computation.

        Args:
            spread: Whether to tell how it is spread too, which looks at every interval.
        """
        if not spread:
            return Pending(self.oldest_work_us)
        return Pending.of(self.reports.values(), spread=True).merged(Pending(self.oldest_work_us))

    @property
    def next_wall_timer_us(self) -> int:
        """When the earliest wall-clock timer is due; MAX_TIMESTAMP if there is none."""
        return self._wall_timers.minimum

    def report(self, interval: int) -> Report:
        """Return an interval's last report."""
        return self.reports.get(interval, NOTHING_PENDING)

    def missing(self) -> list[int]:
        """Return the intervals that have not reported yet, by id."""
        return sorted(self._places.keys() - self.reports.keys())

    def _post(self, reports: Mapping[int, Report], places: list[int]) -> None:
        self.reports.update(reports)
        self._oldest_work.update(places, [report.oldest_work_us() for report in reports.values()])
        self._wall_timers.update(places, [report.wall_timer_us for report in reports.values()])

    def _zombie(self, interval: int, sequencer: Sequencer) -> str:
        generation, epoch = sequencer
        said = (
            f"zombie report: generation {generation}, epoch {epoch} reports on interval {interval} "
            f"of {self.computation!r}, "
        )
        if interval not in self._places:
            return said + (
                "which the interval map no longer has: it was split or merged away. Who reports "
                "has been superseded, and must stop."
            )
        newer, last = self._sequencers[self._places[interval]]
        return said + (
            f"but generation {newer}, epoch {last} has done so before. It belongs to a newer "
            "owner; who reports has been superseded, and must stop. Nothing was recorded."
        )


def _nobody(size: int) -> npt.NDArray[np.int64]:
    """Return the sequencers of intervals that have not reported."""
    return np.full((size, 2), _BEFORE_ALL, dtype=np.int64)
