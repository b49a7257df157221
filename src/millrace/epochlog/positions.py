"""Positions: where every key interval of a pipeline stands, as completions say one after another.

The driver keeps them, and every process that runs tasks keeps its own: a manifest brings what the
epoch before changed. So what an epoch costs does not depend on how many intervals do nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from millrace.compile.topology import ComputationSpec, Topology
from millrace.epochlog.entries import Changes, Completion, Manifest, Partition
from millrace.epochlog.fence import left_behind, refuse_superseded
from millrace.epochlog.reader import completions_to
from millrace.kernel.bundle import NO_RECORDS, Attempt, Bundle, KeyedRecords, Position
from millrace.model.calls import Outcome
from millrace.model.errors import DamagedStore
from millrace.store import EpochLog
from millrace.watermark.authority import Bulletin
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.report import NOTHING_PENDING, Report

#: Intervals that a task brings to another shape in a turn, besides those that have work.
_RESHAPED_AT_ONCE: Final = 4
_NO_OUTCOMES: Final[Mapping[int, Sequence[Outcome]]] = {}


class Changed(Protocol):
    """What says where intervals stand that have changed: a completion, or changes."""

    @property
    def numbers(self) -> Mapping[str, Mapping[int, int]]:
        """Computation -> interval id -> number of its last commit."""
        ...

    @property
    def chains(self) -> Mapping[str, Mapping[int, int]]:
        """Likewise that commit's chain."""
        ...

    @property
    def reports(self) -> Mapping[str, Mapping[int, Report]]:
        """Likewise its last report."""
        ...


class Positions:
    """Where intervals stand after a completion.

    Args:
        bulletins: Computation -> its intervals' reports.

    Attributes:
        entry: Number of the completion's entry; 0 before the first.
        maps: Computation -> its interval map.
        numbers: Computation -> interval id -> number of its last commit; 0 is left out.
    """

    def __init__(self, bulletins: Mapping[str, Bulletin]) -> None:
        self.entry = 0
        self.maps: dict[str, IntervalMap] = {}
        self.numbers: dict[str, dict[int, int]] = {name: {} for name in bulletins}
        self._chains: dict[str, dict[int, int]] = {name: {} for name in bulletins}
        self._bulletins = bulletins
        self._reshaped: set[tuple[str, range]] = set()

    def of(self, computation: str, interval: int) -> Position:
        """Return where an interval stands."""
        number = self.numbers[computation].get(interval, 0)
        chain = self._chains[computation].get(interval, 0)
        return Position(number, chain, self._bulletins[computation].report(interval))

    def bulletin(self, computation: str) -> Bulletin:
        """Return the last reports of a computation's intervals."""
        return self._bulletins[computation]

    def bundles(
        self,
        spec: ComputationSpec,
        intervals: IntervalMap,
        owned: range,
        records: Mapping[int, KeyedRecords],
        attempt: Attempt,
        outcomes: Mapping[int, Sequence[Outcome]] = _NO_OUTCOMES,
        again: Collection[int] = (),
    ) -> list[Bundle]:
        """Return a bundle for each interval that has something to do, in the order of the map.

        Args:
            spec: The computation.
            intervals: Its interval map.
            owned: Places in it where to look for timers that are due.
            records: Interval id -> what arrived for it.
            attempt: At all of them.
            outcomes: Interval id -> outcomes of calls that were pending in it.
            again: Intervals whose pending calls are to be made again.
        """
        name, bulletin = spec.name, self._bulletins[spec.name]
        due = bulletin.due(owned, attempt.input_watermarks, attempt.wall_time_us)
        due = due + self.behind(spec, owned)
        if outcomes or again:
            due = [*due, *outcomes, *again]
        indexes = sorted(map(intervals.places.__getitem__, {*records, *due}))
        bundles = [
            Bundle(
                interval,
                self.of(name, interval.id),
                attempt,
                records.get(interval.id, NO_RECORDS),
            )
            for interval in map(intervals.intervals.__getitem__, indexes)
        ]
        if not (outcomes or again):
            return bundles
        return [
            msgspec.structs.replace(
                bundle,
                outcomes=outcomes.get(bundle.interval.id, ()),
                again=bundle.interval.id in again,
            )
            for bundle in bundles
        ]

    def behind(self, spec: ComputationSpec, indexes: range) -> list[int]:
        """Return some intervals whose rows have not the last shape of their computation's state.

        Few at a time: each is made anew as a whole, and those of a task commit together.

        Args:
            spec: The computation.
            indexes: Where to look in the interval map.
        """
        if spec.reshape is None or (spec.name, indexes) in self._reshaped:
            return []
        numbers, reports = self.numbers[spec.name], self._bulletins[spec.name].reports
        there = self.maps[spec.name].intervals[indexes.start : indexes.stop]
        outdated = [
            one.id
            for one in there
            if numbers.get(one.id)
            and one.id in reports
            and reports[one.id].version < spec.reshape.version
        ]
        if not outdated:
            self._reshaped.add((spec.name, indexes))
        return outdated[:_RESHAPED_AT_ONCE]

    def every(self, changed: Changes) -> Changes:
        """Return where all intervals that ever had a commit stand after some changes.

        The bulletins have the reports of the changes already.
        """
        changes = Changes(None)
        for name, numbers in self.numbers.items():
            changes.numbers[name] = numbers | changed.numbers.get(name, {})
            changes.chains[name] = self._chains[name] | changed.chains.get(name, {})
            reports = self._bulletins[name].reports
            changes.reports[name] = {n: reports[n] for n in changes.numbers[name] if n in reports}
        return changes

    def cover(self, maps: Mapping[str, IntervalMap]) -> None:
        """Take interval maps; of an interval that is new, nothing is known yet."""
        for name, intervals in maps.items():
            if self.maps.get(name) != intervals:
                self.maps[name] = intervals
                self._bulletins[name].cover(entry.id for entry in intervals.intervals)

    def remap(self, computation: str, intervals: IntervalMap, said: Changed) -> None:
        """Take another map of one computation, and where its intervals stand, all at once.

        No low watermark passes what is new in it: it has its report from the beginning.
        """
        self.cover({computation: intervals})
        self.numbers[computation] = dict(said.numbers.get(computation, {}))
        self._chains[computation] = dict(said.chains.get(computation, {}))
        bulletin, reports = self._bulletins[computation], said.reports.get(computation, {})
        bulletin.restore(
            {interval: reports[interval] for interval in bulletin.missing() if interval in reports}
        )
        self.settle()

    def add(self, changed: Changed, entry: int) -> None:
        """Take numbers and chains of a completion; its reports are taken by the bulletins."""
        for known, said in ((self.numbers, changed.numbers), (self._chains, changed.chains)):
            for name in known.keys() & said.keys():  # without those that were dropped since
                known[name].update(said[name])
        self.entry = entry

    def move(
        self, computation: str, interval: int, number: int, chain: int, report: Report
    ) -> bool:
        """Take a commit of one interval; return whether its report is another than before."""
        self.numbers[computation][interval] = number
        self._chains[computation][interval] = chain
        bulletin = self._bulletins[computation]
        if bulletin.report(interval) == report:
            return False
        bulletin.restore({interval: report})
        return True

    def settle(self) -> None:
        """Report for the intervals that never had a commit: they have nothing pending."""
        for name, bulletin in self._bulletins.items():
            numbers = self.numbers[name]
            bulletin.restore({n: NOTHING_PENDING for n in bulletin.missing() if n not in numbers})


