"""Crash points: hard state that stops its process at a chosen durable write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.store import (
    Blobs,
    Commit,
    CommitIndex,
    CommitLog,
    EpochLog,
    HardState,
    Journal,
    JournaledCommitLog,
    JournalName,
    Journals,
    Sealing,
    SegmentLog,
    Snapshots,
)


class Crash(BaseException):
    """The simulated death of the process. Not an Exception: nothing may catch and survive it."""


class CrashingState:
    """Hard state whose process dies right before its n-th durable write from now.

    Args:
        state: The state that survives.
        writes: How many writes still succeed; None never crashes.
    """

    def __init__(self, state: HardState, writes: int | None = None) -> None:
        self.writes = writes
        self.blobs: Blobs = _Blobs(state.blobs, self)
        self.journals: Journals = _Journals(state.journals, self)
        self.commits: CommitLog = JournaledCommitLog(SegmentLog(self.blobs), self.journals)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = state.mailbox
        self.uuid = state.uuid

    def step(self) -> None:
        """Count one write, or crash instead of it."""
        if self.writes is None:
            return
        if self.writes == 0:
            raise Crash
        self.writes -= 1


class _Blobs:
    """Blobs that are put and removed one at a time, so that a crash can fall between any two."""

    def __init__(self, blobs: Blobs, owner: CrashingState) -> None:
        self._blobs = blobs
        self._owner = owner
        self.where = blobs.where
        self.far = blobs.far
        self.turns = blobs.turns
        self.read = blobs.read
        self.read_range = blobs.read_range
        self.stream = blobs.stream
        self.exists = blobs.exists
        self.names = blobs.names
        self.sizes = blobs.sizes
        self.map = blobs.map

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._owner.step()
        return self._blobs.put_if_absent(name, data)

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        self._owner.step()
        return self._blobs.put_pieces(name, pieces)

    def replace(self, name: str, data: bytes) -> None:
        self._owner.step()
        self._blobs.replace(name, data)

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        for name in names:
            self._owner.step()
            self._blobs.remove([name], durable=durable)


class _Journals:
    def __init__(self, journals: Journals, owner: CrashingState) -> None:
        self._journals = journals
        self._owner = owner
        self.far = journals.far
        self.last = journals.last
        self.superseded = journals.superseded
        self.groups = journals.groups
        self.names = journals.names
        self.covered = journals.covered
        self.under_way = journals.under_way
        self.finished = journals.finished

    @property
    def index(self) -> CommitIndex:
        return self._journals.index

    def seal(self, session: int) -> Sealing | None:
        self._owner.step()
        return self._journals.seal(session)

    def create(self, session: int, level: int, task: int, part: int) -> Journal:
        self._owner.step()
        return _Journal(self._journals.create(session, level, task, part), self._owner)

    def remove(self, names: Iterable[JournalName]) -> None:
        """Remove each journal on its own, so that a crash can fall between two."""
        for name in names:
            self._owner.step()
            self._journals.remove([name])


class _Journal:
    def __init__(self, journal: Journal, owner: CrashingState) -> None:
        self._journal = journal
        self._owner = owner
        self.name = journal.name
        self.close = journal.close

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        self._owner.step()
        self._journal.append(commits, note)
