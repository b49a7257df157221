"""Commit writers: what runs the bundles of a task, and makes what came of them durable.

There are two. In an epoch a segment is *put* as a whole, by whichever attempt at the task comes
first; the others send what it sent. In real time a segment is *grown* by one task for as long as
its incarnation lasts.

What a strong computation did is durable before anything of it leaves. In real time, what weak ones
did goes with the next group there is, some turns later if a strong one needs none, and at the
latest with one before a mark is passed; until then it is in memory, over the caches. A group takes
all that there is, so the task's note in it, how far it has consumed its input, is true of all its
computations. Where an append is a request to an object store, it takes about as long for little as
for much: what weak computations did goes with marks there.

What a deeper level has consumed was durable before it left. So a commit that somebody consumed, and
that no segment has, was lost: its segment was cut, removed or altered. Its sender would do its work
again, perhaps in other portions, under numbers that count as consumed, and rows would be lost.

Source: MillWheel 6.1.1 (exactly-once delivery), 6.1.2 (strong productions), 6.1.3 (weak
productions), 6.2 (sequencers); Streaming Engine, GetData and CommitWork; docs/architecture.md, "The
commit protocol"; docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.fence import IncarnationFence
from millrace.epochlog.positions import Positions
from millrace.kernel import families, row_codec
from millrace.kernel.bundle import Attempt, Bundle, Position
from millrace.kernel.channels import WEAK_PART, Consumed
from millrace.kernel.execution import Attempted, Execution, Fence
from millrace.kernel.machine import Effects
from millrace.kernel.record_ids import WEAK_ORIGIN, ids_of_causes, production_ids
from millrace.kernel.results import Produced, footing_of, result_of
from millrace.kernel.router import RowsBuilder
from millrace.model.calls import Call
from millrace.model.computation import WEAK
from millrace.model.errors import DamagedCache, DamagedStore, StoreError, ZombieWriter
from millrace.runtime.calls import NO_CALLS, CallRounds, TaskCalls
from millrace.store import (
    KEPT_TURNS,
    AheadCaches,
    Commit,
    CommitLog,
    GrownSegment,
    Incarnations,
    Repair,
    SegmentName,
    TaskCommits,
)
from millrace.watermark.intervals import IntervalMap

_log = logging.getLogger(__name__)

#: For so many turns that had something to commit what weak computations did waits, where an append
#: is quick: with 250 of them a second, a quarter of one.
WEAK_TURNS: Final = 64
#: What is not durable yet takes no more memory than this, and a turn's.
_AHEAD_BYTES: Final = 16 << 20
#: Where a task is whose disk does not answer.
_SEGMENT: Final = "its segment, which it appends to"

_NOTHING: Final[Mapping[bytes, bytes | None]] = {}
_NONE_MOVED: Final[Consumed] = {}
_NONE_WEAK: Final[Mapping[str, bool]] = {}


class CommitWriter(Protocol):
    """Runs the bundles of one task, and makes what came of them durable.

    Attributes:
        execution: GetData and user code.
        calls: Computation -> its calls, of those that make some.
    """

    execution: Execution
    calls: Mapping[str, TaskCalls]

    def earlier(self, positions: Positions) -> Iterator[Produced]:
        """Yield what came of each commit that the task made after its positions, in order.

        Who takes one moves the positions to it before the next.

        Args:
            positions: Where the task's intervals stand.

        Raises:
            DamagedStore: A commit is missing.
        """
        ...

    def run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], consumed: Consumed
    ) -> list[Attempted]:
        """Run bundles of one computation; nothing of them is durable yet.

        Args:
            spec: The computation.
            bundles: For different intervals, of one attempt; at least one.
            consumed: What of their channels has moved; empty where records come by epoch.

        Returns:
            What came of them, in their order.

        Raises:
            ZombieWriter: Others have gone on without this attempt.
        """
        ...

    def commit(self, attempted: Sequence[Attempted]) -> list[Produced]:
        """Make durable what came of bundles of all computations of the task, at least one.

        Returns:
            What may leave, in their order: of this attempt, or of one that committed before.

        Raises:
            ZombieWriter: Others have gone on without this attempt.
        """
        ...

    def after_turn(self) -> None:
        """Make durable what may become so after its productions have left."""
        ...

    def end(self) -> str:
        """Make durable what waits; return the name of the segment that ends, empty if none."""
        ...

    def close(self) -> None:
        """Give files back; what waits is lost, and comes of the input again."""
        ...


class PutWriter:
    """Puts what one attempt at a task of an epoch commits: a segment for each computation.

    A commit that an earlier attempt has put is found with its bundle: weak productions are not in
    it, and user code makes them again.

    Args:
        execution: GetData and user code.
        fence: Asked after commits are durable, before anything of them leaves.
        task: Number of the task.
    """

    def __init__(self, execution: Execution, fence: Fence, task: int) -> None:
        self.execution = execution
        self.calls: Mapping[str, TaskCalls] = NO_CALLS
        self._fence = fence
        self._task = task
        #: Computation -> what the task commits of it.
        self._segments: dict[str, TaskCommits] = {}
        #: Computation whose productions are weak -> how many intervals it has.
        self._weak: dict[str, int] = {}

    def earlier(self, positions: Positions) -> Iterator[Produced]:
        """Yield nothing: see :class:`PutWriter`."""
        return iter(())

    def run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], consumed: Consumed = _NONE_MOVED
    ) -> list[Attempted]:
        """Run bundles that no earlier attempt has committed, and those of weak productions.

        An interval for which an earlier attempt had nothing to do, as weak productions reached it
        in this one alone, is as it was: nothing is returned for it.

        Calls are made before it returns, and count as what the bundles did.
        """
        calls = self.calls.get(spec.name) if self.calls else None
        if calls is None:
            return self._run(spec, bundles, None)
        fence, execution = self._fence, self.execution

        def go_on(bundle: Bundle, effects: Effects) -> Effects:
            return execution.go_on(spec, bundle, effects, fence)

        rounds = CallRounds(calls, go_on)
        execution.running.waiting = calls.at_hand
        try:
            return self._run(spec, bundles, rounds)
        except BaseException:
            calls.cancel()
            raise
        finally:
            execution.running.waiting = str

    def _run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], rounds: CallRounds | None
    ) -> list[Attempted]:
        name, attempt = spec.name, bundles[0].attempt
        log, execution = self.execution.state.commits, self.execution
        # In this order: if the cache has what another attempt committed, so has the log.
        cache_positions = [execution.cache_position(spec, bundle.interval.id) for bundle in bundles]
        segment = self._segments[name] = log.of_task(name, attempt.epoch, self._task)
        weak = spec.guarantees.productions is WEAK
        if weak:
            self._weak[name] = attempt.intervals
        attempts, ran = list[Attempted](), list[tuple[Bundle, Effects, Repair]]()
        for bundle, cache_position in zip(bundles, cache_positions, strict=True):
            committed = segment.read(bundle.interval.id, bundle.number)
            if committed is None and segment.over:
                continue
            if committed is not None and holds_productions(log, committed, attempt):
                attempts.append(Attempted(*replay(committed, RowsBuilder()), None))
                continue
            if rounds is not None:
                bundle = rounds.begun(bundle)
            effects, repair = execution.run(spec, bundle, self._fence, cache_position)
            if rounds is not None:
                rounds.add(bundle, effects)
                ran.append((bundle, effects, repair))
                continue
            if weak and repair.deltas_applied and not repair.rebuilt:
                # Its cache is a commit behind, see _settle; another process made it.
                repair = replace(repair, deltas_applied=repair.deltas_applied - 1)
            if committed is not None:
                attempts.append(Attempted(*replay(committed, effects.productions), None))
            else:
                attempts.append(execution.attempted(bundle, name, effects, repair, weak=weak))
        if rounds is not None:
            rounds.finish()
            attempts += [
                execution.attempted(bundle, name, effects, repair)
                for bundle, effects, repair in ran
            ]
        return attempts

    def commit(self, attempted: Sequence[Attempted]) -> list[Produced]:
        """Put a segment for each computation, unless another attempt has; that one's counts then.

        An interval for which that other attempt had nothing to do is as it was.
        """
        commits: dict[str, list[Commit]] = {}
        for attempt in attempted:
            if attempt.commit is not None:
                commits.setdefault(attempt.commit.computation, []).append(attempt.commit)
        won = {name for name, commits_of in commits.items() if self._segments[name].put(commits_of)}
        # What this attempt may have put after its epoch was collected stays, for the next
        # collection: it cannot tell it from a segment that it won before it fell asleep, and that
        # counts.
        if commits or any(attempt.result.replayed for attempt in attempted):
            self._fence.check()
        settled = [self._settle(attempt, won) for attempt in attempted]
        return [produced for produced in settled if produced is not None]

    def _settle(self, attempted: Attempted, won: set[str]) -> Produced | None:
        """Bring the cache up to a commit that was won; return what leaves, None for nothing.

        Where productions are weak, the cache stays a commit behind until the next epoch: to make
        productions again, user code needs the state from before.
        """
        result, productions, commit = attempted
        if commit is None:
            return result, productions
        segment = self._segments[commit.computation]
        if commit.computation not in won:
            winner = segment.read(commit.interval, commit.number)
            return None if winner is None else replay(winner, productions)
        if commit.computation in self._weak:
            self.execution.defer(commit, self._weak[commit.computation])
        else:
            self.execution.apply(commit, overhead=segment.overhead)
        return result, productions

    def after_turn(self) -> None:
        """Do nothing: all is durable."""

    def end(self) -> str:
        """Return no name: a segment is whole when it is put."""
        return ""

    def close(self) -> None:
        """Do nothing: no file is open."""


def holds_productions(log: CommitLog, commit: Commit, attempt: Attempt) -> bool:
    """Return whether a commit can be replayed from what is in it.

    Raises:
        ZombieWriter: Its productions would have to be made again, and its epoch is over: the cache
            is not rebuilt for an attempt that was left behind.
    """
    if not footing_of(commit).weak:
        return True
    following = commit.number + 1
    if log.exists(commit.computation, commit.interval, following):
        raise ZombieWriter(
            f"zombie writer: epoch {attempt.epoch} (generation {attempt.generation}) wants "
            f"the weak productions of commit {commit.number} of {commit.computation!r}, "
            f"interval {commit.interval}, but commit {following} has been made since, so that "
            "epoch is over. This attempt was left behind, and must stop. Nothing was lost."
        )
    return False


def replay(commit: Commit, weak: RowsBuilder) -> Produced:
    """Return what an earlier attempt committed.

    Args:
        commit: The earlier attempt's.
        weak: What this attempt made; sent on if the commit holds no productions.
    """
    footing = footing_of(commit)
    productions = weak if footing.weak else RowsBuilder.unpack(commit.productions)
    return result_of(commit, footing, replayed=True), productions


class GrownWriter:
    """Grows the segments of one live task, for one incarnation.

    Nobody else makes commits of its intervals while its incarnation lasts, so none is looked up
    before: what the last incarnation left is sealed, and this one's bundles begin behind it.

    Args:
        execution: GetData and user code, over caches that are durable.
        fence: Of the incarnation: asked before a cache is taken from those that have gone on with
            it, and before one is brought forward.
        level: The task's level.
        task: Its number.
        epoch: Of its first mark.
        note: Returns what the task knows now.
        weak: Computations whose commits are made durable later than in their turn -> whether ids of
            productions are made from those of the input.
        turns: For so many turns that had something to commit what weak computations did waits,
            where an append is quick. So a mark does not find all that was done since the last one.
        kept_turns: How many turns commits stay in memory before caches have them.

    Attributes:
        ahead: The caches of the process, with commits that they do not have yet.
        execution: GetData and user code, over those.
        calls: Computation -> its calls; they are made when their commit is durable.
        groups: How many groups of commits it has appended.
        at: What it is in the middle of, in words; "" if nothing. Any thread may look.
    """

    def __init__(
        self,
        execution: Execution,
        fence: IncarnationFence,
        level: int,
        task: int,
        epoch: int,
        *,
        note: Callable[[], bytes],
        weak: Mapping[str, bool] = _NONE_WEAK,
        turns: int = WEAK_TURNS,
        kept_turns: int = KEPT_TURNS,
    ) -> None:
        self.ahead = AheadCaches(execution.caches, families.VALUES, turns=kept_turns)
        causes = {name for name, by_input in weak.items() if by_input}
        self.execution = execution.ahead(self.ahead, weak, causes)
        self.calls: Mapping[str, TaskCalls] = NO_CALLS
        self.groups = 0
        self.at = ""
        self._asked: list[tuple[str, Sequence[Call], int]] = []
        self._fence = fence
        self._incarnations = fence.incarnations
        self._where = fence.incarnation, level, task
        self._weak = weak
        self._note = note
        self._turns = None if self._incarnations.far else turns
        self._left: list[Commit] = []
        self._waited = 0
        self._epoch = epoch
        self._segment: GrownSegment | None = None

    def earlier(self, positions: Positions) -> Iterator[Produced]:
        """Yield what came of each commit that the task's sealed segments have."""
        _, level, task = self._where
        self.at = "segments, from which it takes up what was committed"
        yield from commits_again(self._incarnations, level, task, positions)
        self.at = ""

    def channels(
        self, spec: ComputationSpec, interval: int, position: Position
    ) -> tuple[list[families.ChannelRow], Repair]:
        """Return an interval's channels, and what it took to bring its cache to its position."""
        try:
            try:
                return self._channels(spec, interval, position)
            except DamagedCache as damage:
                _log.warning("%s", damage)
                rows, repair = self._channels(spec, interval, position)
                return rows, replace(repair, damaged=repair.damaged + 1)
        except DamagedStore as damage:
            raise self._explained(damage, spec, interval, position.number) from damage

    def _channels(
        self, spec: ComputationSpec, interval: int, position: Position
    ) -> tuple[list[families.ChannelRow], Repair]:
        cache, repair = self.execution.ready(spec, interval, position, self._fence)
        with cache.view(at=position.number) as view:
            rows = row_codec.scan(view, families.CHANNELS)
            return [families.ChannelRow.unpack(*row) for row in rows], repair

    def run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], consumed: Consumed
    ) -> list[Attempted]:
        """Run bundles; see :class:`CommitWriter`."""
        execution, name = self.execution, spec.name
        attempts = []
        for bundle in bundles:
            interval = bundle.interval.id
            try:
                effects, repair = execution.run(spec, bundle, self._fence)
            except DamagedStore as damage:
                raise self._explained(damage, spec, interval, bundle.position.number) from damage
            if name in self._weak:
                effects.productions.ids = self._ids(spec, bundle, effects.productions)
            if effects.calls or effects.calls_kept:
                self._asked.append((name, effects.calls, effects.calls_kept))
            channels = consumed.get(interval, _NOTHING)
            attempts.append(execution.attempted(bundle, name, effects, repair, consumed=channels))
        return attempts

    def _ids(
        self, spec: ComputationSpec, bundle: Bundle, productions: RowsBuilder
    ) -> tuple[list[int], list[int]]:
        """Return the ids of weak productions: of their causes, or of this incarnation only."""
        if productions.causes is not None:
            return ids_of_causes(spec.number, self._where[-1], productions.causes)
        count = len(productions)
        origin, sequences = production_ids(spec.number, bundle.number, bundle.interval.id, count)
        return [origin | WEAK_ORIGIN] * len(sequences), list(sequences)

    def _explained(
        self, damage: DamagedStore, spec: ComputationSpec, interval: int, number: int
    ) -> StoreError:
        """Tell a cache that cannot be made again yet from a store that is damaged."""
        if self.execution.state.commits.exists(spec.name, interval, number):
            return damage
        return StoreError(
            f"the cache of interval {interval} of {spec.name!r} was lost, or moved by another "
            f"process, and commit {number} is of this incarnation: its segments are read when they "
            "are sealed. So the incarnation ends, and the next one makes the cache again. Nothing "
            "was lost."
        )

    def commit(self, attempted: Sequence[Attempted]) -> list[Produced]:
        """Make the commits of a turn durable, as far as their computations ask for that.

        Those of a turn that only weak computations have something to do in are left for
        :meth:`after_turn`.
        """
        strong: list[Commit] = []
        for _, _, commit in attempted:
            if commit is not None:
                (self._left if commit.computation in self._weak else strong).append(commit)
        if strong:
            self._wait()
            self._append(strong)
        # Not before: what made them pending is durable now.
        asked, self._asked = self._asked, []
        for name, calls, kept in asked:
            self.calls[name].submit(calls)
            self.calls[name].kept += kept
        return [(result, productions) for result, productions, _ in attempted]

    def after_turn(self) -> None:
        """Do what is left, when what was produced has left."""
        if not self._left:
            return
        self._wait()
        if self._may_wait(self.ahead.size_bytes):
            self._waited += 1
        else:
            self._append([])

    def _wait(self) -> None:
        left, self._left = self._left, []
        for commit in left:
            self.ahead.wait(commit)

    def _may_wait(self, size: int) -> bool:
        return size <= _AHEAD_BYTES and (self._turns is None or self._waited < self._turns)

    def end(self) -> str:
        """Make durable what waits; return the name of the segment that ends, empty if none."""
        self._wait()
        if self.ahead.commits:
            self._append([])
        self.at, name = _SEGMENT, ""
        self.ahead.forward()
        self._epoch += 1
        if self._segment is not None:
            name = str(self._segment.name)
            self._segment.finish()
            self._segment = None
        self.at = ""
        return name

    def close(self) -> None:
        """Give the file back; what waits is lost, and comes of the input again."""
        self._close_segment()
        self.ahead.forward()

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _append(self, commits: list[Commit]) -> None:
        self.at = _SEGMENT
        if self._segment is None:
            self._segment = self._incarnations.grow(*self._where, self._epoch)
        self._segment.append([*self.ahead.commits, *commits], self._note())
        self._waited = 0
        self.groups += 1
        self._settle(commits)
        self.at = ""

    def _settle(self, commits: Iterable[Commit]) -> None:
        """Take commits that were appended, with those that waited.

        As long as no other incarnation has begun, its seal will have them. Behind a seal they do
        not exist, and a snapshot of a cache that has them would stand for another history. Cost:
        one open, or one HEAD.

        Raises:
            ZombieWriter: Another incarnation has begun.
        """
        self._fence.check()
        self.ahead.durable(commits)