class Followed:
    """Positions in a process that runs tasks.

    Args:
        topology: The pipeline.
        log: The epoch log, read where manifests were missed.
    """

    def __init__(self, topology: Topology, log: EpochLog) -> None:
        self._topology = topology
        self._log = log
        self._positions: Positions | None = None
        self._intervals: Mapping[str, Partition] = {}

    def at(self, manifest: Manifest) -> Positions:
        """Return where intervals stand when an epoch begins.

        Raises:
            ZombieWriter: The epoch is over.
            DamagedStore: An entry that is needed is gone.
        """
        positions = self._positions if manifest.intervals == self._intervals else None
        if positions is not None and positions.entry == manifest.follows:
            return positions
        if positions is not None and positions.entry > manifest.follows:
            raise left_behind(manifest)
        if positions is None:
            positions = self._positions = self._from_log(manifest)
            self._intervals = manifest.intervals
        else:
            _take(positions, self._missed(positions.entry, manifest), manifest.follows)
        return positions

    def _from_log(self, manifest: Manifest) -> Positions:
        """Return positions as the epoch log says them."""
        said = self._read(manifest, manifest.follows)
        positions = Positions({s.name: Bulletin(s.name) for s in self._topology.computations})
        positions.cover({name: manifest.interval_map(name) for name in manifest.intervals})
        _take(positions, said, manifest.follows)
        positions.settle()
        return positions

    def _missed(self, known: int, manifest: Manifest) -> list[Changed]:
        """Return what has changed since an entry: the last changes are in the manifest.

        What is before them is in the log. Spark hands its tasks to idle workers in turn, so each
        misses some epochs.
        """
        changed = manifest.changed
        if changed is None or changed.since is None:
            return [*self._read(manifest, manifest.follows, known)]
        missed = [] if changed.since == known else self._read(manifest, changed.since, known)
        return [*missed, changed]

    def _read(self, manifest: Manifest, number: int, known: int = 0) -> list[Completion]:
        """Return what the log says up to a completion, since a known one."""
        try:
            return completions_to(self._log, number, after=known)
        except DamagedStore:
            refuse_superseded(self._log, manifest)
            raise


def _take(positions: Positions, changes: Iterable[Changed], entry: int) -> None:
    for changed in changes:
        positions.add(changed, entry)
        for name in changed.reports.keys() & positions.numbers.keys():
            positions.bulletin(name).restore(changed.reports[name])
