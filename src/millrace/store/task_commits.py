"""What one task of an epoch commits of one computation: read before its code runs, put after.

Where a request costs little, each commit is a slot of its own, and whose task it was is of no
interest. In an object store a request costs money and some ten milliseconds, so all of a task's
commits are one object, whose name every attempt at the epoch knows: a manifest says how many tasks
there are, and so which intervals each has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from millrace.store.commit import Commit

if TYPE_CHECKING:
    from millrace.store.log import CommitLog

#: What it takes to get one commit that is an object or a file, in bytes read in that time.
SLOT_BYTES = 1 << 16
#: The same of one that lies beside many: a small interval has a snapshot every 1,024 of them.
SEGMENT_BYTES = 1 << 12


class TaskCommits(Protocol):
    """The commits of a task of an epoch, of one computation. For one attempt at it."""

    @property
    def overhead(self) -> int:
        """What reading one of them again will cost beside its bytes, in bytes."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing can be added, as another attempt has put all that the task commits."""
        ...

    def read(self, interval: int, number: int) -> Commit | None:
        """Return what was committed; as of the first call, or later.

        Raises: as :meth:`millrace.store.CommitLog.read`.
        """
        ...

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """Put commits, as :meth:`millrace.store.CommitLog.append` does.

        Where all are one object, another attempt's stands for all of this one's: then
        :meth:`read` has None for a commit that it did not make.
        """
        ...


class SlotCommits:
    """Each commit in its own slot.

    Args:
        log: The slots.
        computation: Whose.
    """

    overhead = SLOT_BYTES
    over = False

    def __init__(self, log: CommitLog, computation: str) -> None:
        self._log = log
        self._computation = computation
        self.append = log.append

    def read(self, interval: int, number: int) -> Commit | None:
        """See :meth:`TaskCommits.read`."""
        return self._log.read(self._computation, interval, number)
