"""The worker: GetData, the machine, CommitWork, for bundles of key intervals.

It is the commit protocol, step by step, between a machine that is pure and a store that is dumb.
Nothing else touches hard state on behalf of a task, and nothing here knows what an epoch is but its
number.

Source: MillWheel 6.1.1 (exactly-once delivery), 6.1.2 (strong productions), 6.2 (sequencers);
Streaming Engine, GetWork/GetData/CommitWork; docs/architecture.md, "The commit protocol".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.model.errors import DamagedCache, DamagedStore, StoreError
from millrace.model.guarantees import WEAK
from millrace.store import (
    NOTHING,
    Cache,
    Caches,
    Commit,
    HardState,
    Repair,
    Standing,
    View,
    bring,
    chain_of,
)
from millrace.watermark.report import Report
from millrace.windmill.bundle import Attempt, Bundle
from millrace.windmill.columnar import machine_for
from millrace.windmill.deduplication import deduplication_of
from millrace.windmill.effects import Effects
from millrace.windmill.fence import Fence
from millrace.windmill.replay import Result, footing, holds_productions, replay
from millrace.windmill.routing import Productions, Router
from millrace.windmill.work import Work

_log = logging.getLogger(__name__)


class Worker:
    """Runs computations of one topology against one checkpoint.

    Args:
        topology: The pipeline.
        state: Hard state: the commit log decides which attempt counts.
        caches: Where rows are read from; disposable.

    Attributes:
        state: Hard state.
    """

    def __init__(self, topology: Topology, state: HardState, caches: Caches) -> None:
        self.state = state
        self._caches = caches
        router = Router(topology)
        self._machines = {
            spec.name: machine_for(topology, spec, router) for spec in topology.computations
        }
        self._deduplicators = {spec.name: deduplication_of(spec) for spec in topology.computations}
        # Commits that caches have yet to take, see _commit. To read one back costs a request, where
        # the log is an object store.
        self._pending: dict[tuple[str, int], Commit] = {}

    def run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], attempt: Attempt, fence: Fence
    ) -> list[Result]:
        """Run bundles of one computation, one for an interval; commit them together.

        Args:
            spec: The computation.
            bundles: For different intervals.
            attempt: In whose name, and what time it is.
            fence: Asked after the commits are durable, before anything of them leaves.

        Returns:
            A result for each, in their order: of this attempt, or of one that committed before.

        Raises:
            ZombieWriter: Another epoch has committed where this one must, or the fence says so.
        """
        name, log = spec.name, self.state.commits
        weak = spec.guarantees.productions is WEAK
        results: dict[int, Result] = {}
        commits: list[Commit] = []
        for bundle in bundles:
            interval, position = bundle.interval.id, bundle.position
            number = position.number + 1
            # In this order: if the cache has what another attempt committed, so has the log.
            standing = self._caches.open(name, interval).standing
            committed = log.read(name, interval, number)
            if committed is not None and holds_productions(log, committed, attempt):
                results[interval] = replay(committed, attempt, Productions())
                continue
            effects, repair = self._execute(spec, bundle, attempt, fence, standing)
            if committed is not None:
                results[interval] = replay(committed, attempt, effects.productions)
                continue
            effects.counters.productions = len(effects.productions)
            mutations = list(effects.mutations.items())
            # Even when nothing changed: an attempt that was left behind, and whose user code saw
            # another clock, would find the slot free, and take it from the next epoch.
            chain = chain_of(position.chain, mutations)
            results[interval] = Result(
                name, interval, number, effects.report, effects.counters, effects.productions,
                chain=chain, repair=repair,
            )  # fmt: skip
            commits.append(
                Commit(
                    name,
                    interval,
                    number,
                    attempt.epoch,
                    attempt.generation,
                    mutations,
                    b"" if weak else effects.productions.pack(),
                    footing(effects.report, effects.counters, weak=weak),
                    position.chain,
                    chain,
                )
            )
        self._commit(spec, commits, attempt, fence, results)
        return [results[bundle.interval.id] for bundle in bundles]

    def _execute(
        self,
        spec: ComputationSpec,
        bundle: Bundle,
        attempt: Attempt,
        fence: Fence,
        standing: Standing,
    ) -> tuple[Effects, Repair]:
        """GetData and user code for one bundle; once more if its cache turns out damaged."""
        number = bundle.position.number
        interval = bundle.interval.id
        cache = self._caches.open(spec.name, interval)
        try:
            repair = NOTHING
            if (standing.position, standing.chain) != (number, bundle.position.chain):
                repair = self._get_data(cache, spec, bundle, fence)
            with cache.view(at=number) as view:
                return self._run_user_code(spec, bundle, attempt, view), repair
        except DamagedCache as damage:
            _log.warning("%s", damage)
            self._deduplicators[spec.name].forget(interval)
        repair = self._get_data(cache, spec, bundle, fence)
        with cache.view(at=number) as view:
            effects = self._run_user_code(spec, bundle, attempt, view)
            return effects, replace(repair, damaged=repair.damaged + 1)

    def _run_user_code(
        self, spec: ComputationSpec, bundle: Bundle, attempt: Attempt, view: View
    ) -> Effects:
        """Run the machine, over the records that were not delivered before."""
        report, clocks = bundle.position.report, attempt.clocks
        filtered = self._deduplicators[spec.name].run(bundle, attempt, view)
        work = Work(
            bundle.position.number + 1,
            attempt.epoch,
            filtered.records,
            attempt.delivered_us,
            clocks[100],
            attempt.wall_time_us,
            attempt.wall_time_us,
            attempt.shown_us,
            _percentiles(spec, clocks, report),
            attempt.delivered,
            report,
        )
        effects = self._machines[spec.name].run(work, view)
        filtered.complete(effects)
        return effects

    def _get_data(
        self, cache: Cache, spec: ComputationSpec, bundle: Bundle, fence: Fence
    ) -> Repair:
        """Bring an interval's cache to where the bundle begins."""
        interval, number, chain = (
            bundle.interval.id, bundle.position.number, bundle.position.chain
        )  # fmt: skip
        pending = self._pending.get((spec.name, interval))
        if pending is not None and pending.number <= number:
            del self._pending[spec.name, interval]
            if cache.position + 1 == pending.number:
                self._apply(pending)
        if cache.position > number:
            # To turn the cache back would take it from those that have gone on with it.
            fence.check()
        try:
            repair = bring(cache, self.state, spec.name, interval, number, chain)
        except DamagedStore:
            fence.check()
            raise
        if spec.guarantees.productions is WEAK and repair.deltas_applied and not repair.rebuilt:
            # Its cache is a commit behind, see _commit; another process made it.
            repair = replace(repair, deltas_applied=repair.deltas_applied - 1)
        return repair

    def _commit(
        self,
        spec: ComputationSpec,
        commits: list[Commit],
        attempt: Attempt,
        fence: Fence,
        results: dict[int, Result],
    ) -> None:
        """CommitWork: one durable write for all intervals; a slot that is taken was won before.

        Where productions are weak, the cache stays a commit behind until the next epoch: to make
        productions again, user code needs the state from before.
        """
        if commits:
            wins = self.state.commits.append(commits)
        elif any(result.replayed for result in results.values()):
            wins = []
        else:
            return
        # What this attempt may have put into a collected slot stays there, for the next collection:
        # it cannot tell it from a commit that it won before it fell asleep, and that counts.
        fence.check()
        for commit, won in zip(commits, wins, strict=True):
            if won:
                if spec.guarantees.productions is WEAK:
                    self._pending[spec.name, commit.interval] = commit
                else:
                    self._apply(commit)
                continue
            winner = self.state.commits.read(commit.computation, commit.interval, commit.number)
            assert winner is not None, "a slot that is taken can be read"
            mine = results[commit.interval].productions
            results[commit.interval] = replay(winner, attempt, mine)

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


def _percentiles(
    spec: ComputationSpec, clocks: Mapping[int, int], report: Report
) -> dict[int, int]:
    """Return the low watermarks of the percentiles that something waits for, or may."""
    waiting = (p for p, _ in report.percentile_timers)
    # A timer whose percentile nobody declares any more waits for the low watermark.
    return {p: clocks.get(p, clocks[100]) for p in {*spec.percentiles, *clocks, *waiting} - {100}}
