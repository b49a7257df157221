"""What hard state is: for each key interval a commit log and snapshots, and one epoch log.

All are put-if-absent at a number. That one primitive is the whole concurrency control: the
numbered slot is MillWheel's sequencer (section 6.2 "State Manipulation"), so that a writer that has
been superseded finds its slot taken instead of overwriting its successor's work.

What is not needed any more is removed (:mod:`millrace.store.collection`), always from the lowest
number up. A slot that is free because it was collected looks like one that was never taken, so
whoever puts looks again afterwards: the epoch log does it itself, for a commit the worker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from millrace.store.blobs import Blobs
from millrace.store.commit import Commit
from millrace.store.epoch_log import EpochLog
from millrace.store.journal import Journals
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots
from millrace.store.task_commits import TaskCommits


class CommitLog(Protocol):
    """Commits by ``(computation, interval, number)``; written once, never changed."""

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """Put each commit at its slot if the slot is free, and return which ones this call put.

        Called by CommitWork, once for all the intervals of a task. When it returns, every slot
        named is durable, the ones that were taken before included: a caller may then send on the
        winner's productions. Commits are independent: after a crash any of them may be there,
        each one whole.

        Raises:
            CheckpointUnwritable: nothing more can be written; commits made before are safe.
            InvariantViolation: two commits of the call have the same identity.
        """
        ...

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """Return what one task of an epoch commits of a computation.

        Args:
            computation: Its name.
            epoch: Number of the epoch.
            task: Which of those that its manifest says there are. All attempts at the epoch must
                have the same intervals in it.
        """
        ...

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return the commit at a slot, which is durable by then, or None when the slot is free.

        Raises:
            DamagedStore: the slot is taken, but its bytes fail their checksum.
            CheckpointMismatch: the slot was written in a newer format.
        """
        ...

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """Return whether a slot is taken; if so the commit in it is durable."""
        ...

    def numbers(self, computation: str) -> Mapping[int, Sequence[int]]:
        """Return interval id -> numbers of the commits that are there, ascending.

        Called by collection and by tools, never by a task: it lists.
        """
        ...

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """Remove commits, in the order given; return how many it was asked to.

        One that is not there is passed over; one in a journal is, and does not count: journals are
        removed as wholes. What is before those removed may go with them.

        Raises:
            StoreError: what could not be removed, and all after it, is still there.
        """
        ...

    def thin(self, computation: str, kept: int) -> int:
        """Free the room of removed commits beside which few are left; return how many objects.

        Args:
            computation: Whose.
            kept: What is not older than so many epochs is left alone: it will be freed as a whole.
        """
        ...


class HardState(Protocol):
    """A checkpoint location: what survives when every process and every cache is gone."""

    @property
    def blobs(self) -> Blobs:
        """What the logs are made of."""
        ...

    @property
    def commits(self) -> CommitLog:
        """The commit logs of all key intervals."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of all key intervals."""
        ...

    @property
    def epochs(self) -> EpochLog:
        """The log of the run."""
        ...

    @property
    def journals(self) -> Journals:
        """The journals of the real-time plane; commits in them are found in ``commits``."""
        ...

    @property
    def mailbox(self) -> Mailbox:
        """Messages beside the logs."""
        ...

    @property
    def uuid(self) -> str:
        """Made when the location was; caches carry it, so that one is never used for another."""
        ...
