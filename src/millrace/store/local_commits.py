"""LocalCommitLog: the commit logs of a checkpoint in a directory.

All the commits of one ``append`` share one segment file, which is linked under the slot of each:
one fsync of data for many intervals, and put-if-absent for every one of them on its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from millrace.store.commit import Commit, identities
from millrace.store.disk import Disk, exists, same_file
from millrace.store.durable import make_directory, put_if_absent, remove, sync_directory, translated
from millrace.store.names import file_name, slot_name, slot_numbers
from millrace.store.segment import encode_segment, read_commit
from millrace.store.task_commits import SlotCommits, TaskCommits


class _Slots:
    """The names ``<computation>/<interval>-<number>`` under one folder.

    Args:
        folder: Of the checkpoint's commits.
        disk: What it is on.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._of: dict[str, str] = {}

    def folder(self, computation: str) -> str:
        """Return the folder of a computation, which may not be there yet."""
        found = self._of.get(computation)
        if found is None:
            found = self._of[computation] = str(self._folder / file_name(computation))
        return found

    def path(self, computation: str, interval: int, number: int) -> str:
        """Return the name of a slot."""
        return f"{self.folder(computation)}/{slot_name(interval, number)}"

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """Return interval -> numbers of the slots in a computation's folder, ascending."""
        folder = self.folder(computation)
        with translated(folder):
            try:
                names = self._disk.listdir(folder)
            except FileNotFoundError:
                return {}
        return slot_numbers(names)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """Remove slots, in the order given; one that has gone is passed over."""
        paths = [self.path(computation, interval, number) for number in numbers]
        remove(paths, self._disk)
        return len(paths)


# The links a file may have: 1,023 on NTFS, 65,000 on ext4, more elsewhere. A larger append is
# written as several segments.
_SEGMENT_COMMITS_MAX = 1000


class LocalCommitLog:
    """The commit logs of a :class:`LocalHardState`."""

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = _Slots(path / "commits", disk)
        self._scratch = path / "tmp"
        self._disk = disk
        self._known: set[str] = set()

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """See :meth:`millrace.store.CommitLog.append`.

        Cost: one fsync of data for each 1,000 commits, and one fsync a computation.
        """
        slots = [self._slots.path(*name) for name in identities(commits)]
        for computation in {commit.computation for commit in commits} - self._known:
            make_directory(self._slots.folder(computation), self._disk)
            self._known.add(computation)
        won: list[bool] = []
        for start in range(0, len(commits), _SEGMENT_COMMITS_MAX):
            part = slice(start, start + _SEGMENT_COMMITS_MAX)
            won += put_if_absent(
                encode_segment(commits[part], sharing=True),
                slots[part],
                scratch=self._scratch,
                disk=self._disk,
            )
        return won

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """See :meth:`millrace.store.CommitLog.of_task`."""
        return SlotCommits(self, computation)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`."""
        slot = self._slots.path(computation, interval, number)
        try:
            commit = read_commit(slot, computation, interval, number, disk=self._disk)
        except FileNotFoundError:
            return None
        self._settle(computation, interval, number)
        return commit

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`."""
        slot = self._slots.path(computation, interval, number)
        with translated(slot):
            if not exists(slot, self._disk):
                return False
        self._settle(computation, interval, number)
        return True

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`."""
        return self._slots.numbers(computation)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """See :meth:`millrace.store.CommitLog.remove`."""
        return self._slots.remove(computation, interval, numbers)

    def thin(self, computation: str, kept: int) -> int:
        """See :meth:`millrace.store.CommitLog.thin`: a name that is removed frees its room."""
        return 0

    def _settle(self, computation: str, interval: int, number: int) -> None:
        """Make a name that was found durable before anybody acts on it.

        Its writer may have been killed between ``link`` and fsync; a power cut would then take back
        a commit whose productions have been sent on. A commit that another append has built on
        was durable before: only the head of a log costs an fsync (on a busy disk, milliseconds),
        a repair of a thousand commits costs one.
        """
        slot, following = (self._slots.path(computation, interval, number + n) for n in (0, 1))
        with translated(slot):
            try:
                if not same_file(slot, following, self._disk):
                    return
            except FileNotFoundError:
                pass
            sync_directory(self._slots.folder(computation), self._disk)
