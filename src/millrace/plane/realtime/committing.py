"""Committing: the journal of a level task, and when what it did becomes durable.

What a strong computation did is durable before anything of it leaves: a group of the journal, each
turn. What weak ones did goes with the next group there is, some turns later if a strong one needs
none, and at the latest with one before a mark is passed; until then it is in memory, over the
caches. A group takes all that there is, so the task's note in it, how far it has consumed its
input, is true of all its computations.

Where an append is a request to an object store, it takes about as long for little as for much: what
weak computations did goes with marks there.

Source: MillWheel 6.1.2 and 6.1.3; docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from millrace.store import Commit, Journal, Journals
from millrace.windmill.live_worker import LiveWorker

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
