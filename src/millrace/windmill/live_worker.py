"""The worker of tasks that do not end: bundle after bundle, committed together in a journal.

Nobody else makes commits of its intervals while its session lasts, so a slot is not looked up
before: what the last session left is sealed, and this one's bundles begin behind it.

Source: MillWheel 6.1; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.compile.topology import ComputationSpec
from millrace.model.errors import DamagedStore, StoreError, ZombieWriter
from millrace.store import Commit, Journals, Repair, chain_of
from millrace.windmill import rows
from millrace.windmill.bundle import Attempt, Bundle
from millrace.windmill.execution import Execution
from millrace.windmill.replay import Result, footing

_NOTHING: Mapping[bytes, bytes] = {}


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
        fence: Asked before a cache is taken from those that have gone on with it.
    """

    def __init__(self, execution: Execution, fence: SessionFence) -> None:
        self._execution = execution
        self._fence = fence

    def channels(
        self, spec: ComputationSpec, bundle: Bundle
    ) -> tuple[list[rows.ChannelRow], Repair]:
        """Return an interval's channels, and what it took to bring its cache to its position."""
        try:
            cache, repair = self._execution.ready(spec, bundle, self._fence)
            with cache.view(at=bundle.position.number) as view:
                found = rows.scan(view, rows.CHANNELS)
                return [rows.ChannelRow.unpack(*row) for row in found], repair
        except DamagedStore as damage:
            raise self._explained(damage, spec, bundle) from damage

    def run(
        self,
        spec: ComputationSpec,
        bundles: Sequence[Bundle],
        attempt: Attempt,
        consumed: Mapping[int, Mapping[bytes, bytes]],
    ) -> list[tuple[Result, Commit]]:
        """Run bundles, one for an interval; nothing of them is durable yet.

        Args:
            spec: The computation.
            bundles: For different intervals.
            attempt: In whose name, and what time it is.
            consumed: Interval -> rows of its channels that have moved.
        """
        execution, name = self._execution, spec.name
        made = []
        for bundle in bundles:
            interval, position = bundle.interval.id, bundle.position
            try:
                effects, repair = execution.run(spec, bundle, attempt, self._fence)
            except DamagedStore as damage:
                raise self._explained(damage, spec, bundle) from damage
            effects.counters.productions = len(effects.productions)
            mutations = [*effects.mutations.items(), *consumed.get(interval, _NOTHING).items()]
            chain, number = chain_of(position.chain, mutations), position.number + 1
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
            result = Result(
                name, interval, number, effects.report, effects.counters, effects.productions,
                chain=chain, repair=repair,
            )  # fmt: skip
            made.append((result, commit))
        return made

    def _explained(self, damage: DamagedStore, spec: ComputationSpec, bundle: Bundle) -> StoreError:
        """Tell a cache that cannot be made again yet from a store that is damaged."""
        interval, number = bundle.interval.id, bundle.position.number
        if self._execution.state.commits.exists(spec.name, interval, number):
            return damage
        return StoreError(
            f"the cache of interval {interval} of {spec.name!r} was lost, or moved by another "
            f"process, and commit {number} is of this session: its journals are read when they are "
            "sealed. So the session ends, and the next one makes the cache again. Nothing was lost."
        )

    def settle(self, commits: Iterable[Commit]) -> None:
        """Bring the caches up to commits that are durable."""
        for commit in commits:
            self._execution.apply(commit, grouped=True)
