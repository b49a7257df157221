"""What hard state is: a commit log for each key interval, and one epoch log for the run.

Both are put-if-absent at a number. That one primitive is the whole concurrency control: the
numbered slot is MillWheel's sequencer (section 6.2 "State Manipulation"), so that a writer that has
been superseded finds its slot taken instead of overwriting its successor's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.store.commit import Commit


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


class EpochLog(Protocol):
    """One totally ordered list of entries: run claims, epoch manifests, epoch completions.

    Because they share one numbering, a driver that has been superseded fails at its next put.
    """

    def append(self, number: int, entry: bytes) -> bool:
        """Put ``entry`` at ``number`` if that is free; True when this call put it. Durable.

        Args:
            number: ``last() + 1`` as the caller knows it; numbers start at 1 and have no gaps.
            entry: UTF-8 JSON, so that a checkpoint can be read without Millrace.

        Raises:
            CheckpointUnwritable: nothing was written; entries made before are safe.
            InvariantViolation: ``number - 1`` is not there.
        """
        ...

    def read(self, number: int) -> bytes | None:
        """Return the entry at ``number``, which is durable by then, or None when there is none.

        Raises:
            DamagedStore: the entry fails its checksum.
        """
        ...

    def last(self) -> int:
        """Return the highest number, 0 when the log is empty."""
        ...


class HardState(Protocol):
    """A checkpoint location: what survives when every process and every cache is gone."""

    @property
    def commits(self) -> CommitLog:
        """The commit logs of all key intervals."""
        ...

    @property
    def epochs(self) -> EpochLog:
        """The log of the run."""
        ...

    @property
    def uuid(self) -> str:
        """Made when the location was; caches carry it, so that one is never used for another."""
        ...
