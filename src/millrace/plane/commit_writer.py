"""Commit writer: when what a task did becomes durable, and what a later session takes up of it.

What a strong computation did is durable before anything of it leaves: a group of the journal, each
turn. What weak ones did goes with the next group there is, some turns later if a strong one needs
none, and at the latest with one before a mark is passed; until then it is in memory, over the
caches. A group takes all that there is, so the task's note in it, how far it has consumed its
input, is true of all its computations.

Where an append is a request to an object store, it takes about as long for little as for much: what
weak computations did goes with marks there.

What a deeper level has consumed was durable before it left. So a commit that somebody consumed, and
that no journal has, was lost: its journal was cut, removed or altered. Its sender would do its work
again, perhaps in other portions, under numbers that count as consumed, and rows would be lost.

Source: MillWheel 6.1.2 and 6.1.3; docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from millrace.model.errors import DamagedStore
from millrace.store import Commit, Journal, JournalName, Journals
from millrace.watermark.intervals import IntervalMap
from millrace.windmill import rows
from millrace.windmill.channels import WEAK_PART
from millrace.windmill.live_worker import LiveWorker
from millrace.windmill.positions import Positions
from millrace.windmill.results import Produced, footing_of, result_of
from millrace.windmill.router import RowsBuilder

#: For so many turns that had something to commit what weak computations did waits, where an append
#: is quick: with 250 of them a second, a quarter of one.
WEAK_TURNS: Final = 64
#: What is not durable yet takes no more memory than this, and a turn's.
_AHEAD_BYTES: Final = 16 << 20


class Committing:
    """Makes the commits of one task durable, for one session.

    Args:
        journals: Of the checkpoint.
        session: The session.
        level: The task's level.
        task: Its number.
        worker: Whose caches follow.
        weak: Computations whose commits wait.
        note: Returns what the task knows now.
        turns: For so many turns that had something to commit what weak computations did waits,
            where an append is quick. So a mark does not find all that was done since the last one.
    """

    def __init__(
        self,
        journals: Journals,
        session: int,
        level: int,
        task: int,
        *,
        worker: LiveWorker,
        weak: Container[str],
        note: Callable[[], bytes],
        turns: int = WEAK_TURNS,
    ) -> None:
        self._journals = journals
        self._where = session, level, task
        self._worker = worker
        self._weak = weak
        self._note = note
        self._turns = None if journals.far else turns
        self._left: list[Commit] = []
        self._waited = 0
        self._part = 1
        self._journal: Journal | None = None

    def take(self, commits: Sequence[Commit]) -> int:
        """Make the commits of a turn durable, as far as their computations ask for that.

        Those of a turn that only weak computations have something to do in are left for
        :meth:`after_turn`.

        Returns:
            How many groups that took.
        """
        now = [commit for commit in commits if commit.computation not in self._weak]
        self._left += [commit for commit in commits if commit.computation in self._weak]
        if not now:
            return 0
        self._wait()
        self._append(now)
        return 1

    def after_turn(self) -> int:
        """Do what is left, when what was produced has left; return how many groups that took."""
        if not self._left:
            return 0
        self._wait()
        if self._may_wait(self._worker.ahead.size_bytes):
            self._waited += 1
            return 0
        self._append([])
        return 1

    def _wait(self) -> None:
        left, self._left = self._left, []
        for commit in left:
            self._worker.ahead.wait(commit)

    def _may_wait(self, size: int) -> bool:
        return size <= _AHEAD_BYTES and (self._turns is None or self._waited < self._turns)

    def end_part(self) -> str:
        """Make durable what waits; return the name of the part that a mark ends, empty if none."""
        self._wait()
        if self._worker.ahead.commits:
            self._append([])
        self._worker.ahead.forward()
        if self._journal is None:
            return ""
        name = str(self._journal.name)
        self._close_journal()
        self._part += 1
        return name

    def close(self) -> None:
        """Give the file back; what waits is lost, and comes of the input again."""
        self._close_journal()
        self._worker.ahead.forward()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _append(self, commits: list[Commit]) -> None:
        if self._journal is None:
            self._journal = self._journals.create(*self._where, self._part)
        self._journal.append([*self._worker.ahead.commits, *commits], self._note())
        self._waited = 0
        self._worker.settle(commits)


def commits_again(
    journals: Journals, level: int, task: int, positions: Positions
) -> Iterator[Produced]:
    """Yield what came of each commit that a task's journals have after its positions, in order.

    Who takes one moves the positions to it before the next.

    Args:
        journals: Of the checkpoint; those of older sessions are sealed.
        level: The task's level.
        task: Its number.
        positions: Where its intervals stand.

    Raises:
        DamagedStore: A commit is missing.
    """
    for name in journals.names():
        if name.level != level or name.task != task:
            continue
        for commit in _commits(journals, name):
            if _follows(commit, name, positions.numbers, positions.maps):
                productions = RowsBuilder.unpack(commit.productions)
                yield result_of(commit, footing_of(commit)), productions


def check_consumed(
    journals: Iterable[Journals],
    numbers: Mapping[str, Mapping[int, int]],
    maps: Mapping[str, IntervalMap],
    names: Mapping[int, str],
) -> None:
    """Check that journals have every commit of which a deeper level has consumed something.

    Cost: reading the journals, which their tasks read, too.

    Args:
        journals: Those of the checkpoint that are sealed; then those of a session under way.
        numbers: Computation -> interval id -> its last commit that the last complete mark has.
        maps: Computation -> its key intervals; of one without, all are there.
        names: Number of a computation -> its name.

    Raises:
        DamagedStore: A commit is missing, or a journal cannot be read.
    """
    there = {name: dict(of) for name, of in numbers.items()}
    consumed: dict[tuple[str, int], tuple[int, Commit, JournalName]] = {}
    for name, commit in _all_commits(journals):
        if not _follows(commit, name, there, maps):
            continue
        there[commit.computation][commit.interval] = commit.number
        for row, value in commit.mutations:
            if row[:1] != rows.CHANNELS or value is None:
                continue
            channel = rows.ChannelRow.unpack(row, value)
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
                f"commit {number} of interval {interval} of computation {sender!r} is missing: "
                f"its journal ends with {last}, and commit {commit.number} of interval "
                f"{commit.interval} of {commit.computation!r}, in journal {name}, has consumed "
                f"what came of {number}. A journal of an earlier level was cut, removed or "
                f"altered. Restore the checkpoint from a copy."
            )


def _follows(
    commit: Commit,
    name: JournalName,
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
            f"{commit.computation!r} is missing: journal {name} goes on with {commit.number}. A "
            f"journal before it was cut, removed or altered. Restore the checkpoint from a copy."
        )
    return True


def _all_commits(journals: Iterable[Journals]) -> Iterator[tuple[JournalName, Commit]]:
    for some in journals:
        for name in some.names():
            for commit in _commits(some, name):
                yield name, commit


def _commits(journals: Journals, name: JournalName) -> Iterator[Commit]:
    """Yield a journal's commits; fewer if it is collected meanwhile, and so behind the mark."""
    try:
        for group in journals.groups(name):
            yield from group.commits
    except DamagedStore:
        if name in journals.names():
            raise
