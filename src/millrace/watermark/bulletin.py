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
from millrace.watermark.outstanding import NOTHING_OUTSTANDING, Outstanding
from millrace.watermark.pending_timers import PendingTimers
from millrace.watermark.propagation import Pending
from millrace.watermark.report import NEVER, NOTHING_PENDING, Report
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
        self._timers = PendingTimers()
        self._places: dict[int, int] = {}
        self._sequencers = _nobody(0)
        self.cover(intervals)

    def cover(self, intervals: Iterable[int]) -> None:
        """Take another interval map: who is in it already keeps its report.

        One that is new has not reported, so :attr:`oldest_work_us` is before time until it has.
        """
        before, who = self._places, self._sequencers
        self._ids = list(intervals)
        self._places = {interval: place for place, interval in enumerate(self._ids)}
        size = len(self._places)
        self._sequencers = _nobody(size)
        self._oldest_work = Tournament(size, initial=MIN_TIMESTAMP)
        self._wall_timers = Tournament(size, initial=MAX_TIMESTAMP)
        self._event_times: Tournament | None = None
        self._spreads: dict[int, Outstanding] | None = None
        self.reports = {n: report for n, report in self.reports.items() if n in self._places}
        self._timers = PendingTimers.of(self.reports.values())
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

    def pending(
        self, spread: bool, *, within: range | None = None, without: Iterable[int] = ()
    ) -> Pending:
        """Return the pending work of the computation.

        Args:
            spread: Whether to tell how it is spread too, which looks at every interval that has
                something pending.
            within: Places in the map; by default all.
            without: Intervals to leave out.
        """
        places = range(len(self._ids)) if within is None else within
        oldest_us, first = MAX_TIMESTAMP, places.start
        for place in sorted(self._places[interval] for interval in without):
            oldest_us = min(oldest_us, self._oldest_work.minimum_of(range(first, place)))
            first = place + 1
        oldest_us = min(oldest_us, self._oldest_work.minimum_of(range(first, places.stop)))
        found = Pending(oldest_us)
        if spread:
            left_out = set(without)
            for interval, outstanding in self._spread().items():
                if self._places[interval] in places and interval not in left_out:
                    found = found.merged(Pending(oldest_us, outstanding))
        return found

    def due(self, places: range, clocks: Mapping[int, int], wall_time_us: int) -> list[int]:
        """Return which intervals have a timer due, or ids to forget, in the order of their places.

        It costs by those, and not by the number of intervals.

        Args:
            places: Where to look in the map.
            clocks: Percentile -> low watermark; 100 is the low watermark itself.
            wall_time_us: The wall clock.
        """
        if self._event_times is None:
            self._event_times = Tournament(len(self._ids), initial=NEVER)
            self._event_times.update(
                [self._places[interval] for interval in self.reports],
                [report.event_time_us() for report in self.reports.values()],
            )
        maybe = {
            *self._event_times.at_most(places, max(clocks.values())),
            *self._wall_timers.at_most(places, wall_time_us),
        }
        found = [self._ids[place] for place in sorted(maybe)]
        return [n for n in found if self.report(n).due(clocks, wall_time_us)]

    def _spread(self) -> dict[int, Outstanding]:
        """Return how the work of those intervals is spread that have some."""
        if self._spreads is None:
            self._spreads = {}
            self._post_spread(self.reports)
        return self._spreads

    def _post_spread(self, reports: Mapping[int, Report]) -> None:
        assert self._spreads is not None, "kept once somebody has asked for it"
        for interval, report in reports.items():
            outstanding = report.spread()
            if outstanding == NOTHING_OUTSTANDING:
                self._spreads.pop(interval, None)
            else:
                self._spreads[interval] = outstanding

    @property
    def pending_timers(self) -> PendingTimers:
        """How many timers are pending in all its intervals; kept up with, and not counted anew."""
        return self._timers

    @property
    def next_wall_timer_us(self) -> int:
        """When the earliest wall-clock timer is due; MAX_TIMESTAMP if there is none."""
        return self._wall_timers.minimum

    def next_wall_timer_within(self, places: range) -> int:
        """Return the same of some places in the map."""
        return self._wall_timers.minimum_of(places)

    def report(self, interval: int) -> Report:
        """Return an interval's last report."""
        return self.reports.get(interval, NOTHING_PENDING)

    def missing(self) -> list[int]:
        """Return the intervals that have not reported yet, by id."""
        return sorted(self._places.keys() - self.reports.keys())

    def _post(self, reports: Mapping[int, Report], places: list[int]) -> None:
        before = [self.report(interval) for interval in reports]
        self._timers = self._timers.changed(before, reports.values())
        self.reports.update(reports)
        self._oldest_work.update(places, [report.oldest_work_us() for report in reports.values()])
        self._wall_timers.update(places, [report.wall_timer_us for report in reports.values()])
        if self._event_times is not None:
            self._event_times.update(places, [r.event_time_us() for r in reports.values()])
        if self._spreads is not None:
            self._post_spread(reports)

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
