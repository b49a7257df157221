"""The worker: GetData, the machine, CommitWork, for the intervals that one task owns.

It is the commit protocol, step by step, between a machine that is pure and a store that is dumb.
The Harness and Spark's tasks both call it, and nothing else touches hard state on their behalf.

Source: MillWheel 6.1.1 (exactly-once delivery), 6.1.2 (strong productions), 6.2 (sequencers);
Streaming Engine, GetWork/GetData/CommitWork; design.md, "The commit protocol".
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.model.errors import DamagedCache, DamagedStore, StoreError, ZombieWriter
from millrace.model.guarantees import WEAK
from millrace.store import (
    NOTHING,
    Cache,
    Caches,
    Commit,
    HardState,
    Repair,
    View,
    bring,
    chain_of,
)
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill.arrivals import NO_RECORDS, Arrivals, KeyedRecords
from millrace.windmill.columnar import machine_for
from millrace.windmill.counters import Counters
from millrace.windmill.deduplication import Deduplicator
from millrace.windmill.fence import refuse_superseded
from millrace.windmill.machine import Outcome
from millrace.windmill.manifest import Manifest
from millrace.windmill.routing import Productions, Router
from millrace.windmill.work import Work

_log = logging.getLogger(__name__)


class _Footing(msgspec.Struct, array_like=True):
    """What a commit carries besides state and productions, so that a replay reports the same.

    ``weak`` says that the productions are not in the commit. It stands in the commit, and is not
    taken from the pipeline, as that may have changed since.
    """

    report: Report
    counters: Counters
    weak: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_footing = msgspec.msgpack.Decoder(_Footing).decode


@dataclass(slots=True)
class Result:
    """One interval after an epoch.

    Attributes:
        computation: Its name.
        interval: The interval's id.
        number: Number of its last commit.
        report: What pins its low watermark.
        counters: What happened in the epoch.
        productions: What leaves for consumers.
        replayed: Whether an earlier attempt had committed. Then no user code ran, or, where the
            commit holds no productions, only to make those again.
        chain: That commit's.
        repair: What it took to bring its cache to where the epoch begins.
    """

    computation: str
    interval: int
    number: int
    report: Report
    counters: Counters
    productions: Productions
    replayed: bool = False
    chain: int = 0
    repair: Repair = NOTHING


_NO_PERCENTILES: Mapping[int, int] = {}


class Worker:
    """Runs computations of one topology against one checkpoint.

    Args:
        topology: The pipeline.
        state: Hard state: the commit log decides which attempt counts.
        caches: Where rows are read from; disposable.
    """

    def __init__(self, topology: Topology, state: HardState, caches: Caches) -> None:
        self._state = state
        self._caches = caches
        router = Router(topology)
        self._machines = {
            spec.name: machine_for(topology, spec, router) for spec in topology.computations
        }
        self._deduplicators = {
            spec.name: Deduplicator(spec) for spec in topology.computations if spec.slacks
        }
        # Commits that caches have yet to take, see _commit. To read one back costs a request, where
        # the log is an object store.
        self._pending: dict[tuple[str, int], Commit] = {}

    def run(
        self,
        spec: ComputationSpec,
        manifest: Manifest,
        intervals: IntervalMap,
        owned: Sequence[KeyInterval],
        arrivals: Arrivals,
        low_watermark_us: int,
        percentiles: Mapping[int, int] = _NO_PERCENTILES,
    ) -> list[Result]:
        """Run one computation for one epoch; return a result for each owned interval.

        Args:
            spec: The computation.
            manifest: Of the epoch.
            intervals: The computation's interval map.
            owned: The intervals that this task owns.
            arrivals: Every record for them.
            low_watermark_us: The computation's input low watermark after the records.
            percentiles: Percentile -> the low watermark of that share of its input.

        Raises:
            ZombieWriter: Another epoch has committed where this one must.
        """
        name, epoch = spec.name, manifest.epoch
        weak = spec.guarantees.productions is WEAK
        numbers, reports = manifest.numbers.get(name, {}), manifest.reports.get(name, {})
        chains = manifest.chains.get(name, {})
        clocks = {**percentiles, 100: low_watermark_us}
        before_us = manifest.delivery_low_watermark_us(spec)
        arrived = {interval.id: records for interval, records in arrivals.by_interval(intervals)}
        results: dict[int, Result] = {}
        commits: list[Commit] = []
        for interval in owned:
            number = numbers.get(interval.id, 0)
            report = reports.get(interval.id, NOTHING_PENDING)
            records = arrived.get(interval.id, NO_RECORDS)
            if len(records.cuts) <= 1 and not report.due(clocks, manifest.wall_time_us):
                results[interval.id] = Result(
                    name, interval.id, number, report, Counters(), Productions(),
                    chain=chains.get(interval.id, 0),
                )  # fmt: skip
                continue
            committed = self._committed(name, interval.id, number + 1)
            if committed is not None and self._holds_productions(committed, manifest):
                results[interval.id] = self._replay(committed, manifest, Productions())
                continue
            outcome, repair = self._execute(
                spec, interval, number, records, manifest, before_us, clocks
            )
            if committed is not None:
                results[interval.id] = self._replay(committed, manifest, outcome.productions)
                continue
            result = Result(
                name, interval.id, number, outcome.report, outcome.counters, outcome.productions,
                repair=repair,
            )  # fmt: skip
            outcome.counters.productions = len(outcome.productions)
            results[interval.id] = result
            # Even when nothing changed: an attempt that was left behind, and whose user code saw
            # another clock, would find the slot free, and take it from the next epoch.
            result.number = number + 1
            previous, mutations = chains.get(interval.id, 0), list(outcome.mutations.items())
            result.chain = chain_of(previous, mutations)
            commits.append(
                Commit(
                    name,
                    interval.id,
                    number + 1,
                    epoch,
                    manifest.generation,
                    mutations,
                    b"" if weak else outcome.productions.pack(),
                    _encode(_Footing(outcome.report, outcome.counters, weak)),
                    previous,
                    result.chain,
                )
            )
        self._commit(spec, commits, manifest, results)
        return [results[interval.id] for interval in owned]

    def _execute(
        self,
        spec: ComputationSpec,
        interval: KeyInterval,
        number: int,
        records: KeyedRecords,
        manifest: Manifest,
        before_us: int,
        clocks: Mapping[int, int],
    ) -> tuple[Outcome, Repair]:
        """GetData and user code for one interval; once more if its cache turns out damaged."""
        wall_us = manifest.wall_time_us
        report = manifest.reports.get(spec.name, {}).get(interval.id, NOTHING_PENDING)
        work = Work(
            number + 1, manifest.epoch, records, before_us, clocks[100], wall_us, wall_us,
            shown_us=manifest.before.outputs[spec.name],
            percentiles={
                # A timer whose percentile nobody declares any more waits for the low watermark.
                p: clocks.get(p, clocks[100])
                for p in {*spec.percentiles, *clocks, *(p for p, _ in report.percentile_timers)}
                if p != 100
            },
            percentiles_before=manifest.delivery_percentiles_us(spec),
            outstanding=report.outstanding,
        )  # fmt: skip
        cache = self._caches.open(spec.name, interval.id)
        try:
            repair = self._get_data(cache, spec, interval.id, number, manifest)
            with cache.view(at=number) as view:
                return self._run_user_code(work, view, spec, interval.id, manifest), repair
        except DamagedCache as damage:
            _log.warning("%s", damage)
            if spec.name in self._deduplicators:
                self._deduplicators[spec.name].forget(interval.id)
        repair = self._get_data(cache, spec, interval.id, number, manifest)
        with cache.view(at=number) as view:
            outcome = self._run_user_code(work, view, spec, interval.id, manifest)
            return outcome, replace(repair, damaged=repair.damaged + 1)

    def _run_user_code(
        self, work: Work, view: View, spec: ComputationSpec, interval: int, manifest: Manifest
    ) -> Outcome:
        """Run the machine, over the records that were not delivered before."""
        machine, deduplicator = self._machines[spec.name], self._deduplicators.get(spec.name)
        if deduplicator is None:
            return machine.run(work, view)
        filtered = deduplicator.run(
            interval,
            len(manifest.intervals[spec.name]),
            work.records,
            view,
            manifest.before.inputs[spec.name],
            work.low_watermark_us,
        )
        outcome = machine.run(dataclasses.replace(work, records=filtered.records), view)
        outcome.mutations.update(filtered.mutations)
        outcome.counters.duplicates_filtered = filtered.duplicates
        outcome.report = replace(outcome.report, ids_us=filtered.expires_us)
        return outcome

    def _get_data(
        self, cache: Cache, spec: ComputationSpec, interval: int, number: int, manifest: Manifest
    ) -> Repair:
        """Bring an interval's cache to where the epoch begins."""
        chain = manifest.chains.get(spec.name, {}).get(interval, 0)
        pending = self._pending.get((spec.name, interval))
        if pending is not None and pending.number <= number:
            del self._pending[spec.name, interval]
            if cache.position + 1 == pending.number:
                self._apply(pending)
        if cache.position > number:
            # To turn the cache back would take it from those that have gone on with it.
            refuse_superseded(self._state.epochs, manifest)
        try:
            repair = bring(cache, self._state, spec.name, interval, number, chain)
        except DamagedStore:
            refuse_superseded(self._state.epochs, manifest)
            raise
        if spec.guarantees.productions is WEAK and repair.deltas_applied and not repair.rebuilt:
            # Its cache is a commit behind, see _commit; another process made it.
            repair = replace(repair, deltas_applied=repair.deltas_applied - 1)
        return repair

    def _committed(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return what an earlier attempt committed as ``number``."""
        commit = self._state.commits.read(computation, interval, number)
        if commit is None and self._caches.open(computation, interval).position >= number:
            # Either another attempt has committed it meanwhile, or the cache is of another history.
            commit = self._state.commits.read(computation, interval, number)
        return commit

    def _commit(
        self,
        spec: ComputationSpec,
        commits: list[Commit],
        manifest: Manifest,
        results: dict[int, Result],
    ) -> None:
        """CommitWork: one durable write for all intervals; a slot that is taken was won before.

        Where productions are weak, the cache stays a commit behind until the next epoch: to make
        productions again, user code needs the state from before.
        """
        if commits:
            wins = self._state.commits.append(commits)
        elif any(result.replayed for result in results.values()):
            wins = []
        else:
            return
        # What this attempt may have put into a collected slot stays there, for the next collection:
        # it cannot tell it from a commit that it won before it fell asleep, and that counts.
        refuse_superseded(self._state.epochs, manifest)
        for commit, won in zip(commits, wins, strict=True):
            if won:
                if spec.guarantees.productions is WEAK:
                    self._pending[spec.name, commit.interval] = commit
                else:
                    self._apply(commit)
                continue
            winner = self._state.commits.read(commit.computation, commit.interval, commit.number)
            assert winner is not None, "a slot that is taken can be read"
            mine = results[commit.interval].productions
            results[commit.interval] = self._replay(winner, manifest, mine)

    def _apply(self, commit: Commit) -> None:
        """Bring the cache up to a commit just made.

        The commit is durable, so whatever is wrong with the cache can wait: the next epoch repairs
        it, or says that it cannot. It may have been found damaged by the thread that writes
        snapshots, and be empty now.
        """
        try:
            self._caches.open(commit.computation, commit.interval).apply(commit)
        except StoreError as problem:
            _log.warning("the cache is brought forward later: %s", problem)

    def _holds_productions(self, commit: Commit, manifest: Manifest) -> bool:
        """Return whether a commit can be replayed from what is in it.

        Raises:
            ZombieWriter: The commit is another epoch's; or its productions would have to be made
                again, and its epoch is over: the cache is not rebuilt for an attempt that was left
                behind.
        """
        _refuse_zombie(commit, manifest)
        if not _decode_footing(commit.report).weak:
            return True
        following = commit.number + 1
        if self._state.commits.exists(commit.computation, commit.interval, following):
            raise ZombieWriter(
                f"zombie writer: epoch {manifest.epoch} (generation {manifest.generation}) wants "
                f"the weak productions of commit {commit.number} of {commit.computation!r}, "
                f"interval {commit.interval}, but commit {following} has been made since, so that "
                "epoch is over. This attempt was left behind, and must stop. Nothing was lost."
            )
        return False

    def _replay(self, commit: Commit, manifest: Manifest, weak: Productions) -> Result:
        """Return what an earlier attempt at this epoch committed.

        Args:
            commit: The earlier attempt's.
            manifest: Of the epoch.
            weak: What this attempt made; sent on if the commit holds no productions.

        Raises:
            ZombieWriter: The commit is another epoch's.
        """
        _refuse_zombie(commit, manifest)
        footing = _decode_footing(commit.report)
        return Result(
            commit.computation,
            commit.interval,
            commit.number,
            footing.report,
            footing.counters,
            weak if footing.weak else Productions.unpack(commit.productions),
            replayed=True,
            chain=commit.chain,
        )


def _refuse_zombie(commit: Commit, manifest: Manifest) -> None:
    """Raise ZombieWriter if a slot was taken by another epoch than that of the manifest."""
    if commit.epoch != manifest.epoch:
        raise ZombieWriter(
            f"zombie writer: epoch {manifest.epoch} (generation {manifest.generation}) wants "
            f"to write commit {commit.number} of {commit.computation!r}, interval "
            f"{commit.interval}, but epoch {commit.epoch} (generation {commit.generation}) "
            "has written it. A newer run has taken this checkpoint over; this one must stop. "
            "Nothing was lost."
        )
