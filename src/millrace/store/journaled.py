"""Commit logs that look into journals, and then into segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from millrace.store.blobs import Blobs
from millrace.store.commit import Commit
from millrace.store.epoch_log import EpochLog
from millrace.store.journal import Journals
from millrace.store.log import CommitLog, HardState
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots


class JournaledCommitLog:
    """A commit log that has the commits in sealed journals, too.

    Args:
        segments: All other commits. They are asked for what is in no journal.
        journals: The journals.
    """

    def __init__(self, segments: CommitLog, journals: Journals) -> None:
        self._segments = segments
        self._journals = journals
        # Computation -> what was in segments when it was listed last.
        self._listed: dict[str, Mapping[int, Sequence[int]]] = {}
        self.of_task = segments.of_task
        self.of_part = segments.of_part
        self.damaged = segments.damaged
        self.thin = segments.thin

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`."""
        found = self._journals.index.read(computation, interval, number)
        if found is None:
            return self._segments.read(computation, interval, number)
        return found

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`."""
        return self._journals.index.exists(computation, interval, number) or self._segments.exists(
            computation, interval, number
        )

    def numbers(self, computation: str) -> Mapping[int, Sequence[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`."""
        segments = self._listed[computation] = self._segments.numbers(computation)
        journals = self._journals.index.numbers(computation)
        if not journals:
            return segments
        return {
            interval: _together(segments.get(interval, ()), chain(*journals.get(interval, ())))
            for interval in sorted({*segments, *journals})
        }

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """See :meth:`millrace.store.CommitLog.remove`.

        A commit that was moved from a journal is in both; who removes it has listed it.
        """
        journaled = self._journals.index.numbers_of(computation, interval)
        listed = {*self._listed.get(computation, {}).get(interval, ())}
        return self._segments.remove(
            computation,
            interval,
            (
                number
                for number in numbers
                if number in listed or not any(number in some for some in journaled)
            ),
        )


def _together(segments: Sequence[int], journaled: Iterable[int]) -> list[int]:
    """Return the numbers of an interval's commits, ascending.

    A part of a journal may stay for another interval's sake. So where a number is missing, what
    journals have before it was collected in part, and nobody needs it.
    """
    found = sorted({*segments, *journaled})
    gaps = [after for before, after in pairwise(found) if after > before + 1]
    if not gaps:
        return found
    return [number for number in found if number >= gaps[-1] or number in segments]


@dataclass(frozen=True)
class Looked:
    """Hard state with the commits of a session under way; to be read.

    Attributes:
        blobs: As they are.
        commits: Those that are in journals, sealed or not, among them.
        snapshots: As they are.
        epochs: As they are.
        journals: Those that are sealed.
        mailbox: As it is.
        uuid: Of the checkpoint.
    """

    blobs: Blobs
    commits: CommitLog
    snapshots: Snapshots
    epochs: EpochLog
    journals: Journals
    mailbox: Mailbox
    uuid: str


def looked_at(state: HardState) -> HardState:
    """Return hard state as it is now, for who takes no part in the run.

    >>> from millrace.store import MemoryHardState
    >>> state = MemoryHardState()
    >>> _ = state.journals.seal(1)
    >>> state.journals.create(1, 1, 0, 1).append([Commit("count", 0, 1, 1, 1, [])])
    >>> state.commits.exists("count", 0, 1), looked_at(state).commits.exists("count", 0, 1)
    (False, True)
    """
    journals = state.journals
    if not journals.last():
        return state
    commits = JournaledCommitLog(state.commits, journals.under_way())
    return Looked(
        state.blobs, commits, state.snapshots, state.epochs, journals, state.mailbox, state.uuid
    )
