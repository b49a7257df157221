"""History: what was committed, and what each commit was made of, as the simulation saw it.

Live tasks may interleave in any way, so there is no one outcome to compare with. What there is: for
each interval one chain of commits that count, and for each of those one run of user code over
certain records, at certain clocks. The oracle checks that these fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from millrace.compile.topology import ComputationSpec
from millrace.kernel.bundle import Bundle
from millrace.kernel.execution import Execution
from millrace.kernel.machine import Effects
from millrace.store import Commit, GrownSegment, Incarnations, Repair, Seal, SegmentName, View
from simulation.scheduler import Process, Scheduler

#: Computation and interval.
Owner = tuple[str, int]


class Run(NamedTuple):
    """One run of user code.

    Attributes:
        bundle: Over what, and when.
        draws: The random numbers that it got.
    """

    bundle: Bundle
    draws: tuple[int, ...]


class Written(NamedTuple):
    """A commit that counts, and the run that made it."""

    commit: Commit
    run: Run


class History:
    """What happened.

    Args:
        scheduler: Says who is at work.
        violated: Told of what must not be.

    Attributes:
        commits: Computation and interval -> number -> the commit that counts.
        incarnations: Numbers of the incarnations that were sealed.
    """

    def __init__(self, scheduler: Scheduler, violated: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._violated = violated
        self.commits: dict[Owner, dict[int, Written]] = {}
        self.incarnations: list[int] = []
        self._pending: dict[Process | None, dict[tuple[str, int, int], Run]] = {}
        self._runs: dict[tuple[str, str, int, int], Run] = {}
        self._appended: dict[str, list[Commit]] = {}
        self._draws: dict[Process | None, list[int]] = {}
        self._sealed: dict[str, tuple[int, bytes]] = {}
        self._removed: set[str] = set()

    # -- what happens ------------------------------------------------------------------------------

    def drew(self, number: int) -> int:
        """Take a random number that user code got."""
        self._draws.setdefault(self._scheduler.current, []).append(number)
        return number

    def begin(self) -> None:
        """Take it that user code begins."""
        self._draws[self._scheduler.current] = []

    def ran(self, name: str, bundle: Bundle) -> None:
        """Take it that user code ran over a bundle."""
        process = self._scheduler.current
        run = Run(bundle, tuple(self._draws.get(process, ())))
        at = name, bundle.interval.id, bundle.position.number + 1
        self._pending.setdefault(process, {})[at] = run

    def append(self, segment: SegmentName, commits: Iterable[Commit]) -> None:
        """Take it that commits are about to be appended."""
        pending = self._pending.get(self._scheduler.current, {})
        mine = self._appended.setdefault(str(segment), [])
        for one in commits:
            at = one.computation, one.interval, one.number
            self._runs[str(segment), *at] = pending.pop(at)
            mine.append(one)

    def sealed(self, incarnations: Incarnations, seal: Seal) -> None:
        """Take what is inside a seal."""
        current, self._scheduler.current = self._scheduler.current, None
        try:
            self.incarnations.append(seal.incarnation)
            for name, length in seal.lengths.items():
                end = length, seal.tails.get(name, b"")
                known = self._sealed.setdefault(name, end)
                if known != end:
                    self._violated(f"segment {name} ended at {known}, and now at {end}")
                if name in self._removed:
                    continue  # while it was sealed, and counted then
                parsed = SegmentName.parse(name)
                assert parsed is not None, "seals name segments only"
                for group in incarnations.groups(parsed):
                    self._count(name, group.commits)
        finally:
            self._scheduler.current = current

    def removed(self, name: SegmentName) -> None:
        """Take it that a segment is collected; what is in it counts, sealed or not."""
        self._removed.add(str(name))
        if str(name) not in self._sealed:
            self._count(str(name), self._appended.get(str(name), ()))

    def _count(self, segment: str, commits: Sequence[Commit]) -> None:
        for one in commits:
            mine = self.commits.setdefault((one.computation, one.interval), {})
            written = Written(one, self._runs[segment, one.computation, one.interval, one.number])
            known = mine.setdefault(one.number, written)
            if known.commit != one:
                self._violated(
                    f"commit {one.number} of {one.computation}, interval {one.interval}, in "
                    f"segment {segment}, and another one counted before"
                )


class RecordedIncarnations:
    """Incarnations of which the history is told."""

    def __init__(self, incarnations: Incarnations, history: History) -> None:
        self._incarnations = incarnations
        self._history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incarnations, name)

    def seal(self, incarnation: int) -> Seal | None:
        """Seal, and take what is inside."""
        seal = self._incarnations.seal(incarnation)
        if seal is not None:
            self._history.sealed(self._incarnations, seal)
        return seal

    def grow(self, incarnation: int, level: int, task: int, epoch: int) -> Any:
        """Make a segment that is recorded."""
        return _RecordedSegment(
            self._incarnations.grow(incarnation, level, task, epoch), self._history
        )

    def remove(self, names: Iterable[SegmentName]) -> None:
        """Remove segments, and keep what counts of them."""
        names = list(names)
        for name in names:
            self._history.removed(name)
        self._incarnations.remove(names)


class _RecordedSegment:
    def __init__(self, segment: GrownSegment, history: History) -> None:
        self._segment = segment
        self._history = history
        self.name = segment.name

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        self._history.append(self.name, commits)
        self._segment.append(commits, note)

    def finish(self) -> None:
        self._segment.finish()

    def close(self) -> None:
        self._segment.close()


class RecordedExecution(Execution):
    """Runs bundles, and tells the history of them.

    Attributes:
        history: Of all.
        kept: Told how many more records of a computation wait for calls, in rows.
    """

    history: History
    kept: Callable[[str, int], None]

    def run(
        self, spec: ComputationSpec, bundle: Bundle, *more: Any, **how: Any
    ) -> tuple[Effects, Repair]:
        """Run a bundle."""
        effects, repair = super().run(spec, bundle, *more, **how)
        self.history.ran(spec.name, bundle)
        self.kept(spec.name, effects.calls_kept)
        return effects, repair

    def _run_user_code(self, spec: ComputationSpec, bundle: Bundle, view: View) -> Effects:
        """Run user code; from its beginning, if its cache turned out damaged meanwhile."""
        self.history.begin()
        return super()._run_user_code(spec, bundle, view)
