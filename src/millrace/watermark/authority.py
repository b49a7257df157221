"""The authority: every interval's last report, and the low watermarks that follow from them.

It lives in the driver. Within an epoch, workers hand low watermarks to each other; what they
reported is recorded here afterwards and travels in the next manifest, so the authority never leads
the workers, and a restart finds what it knew.

Source: MillWheel, "Low Watermarks" (7.2): a central authority tracks all low watermark values and
keeps them durably; workers subscribe to their senders' and compute the minimum themselves.

What injectors publish for percentiles: a share of the records, that a pipeline waits for.

Source: MillWheel 7.2, percentile low watermarks.

The bulletin: the last report of every key interval of one computation.

Source: MillWheel, "Low Watermarks" (7.2): low watermark updates are bucketed into key intervals;
the authority builds an interval map of them, a missing interval counts with its last known value,
and sequencers ensure that only the latest owner of an interval can update it.

Tournament: the minimum of many values of which a few change at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from millrace.compile.topology import Topology, injector_name
from millrace.model.errors import ZombieWriter
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.percentiles import (
    NOTHING_OUTSTANDING,
    Ahead,
    Outstanding,
    SaysPercentiles,
    never_back,
)
from millrace.watermark.propagation import LowWatermarks, Pending, WatermarkPropagation
from millrace.watermark.report import NEVER, NOTHING_PENDING, PendingTimers, Report

#: Up to here a change climbs to the root by itself; above, numpy takes all of them level by level.
#: A numpy call costs about as much as three steps of Python, and a level needs half a dozen.
_FEW = 24


class Tournament:
    """Values at places 0, 1, 2, ..., and the least of them, in a complete binary tree.

    To change c of n values costs O(c log n), and never more than O(n); to ask for the least one
    costs nothing.

    >>> least = Tournament(3, initial=9)
    >>> least.update([1, 2], [4, 6])
    >>> least.minimum
    4
    >>> least.update([1], [7])
    >>> least.minimum
    6
    """

    def __init__(self, size: int, *, initial: int) -> None:
        self._leaves = 1 << max(0, size - 1).bit_length()
        self._nodes = np.full(2 * self._leaves, MAX_TIMESTAMP, dtype=np.int64)
        self.update(range(size), [initial] * size)

    @property
    def minimum(self) -> int:
        """The least value; MAX_TIMESTAMP if there is none."""
        return int(self._nodes[1])

    def minimum_of(self, indexes: range) -> int:
        """Return the least value at some places; MAX_TIMESTAMP if there are none.

        >>> Tournament(5, initial=9).minimum_of(range(1, 4))
        9
        """
        nodes, first, end = self._nodes, indexes.start + self._leaves, indexes.stop + self._leaves
        least = MAX_TIMESTAMP
        while first < end:
            if first & 1:
                if nodes[first] < least:
                    least = int(nodes[first])
                first += 1
            if end & 1:
                end -= 1
                if nodes[end] < least:
                    least = int(nodes[end])
            first >>= 1
            end >>= 1
        return least

    def at_most(self, indexes: range, limit: int) -> list[int]:
        """Return at which of some places the value is at most a limit, ascending.

        If it is so nowhere, the tree says so; else all of the places are looked at, by numpy.
        """
        if self.minimum_of(indexes) > limit:
            return []
        leaves = self._nodes[self._leaves + indexes.start : self._leaves + indexes.stop]
        below: list[int] = (np.flatnonzero(leaves <= limit) + indexes.start).tolist()
        return below

    def update(self, indexes: Sequence[int], values: Sequence[int]) -> None:
        """Change the values at some places, each named once."""
        nodes = self._nodes
        if len(indexes) <= _FEW:
            for place, value in zip(indexes, values, strict=True):
                node = place + self._leaves
                nodes[node] = value
                while node > 1:
                    node >>= 1
                    least = min(nodes[2 * node], nodes[2 * node + 1])
                    if nodes[node] == least:
                        break
                    nodes[node] = least
            return
        changed = np.asarray(indexes, dtype=np.int64) + self._leaves
        nodes[changed] = values
        changed.sort()
        while changed[0] > 1:
            # Sorted, and so are the parents: brothers stand next to each other.
            changed >>= 1
            changed = changed[np.flatnonzero(np.diff(changed, prepend=0))]
            nodes[changed] = np.minimum(nodes[2 * changed], nodes[2 * changed + 1])


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
        indexes = [self._places[interval] for interval in known]
        self._sequencers[indexes] = sequencer
        self._post(known, indexes)

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
            indexes = [self._places[interval] for interval in reports]
        except KeyError as gone:
            raise ZombieWriter(self._zombie(gone.args[0], sequencer)) from None
        generation, epoch = sequencer
        known = self._sequencers[indexes]
        newer = (known[:, 0] > generation) | ((known[:, 0] == generation) & (known[:, 1] > epoch))
        if newer.any():
            interval = list(reports)[int(newer.argmax())]
            raise ZombieWriter(self._zombie(interval, sequencer))
        self._sequencers[indexes] = sequencer
        self._post(reports, indexes)

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
        indexes = range(len(self._ids)) if within is None else within
        oldest_us, first = MAX_TIMESTAMP, indexes.start
        for place in sorted(self._places[interval] for interval in without):
            oldest_us = min(oldest_us, self._oldest_work.minimum_of(range(first, place)))
            first = place + 1
        oldest_us = min(oldest_us, self._oldest_work.minimum_of(range(first, indexes.stop)))
        work = Pending(oldest_us)
        if spread:
            left_out = set(without)
            for interval, outstanding in self._spread().items():
                if self._places[interval] in indexes and interval not in left_out:
                    work = work.merged(Pending(oldest_us, outstanding))
        return work

    def due(self, indexes: range, clocks: Mapping[int, int], wall_time_us: int) -> list[int]:
        """Return which intervals have a timer due, or ids to forget, in the order of their places.

        It costs by those, and not by the number of intervals.

        Args:
            indexes: Where to look in the map.
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
            *self._event_times.at_most(indexes, max(clocks.values())),
            *self._wall_timers.at_most(indexes, wall_time_us),
        }
        intervals = [self._ids[place] for place in sorted(maybe)]
        return [n for n in intervals if self.report(n).due(clocks, wall_time_us)]

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

    def next_wall_timer_within(self, indexes: range) -> int:
        """Return the same of some places in the map."""
        return self._wall_timers.minimum_of(indexes)

    def report(self, interval: int) -> Report:
        """Return an interval's last report."""
        return self.reports.get(interval, NOTHING_PENDING)

    def missing(self) -> list[int]:
        """Return the intervals that have not reported yet, by id."""
        return sorted(self._places.keys() - self.reports.keys())

    def _post(self, reports: Mapping[int, Report], indexes: list[int]) -> None:
        before = [self.report(interval) for interval in reports]
        self._timers = self._timers.changed(before, reports.values())
        self.reports.update(reports)
        self._oldest_work.update(indexes, [report.oldest_work_us() for report in reports.values()])
        self._wall_timers.update(indexes, [report.wall_timer_us for report in reports.values()])
        if self._event_times is not None:
            self._event_times.update(indexes, [r.event_time_us() for r in reports.values()])
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


