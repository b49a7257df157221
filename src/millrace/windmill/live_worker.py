"""The worker of tasks that do not end: bundle after bundle, committed together in a journal.

Nobody else makes commits of its intervals while its session lasts, so none is looked up before:
what the last session left is sealed, and this one's bundles begin behind it.

Source: MillWheel 6.1; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec
from millrace.model.errors import DamagedCache, DamagedStore, StoreError, ZombieWriter
from millrace.store import KEPT_TURNS, AheadCaches, Commit, Journals, Repair, chain_of
from millrace.windmill import rows
from millrace.windmill.bundle import Bundle, Position
from millrace.windmill.execution import Execution
from millrace.windmill.record_ids import WEAK_ORIGIN, ids_of_causes, production_ids
from millrace.windmill.results import IntervalResult, footing
from millrace.windmill.router import RowsBuilder

_log = logging.getLogger(__name__)

_NOTHING: Mapping[bytes, bytes] = {}
_NONE_WEAK: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class SessionFence:
    """The fence of a session: whether a newer one has begun.

    Attributes:
        journals: That sessions seal.
        session: This one's number.
    """

    journals: Journals
    session: int

    def check(self) -> None:
        """Return if this is the last session.

        Raises:
            ZombieWriter: It is not.
        """
        if self.journals.superseded(self.session):
            raise ZombieWriter(
                f"zombie writer: session {self.session} is over, and another has begun. This task "
                "was left behind, and must stop. Nothing was lost."
            )


class LiveWorker:
    """Runs bundles of one task; what they commit is the caller's to make durable.

    Args:
        execution: GetData and user code.
        fence: Asked before a cache is taken from those that have gone on with it, and before one
            is brought forward.
        weak: Computations whose commits are made durable later than in their turn -> whether ids of
            productions are made from those of the input.
        task: Number of the task.
        kept_turns: How many turns commits stay in memory before caches have them.

    Attributes:
        ahead: The caches of the process, with commits that they do not have yet.
        execution: GetData and user code, over those.
    """

    def __init__(
        self,
        execution: Execution,
        fence: SessionFence,
        weak: Mapping[str, bool] = _NONE_WEAK,
        task: int = 0,
        kept_turns: int = KEPT_TURNS,
    ) -> None:
        self.ahead = AheadCaches(execution.caches, rows.VALUES, turns=kept_turns)
        causes = {name for name, by_input in weak.items() if by_input}
        self.execution = execution.ahead(self.ahead, weak, causes)
        self._fence = fence
        self._weak = weak
        self._task = task

    def channels(
        self, spec: ComputationSpec, interval: int, position: Position
    ) -> tuple[list[rows.ChannelRow], Repair]:
        """Return an interval's channels, and what it took to bring its cache to its position."""
        try:
            try:
                return self._channels(spec, interval, position)
            except DamagedCache as damage:
                _log.warning("%s", damage)
                found, repair = self._channels(spec, interval, position)
                return found, replace(repair, damaged=repair.damaged + 1)
        except DamagedStore as damage:
            raise self._explained(damage, spec, interval, position.number) from damage

    def _channels(
        self, spec: ComputationSpec, interval: int, position: Position
    ) -> tuple[list[rows.ChannelRow], Repair]:
        cache, repair = self.execution.ready(spec, interval, position, self._fence)
        with cache.view(at=position.number) as view:
            found = rows.scan(view, rows.CHANNELS)
            return [rows.ChannelRow.unpack(*row) for row in found], repair

    def run(
        self,
        spec: ComputationSpec,
        bundles: Sequence[Bundle],
        consumed: Mapping[int, Mapping[bytes, bytes]],
    ) -> list[tuple[IntervalResult, RowsBuilder, Commit]]:
        """Run bundles, one for an interval; nothing of them is durable yet.

        Args:
            spec: The computation.
            bundles: For different intervals, of one attempt.
            consumed: Interval -> rows of its channels that have moved.
        """
        execution, name = self.execution, spec.name
        made = []
        for bundle in bundles:
            interval, position, attempt = bundle.interval.id, bundle.position, bundle.attempt
            try:
                effects, repair = execution.run(spec, bundle, self._fence)
            except DamagedStore as damage:
                raise self._explained(damage, spec, interval, position.number) from damage
            effects.counters.productions = len(effects.productions)
            mutations = [*effects.mutations.items(), *consumed.get(interval, _NOTHING).items()]
            chain, number = chain_of(position.chain, mutations), position.number + 1
            if name in self._weak:
                effects.productions.ids = self._ids(spec, number, interval, effects.productions)
            commit = Commit(
                name,
                interval,
                number,
                attempt.epoch,
                attempt.generation,
                mutations,
                effects.productions.pack(),
                footing(effects.report, effects.counters, weak=False),
                position.chain,
                chain,
            )
            result = IntervalResult(
                name, interval, number, effects.report, effects.counters, False,
                chain, repair, execution.cost(effects, commit),
            )  # fmt: skip
            made.append((result, effects.productions, commit))
        return made

    def _ids(
        self, spec: ComputationSpec, number: int, interval: int, productions: RowsBuilder
    ) -> tuple[list[int], list[int]]:
        """Return the ids of weak productions: of their causes, or of this session only."""
        if productions.causes is not None:
            return ids_of_causes(spec.number, self._task, productions.causes)
        origin, sequences = production_ids(spec.number, number, interval, len(productions))
        return [origin | WEAK_ORIGIN] * len(sequences), list(sequences)

    def _explained(
        self, damage: DamagedStore, spec: ComputationSpec, interval: int, number: int
    ) -> StoreError:
        """Tell a cache that cannot be made again yet from a store that is damaged."""
        if self.execution.state.commits.exists(spec.name, interval, number):
            return damage
        return StoreError(
            f"the cache of interval {interval} of {spec.name!r} was lost, or moved by another "
            f"process, and commit {number} is of this session: its journals are read when they are "
            "sealed. So the session ends, and the next one makes the cache again. Nothing was lost."
        )

    def settle(self, commits: Iterable[Commit]) -> None:
        """Take commits that were appended, with those that waited.

        As long as no other session has begun, its seal will have them. Behind a seal they do not
        exist, and a snapshot of a cache that has them would stand for another history. Cost: one
        open, or one HEAD.

        Raises:
            ZombieWriter: Another session has begun.
        """
        self._fence.check()
        self.ahead.durable(commits)
