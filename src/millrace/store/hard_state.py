"""What hard state is: for each key interval a commit log and snapshots, and one epoch log.

All are put-if-absent at a name that all attempts know: MillWheel's sequencer (section 6.2 "State
Manipulation"), see :mod:`millrace.store.blobs`.

Objects that are not needed any more are removed (:mod:`millrace.store.collection`), always from the
lowest number up. The name of a collected object is free, like one that was never taken. So a writer
checks after its put that the name was not collected: the epoch log does so itself, and workers do
for commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millrace.store.blobs import Blobs
from millrace.store.commit_log import CommitLog
from millrace.store.epoch_log import EpochLog
from millrace.store.incarnations import Incarnations
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots


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
    def incarnations(self) -> Incarnations:
        """Those of the real-time plane; commits in what they grew are found in ``commits``."""
        ...

    @property
    def mailbox(self) -> Mailbox:
        """Messages beside the logs."""
        ...

    @property
    def uuid(self) -> str:
        """Made when the location was; caches carry it, so that one is never used for another."""
        ...


@dataclass(frozen=True)
class _Observed:
    """Hard state with the commits of an incarnation under way; to be read."""

    blobs: Blobs
    commits: CommitLog
    snapshots: Snapshots
    epochs: EpochLog
    incarnations: Incarnations
    mailbox: Mailbox
    uuid: str


def looked_at(state: HardState) -> HardState:
    """Return hard state as it is now, for who takes no part in the run.

    >>> from millrace.store import Commit, MemoryHardState
    >>> state = MemoryHardState()
    >>> _ = state.incarnations.seal(1)
    >>> state.incarnations.grow(1, 1, 0, 1).append([Commit("count", 0, 1, 1, 1, [])])
    >>> state.commits.exists("count", 0, 1), looked_at(state).commits.exists("count", 0, 1)
    (False, True)
    """
    if not state.incarnations.last():
        return state
    now = state.incarnations.under_way()
    return _Observed(
        state.blobs,
        CommitLog(state.blobs, now),
        state.snapshots,
        state.epochs,
        state.incarnations,
        state.mailbox,
        state.uuid,
    )