_NO_PERCENTILES: Mapping[int, Mapping[str, int]] = {}


class Authority:
    """Puts reports together into low watermarks that never move back.

    Attributes:
        bulletins: Computation -> the reports of its intervals.
        low_watermarks: What follows from them.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.bulletins = {spec.name: Bulletin(spec.name) for spec in topology.computations}
        self.low_watermarks = LowWatermarks(
            inputs={spec.name: MIN_TIMESTAMP for spec in topology.computations},
            outputs={spec.name: MIN_TIMESTAMP for spec in topology.computations}
            | {injector_name(spec.name): MIN_TIMESTAMP for spec in topology.injected()},
        ).copy(topology.percentiles)

    @property
    def reports(self) -> dict[str, dict[int, Report]]:
        """Computation -> interval id -> its last report."""
        return {name: bulletin.reports for name, bulletin in self.bulletins.items()}

    def cover(self, computation: str, intervals: Iterable[int]) -> None:
        """Take a computation's interval map: until all of it has reported, nothing new is shown."""
        self.bulletins[computation].cover(intervals)

    def restore(
        self,
        low_watermarks: LowWatermarks,
        reports: Mapping[str, Mapping[int, Report]],
        sequencer: Sequencer,
    ) -> None:
        """Take up what an earlier run wrote down, and when.

        What it did not know starts afresh, and what is no part of the pipeline any more is left.
        """
        fresh = self.low_watermarks.copy(())
        known = fresh.taken(low_watermarks)
        known.percentiles = {
            p: fresh.taken(known_at) for p, known_at in low_watermarks.percentiles.items()
        }
        self.low_watermarks = known.copy(self._topology.percentiles)
        for computation in reports.keys() & self.bulletins.keys():
            self.bulletins[computation].restore(reports[computation], sequencer)

    def advance(
        self,
        injectors: Mapping[str, int],
        reports: Mapping[str, Mapping[int, Report]],
        sequencer: Sequencer,
        percentiles: Mapping[int, Mapping[str, int]] = _NO_PERCENTILES,
    ) -> LowWatermarks:
        """Record one epoch and return the low watermarks after it.

        Args:
            injectors: Injected stream -> low watermark it published for the epoch.
            reports: Computation -> interval id -> report. An interval that did not report keeps
                its last one.
            sequencer: Generation and epoch of who reports.
            percentiles: Percentile -> injected stream -> what it published for that.

        Returns:
            The new low watermarks; none is below its predecessor.

        Raises:
            ZombieWriter: A newer owner has reported for one of the intervals.
        """
        for computation, reported in reports.items():
            self.bulletins[computation].record(reported, sequencer)
        shown = WatermarkPropagation(
            self.low_watermarks,
            injectors,
            {p: percentiles.get(p, injectors) for p in self._topology.percentiles},
        )
        for spec in self._topology.computations:
            shown.inputs(spec)
            shown.finish(spec, self.bulletins[spec.name].pending(bool(self._topology.percentiles)))
        self.low_watermarks = shown.low_watermarks
        return self.low_watermarks

    def next_wall_timer_us(self) -> int:
        """Return when the earliest wall-clock timer is due; MAX_TIMESTAMP if there is none."""
        return min(
            (bulletin.next_wall_timer_us for bulletin in self.bulletins.values()),
            default=MAX_TIMESTAMP,
        )

    def report(self, computation: str, interval: int) -> Report:
        """Return an interval's last report."""
        return self.bulletins[computation].report(interval)


