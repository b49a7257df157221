"""What hard state is: for each key interval a commit log and snapshots, and one epoch log.

All are put-if-absent at a name that all attempts know: MillWheel's sequencer (section 6.2 "State
Manipulation"), see :mod:`millrace.store.blobs`.

What is not needed any more is removed (:mod:`millrace.store.collection`), always from the lowest
number up. A name that is free because what had it was collected looks like one that was never
taken, so whoever puts looks again afterwards: the epoch log does it itself, for commits the worker
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from millrace.store.blobs import Blobs
from millrace.store.commit import Commit
from millrace.store.commit_log import TaskCommits
from millrace.store.epoch_log import EpochLog
from millrace.store.journal import JournalName, Journals
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots


class CommitLog(Protocol):
    """Commits by ``(computation, interval, number)``; written once, never changed."""

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """Return what one task of an epoch commits of a computation.

        Args:
            computation: Its name.
            epoch: Number of the epoch.
            task: Which of those that its manifest says there are. All attempts at the epoch must
                have the same intervals in it.
        """
        ...

    def of_part(self, computation: str, epoch: int, part: JournalName) -> TaskCommits:
        """Return what is left of a part of a journal, of a computation.

        Args:
            computation: Its name.
            epoch: That the part ends with.
            part: The part.
        """
        ...

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return a commit, or None when there is none.

        Raises:
            DamagedStore: it fails its checksum; or it is not found, and what is damaged may have
                it.
            CheckpointMismatch: it was written in a newer format.
        """
        ...

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """Return whether a commit is there."""
        ...

    def numbers(self, computation: str) -> Mapping[int, Sequence[int]]:
        """Return interval id -> numbers of the commits that are there, ascending.

        Called by collection and by tools, never by a task: it lists.
        """
        ...

    def damaged(self, computation: str) -> list[str]:
        """Return what is wrong with segments of which nobody knows what they hold.

        As of the last call of another method: for who verifies.
        """
        ...

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """Remove commits up to the highest of some; return how many it was asked to.

        One that is not there is passed over; one in a journal is, and does not count: journals are
        removed as wholes. What lies beside others that are needed may be there again for who looks
        anew.

        Raises:
            StoreError: what could not be removed, and all after it, is still there.
        """
        ...

    def thin(self, computation: str, kept: int, left: int) -> int:
        """Free the room of removed commits beside which few are left; return of how many segments.

        Args:
            computation: Whose.
            kept: What is not older than so many epochs is left alone: it will be freed as a whole.
            left: A segment is put again if at the most one of so many of its commits is needed.
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
