"""MemoryHardState: hard state in dictionaries, for the Harness and for simulations."""

from __future__ import annotations

from millrace.store.commit_log import CommitLog
from millrace.store.epoch_log import EpochLog
from millrace.store.incarnations import Incarnations
from millrace.store.mailbox import Mailbox
from millrace.store.memory_blobs import MemoryBlobs
from millrace.store.snapshots import Snapshots


class MemoryHardState:
    """Hard state that lives as long as the object; a crash is simulated by dropping all the rest.

    Args:
        uuid: As it would be in ``FORMAT``; a constant, so that simulations repeat.

    >>> from millrace.store import Commit
    >>> state = MemoryHardState()
    >>> commit = Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")])
    >>> [state.commits.of_task("count", epoch=1, task=0).put([commit]) for _ in range(2)]
    [True, False]
    >>> state.commits.read("count", 0, 1) == commit
    True
    """

    def __init__(self, *, uuid: str = "memory") -> None:
        self.uuid = uuid
        self.blobs = MemoryBlobs()
        self._open()

    def copy(self) -> MemoryHardState:
        """Return a copy that what is written to either one later leaves alone."""
        copied = MemoryHardState(uuid=self.uuid)
        copied.blobs = self.blobs.copy()
        copied._open()
        return copied

    def _open(self) -> None:
        self.incarnations = Incarnations(self.blobs)
        self.commits = CommitLog(self.blobs, self.incarnations)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = Mailbox(self.blobs)

    def __repr__(self) -> str:
        return "MemoryHardState()"