class Percentiles:
    """The percentile low watermarks of a pipeline's injectors.

    Args:
        topology: The pipeline.
        authority: Knows what was published before.
    """

    def __init__(self, topology: Topology, authority: Authority) -> None:
        self._wanted = topology.percentiles
        self._authority = authority
        self._scripted = {
            spec.name: policy
            for spec in topology.injected()
            if spec.injection is not None
            and isinstance(policy := spec.injection.low_watermark, SaysPercentiles)
        }

    def estimated(
        self, injectors: Mapping[str, int], ahead: Mapping[str, Ahead], epoch: int
    ) -> dict[int, dict[str, int]]:
        """Return what to publish with an epoch.

        That goes by how far ahead records came so far, unless a policy says it itself.

        Args:
            injectors: Injected stream -> low watermark that it is about to publish.
            ahead: Injected stream -> how far ahead its records came.
            epoch: Number of the epoch.

        Returns:
            Percentile -> injected stream -> microseconds; empty if the pipeline uses none.
        """
        return self.published(
            injectors,
            {
                p: {
                    stream: us + (known.ahead_us(p) if (known := ahead.get(stream)) else 0)
                    for stream, us in injectors.items()
                    if MIN_TIMESTAMP < us < MAX_TIMESTAMP
                }
                | {
                    stream: policy.percentile_us(p, epoch)
                    for stream, policy in self._scripted.items()
                }
                for p in self._wanted
            },
        )

    def published(
        self, injectors: Mapping[str, int], given: Mapping[int, Mapping[str, int]]
    ) -> dict[int, dict[str, int]]:
        """Return what is published, never less than before.

        Args:
            injectors: Injected stream -> low watermark that it publishes.
            given: Percentile -> injected stream -> what it says; by default its low watermark.
        """
        known = self._authority.low_watermarks.percentiles
        return never_back(injectors, given, {p: known[p].outputs for p in self._wanted})
