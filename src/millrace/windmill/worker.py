"""The worker: GetData, the machine, CommitWork, for bundles of key intervals.

It is the commit protocol, step by step, between a machine that is pure and a store that is dumb.
Nothing else touches hard state on behalf of a task, and nothing here knows what an epoch is but its
number.

Source: MillWheel 6.1.1 (exactly-once delivery), 6.1.2 (strong productions), 6.2 (sequencers);
Streaming Engine, GetWork/GetData/CommitWork; docs/architecture.md, "The commit protocol".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.model.computation import WEAK
from millrace.store import Caches, Commit, HardState, TaskCommits, chain_of
from millrace.windmill.bundle import Bundle
from millrace.windmill.execution import Execution
from millrace.windmill.fence import Fence
from millrace.windmill.replay import holds_productions, replay
from millrace.windmill.results import IntervalResult, Produced, footing
from millrace.windmill.router import RowsBuilder


class Worker:
    """Runs computations of one topology against one checkpoint.

    Args:
        topology: The pipeline.
        state: Hard state: the commit log decides which attempt counts.
        caches: Where rows are read from; disposable.
        seconds: Returns what a stopwatch shows, by which user code is timed; None: it is not.

    Attributes:
        execution: GetData and user code.
    """

    def __init__(
        self,
        topology: Topology,
        state: HardState,
        caches: Caches,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self.execution = Execution(topology, state, caches, seconds)

    @property
    def state(self) -> HardState:
        """Hard state."""
        return self.execution.state

    def run(self, spec: ComputationSpec, bundles: Sequence[Bundle], fence: Fence) -> list[Produced]:
        """Run bundles of one computation, one for an interval; commit them together.

        Args:
            spec: The computation.
            bundles: For different intervals, of one attempt; at least one.
            fence: Asked after the commits are durable, before anything of them leaves.

        Returns:
            A result and productions for each, in their order: of this attempt, or of one that
            committed before. An interval for which that other attempt had nothing to do, as weak
            productions reached it in this one alone, is as it was.

        Raises:
            ZombieWriter: The fence says so.
        """
        name, log, attempt = spec.name, self.state.commits, bundles[0].attempt
        # In this order: if the cache has what another attempt committed, so has the log.
        standing = [self.execution.standing(spec, bundle.interval.id) for bundle in bundles]
        mine = log.of_task(name, attempt.epoch, attempt.task)
        weak = spec.guarantees.productions is WEAK
        results: dict[int, Produced] = {}
        commits: list[Commit] = []
        for bundle, stands in zip(bundles, standing, strict=True):
            interval, position = bundle.interval.id, bundle.position
            number = position.number + 1
            committed = mine.read(interval, number)
            if committed is None and mine.over:
                continue
            if committed is not None and holds_productions(log, committed, attempt):
                results[interval] = replay(committed, RowsBuilder())
                continue
            effects, repair = self.execution.run(spec, bundle, fence, stands)
            if weak and repair.deltas_applied and not repair.rebuilt:
                # Its cache is a commit behind, see _commit; another process made it.
                repair = replace(repair, deltas_applied=repair.deltas_applied - 1)
            if committed is not None:
                results[interval] = replay(committed, effects.productions)
                continue
            effects.counters.productions = len(effects.productions)
            mutations = list(effects.mutations.items())
            # Even when nothing changed: an attempt that was left behind, and whose user code saw
            # another clock, would commit it now, under a number that the next epoch takes.
            chain = chain_of(position.chain, mutations)
            commit = Commit(
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
            commits.append(commit)
            result = IntervalResult(
                name, interval, number, effects.report, effects.counters, False,
                chain, repair, self.execution.cost(effects, commit),
            )  # fmt: skip
            results[interval] = result, effects.productions
        self._commit(spec, mine, commits, fence, results)
        return [results[bundle.interval.id] for bundle in bundles if bundle.interval.id in results]

    def _commit(
        self,
        spec: ComputationSpec,
        mine: TaskCommits,
        commits: list[Commit],
        fence: Fence,
        results: dict[int, Produced],
    ) -> None:
        """CommitWork: one durable write for all intervals, by the first attempt that comes to it.

        Where productions are weak, the cache stays a commit behind until the next epoch: to make
        productions again, user code needs the state from before.
        """
        won = False
        if commits:
            won = mine.put(commits)
        elif not any(result.replayed for result, _ in results.values()):
            return
        # What this attempt may have put after its epoch was collected stays, for the next
        # collection: it cannot tell it from a segment that it won before it fell asleep, and that
        # counts.
        fence.check()
        for commit in commits:
            if won:
                if spec.guarantees.productions is WEAK:
                    self.execution.defer(commit)
                else:
                    self.execution.apply(commit, overhead=mine.overhead)
                continue
            winner = mine.read(commit.interval, commit.number)
            if winner is None:
                del results[commit.interval]
                continue
            _, productions = results[commit.interval]
            results[commit.interval] = replay(winner, productions)
