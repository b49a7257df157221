"""MemoryHardState: hard state in dictionaries, for the Harness and for simulations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.store.commit import Commit, Identity, identities
from millrace.store.epoch_log import EpochLog
from millrace.store.journal_store import JournalStore
from millrace.store.journaled import JournaledCommitLog
from millrace.store.mailbox import Mailbox
from millrace.store.memory_blobs import MemoryBlobs
from millrace.store.memory_journals import MemoryJournals
from millrace.store.segment import encode_segment, read_commit
from millrace.store.snapshots import Snapshots
from millrace.store.task_commits import SlotCommits, TaskCommits


class MemoryCommitLog:
    """The commit logs of a :class:`MemoryHardState`."""

    def __init__(self, *, encoded: bool) -> None:
        self._encoded = encoded
        self._slots: dict[Identity, tuple[bytes | Commit]] = {}

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """See :meth:`millrace.store.CommitLog.append`."""
        names = identities(commits)
        segment = encode_segment(commits, sharing=True) if self._encoded else None
        won: list[bool] = []
        for name, commit in zip(names, commits, strict=True):
            mine = (commit if segment is None else segment,)
            # Atomic under the interpreter's lock, so threads may share the log.
            won.append(self._slots.setdefault(name, mine) is mine)
        return won

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """See :meth:`millrace.store.CommitLog.of_task`."""
        return SlotCommits(self, computation)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`."""
        slot = self._slots.get((computation, interval, number))
        if slot is None:
            return None
        (found,) = slot
        if isinstance(found, bytes):
            return read_commit(found, computation, interval, number)
        return found

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`."""
        return (computation, interval, number) in self._slots

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`."""
        found: dict[int, list[int]] = {}
        for name, interval, number in sorted(self._slots):
            if name == computation:
                found.setdefault(interval, []).append(number)
        return found

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """See :meth:`millrace.store.CommitLog.remove`."""
        names = [(computation, interval, number) for number in numbers]
        for name in names:
            self._slots.pop(name, None)
        return len(names)

    def thin(self, computation: str, kept: int) -> int:
        """See :meth:`millrace.store.CommitLog.thin`: a name that is removed frees its room."""
        return 0

    def copy(self) -> MemoryCommitLog:
        """Return a copy of the log."""
        made = MemoryCommitLog(encoded=self._encoded)
        made._slots = dict(self._slots)
        return made


class MemoryHardState:
    """Hard state that lives as long as the object; a crash is simulated by dropping all the rest.

    Args:
        encoded: Keep commits as the bytes of segments, so that what a test reads back has been
            through the same coders as on disk. False keeps the Commit objects: faster, and then
            nobody may change a commit after it is appended.
        uuid: As it would be in ``FORMAT``; a constant, so that simulations repeat.

    >>> state = MemoryHardState()
    >>> commit = Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")])
    >>> state.commits.append([commit]), state.commits.append([commit])
    ([True], [False])
    >>> state.commits.read("count", 0, 1) == commit
    True
    """

    def __init__(self, *, encoded: bool = True, uuid: str = "memory") -> None:
        self.uuid = uuid
        self._slots = MemoryCommitLog(encoded=encoded)
        self._journals = MemoryJournals()
        self.blobs = MemoryBlobs()
        self._open()

    def copy(self) -> MemoryHardState:
        """Return a copy that later appends to either one leave alone."""
        copied = MemoryHardState(uuid=self.uuid)
        copied._slots, copied._journals = self._slots.copy(), self._journals.copy()
        copied.blobs = self.blobs.copy()
        copied._open()
        return copied

    def _open(self) -> None:
        self.journals = JournalStore(self.blobs, self._journals)
        self.commits = JournaledCommitLog(self._slots, self.journals)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = Mailbox(self.blobs)

    def __repr__(self) -> str:
        return "MemoryHardState()"