def commits_again(
    incarnations: Incarnations, level: int, task: int, positions: Positions
) -> Iterator[Produced]:
    """Yield what came of each commit that a task's segments have after its positions, in order.

    Who takes one moves the positions to it before the next.

    Args:
        incarnations: Of the checkpoint; what the older ones left is sealed.
        level: The task's level.
        task: Its number.
        positions: Where its intervals stand.

    Raises:
        DamagedStore: A commit is missing.
    """
    for name in incarnations.names():
        if name.level != level or name.task != task:
            continue
        for commit in _commits(incarnations, name):
            if _follows(commit, name, positions.numbers, positions.maps):
                productions = RowsBuilder.unpack(commit.productions)
                yield result_of(commit, footing_of(commit)), productions


def check_consumed(
    incarnations: Incarnations,
    numbers: Mapping[str, Mapping[int, int]],
    maps: Mapping[str, IntervalMap],
    names: Mapping[int, str],
) -> None:
    """Check that grown segments have every commit of which a deeper level has consumed something.

    Cost: reading them, which their tasks read, too.

    Args:
        incarnations: Of the checkpoint.
        numbers: Computation -> interval id -> its last commit that the last complete mark has.
        maps: Computation -> its key intervals; of one without, all are there.
        names: Number of a computation -> its name.

    Raises:
        DamagedStore: A commit is missing, or a segment cannot be read.
    """
    there = {name: dict(numbers_of) for name, numbers_of in numbers.items()}
    consumed: dict[tuple[str, int], tuple[int, Commit, SegmentName]] = {}
    for name, commit in _all_commits(incarnations):
        if not _follows(commit, name, there, maps):
            continue
        there[commit.computation][commit.interval] = commit.number
        for row, value in commit.mutations:
            if row[:1] != families.CHANNELS or value is None:
                continue
            channel = families.ChannelRow.unpack(row, value)
            sender = names.get(channel.who)
            if sender is None or channel.part & WEAK_PART:
                continue
            known = consumed.get((sender, channel.part))
            if known is None or known[0] < channel.origin:
                consumed[sender, channel.part] = channel.origin, commit, name
    for (sender, interval), (number, commit, name) in consumed.items():
        intervals = maps.get(sender)
        if intervals is not None and interval not in intervals.places:
            continue  # it was split or merged away since
        last = there.get(sender, {}).get(interval, 0)
        if number > last:
            raise DamagedStore(
                f"commit {number} of interval {interval} of computation {sender!r} is missing. "
                f"Its segment ends with {last}, and commit {commit.number} of interval "
                f"{commit.interval} of {commit.computation!r}, in segment {name}, has consumed "
                f"what came of {number}. A segment of an earlier level was cut, removed or "
                f"altered. Restore the checkpoint from a copy."
            )


def _follows(
    commit: Commit,
    name: SegmentName,
    numbers: Mapping[str, Mapping[int, int]],
    maps: Mapping[str, IntervalMap],
) -> bool:
    """Return whether a commit is the next of its interval; False for one that does not count."""
    known = numbers.get(commit.computation)
    if known is None or commit.number <= known.get(commit.interval, 0):
        return False
    intervals = maps.get(commit.computation)
    if intervals is not None and commit.interval not in intervals.places:
        return False  # it was split or merged away since
    expected = known.get(commit.interval, 0) + 1
    if commit.number != expected:
        raise DamagedStore(
            f"commit {expected} of interval {commit.interval} of computation "
            f"{commit.computation!r} is missing: segment {name} goes on with {commit.number}. A "
            f"segment before it was cut, removed or altered. Restore the checkpoint from a copy."
        )
    return True


def _all_commits(incarnations: Incarnations) -> Iterator[tuple[SegmentName, Commit]]:
    for name in incarnations.names():
        for commit in _commits(incarnations, name):
            yield name, commit


def _commits(incarnations: Incarnations, name: SegmentName) -> Iterator[Commit]:
    """Yield a segment's commits; fewer if it is collected meanwhile, and so behind the mark."""
    try:
        for group in incarnations.groups(name):
            yield from group.commits
    except DamagedStore:
        if name in incarnations.names():
            raise
