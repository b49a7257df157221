"""Moving: the few commits that keep an old part of a journal go to a segment, and the part goes.

A part holds what all intervals of a task committed between two marks. Snapshots cover what is
committed often within some parts; one commit of an interval that is seldom met would keep all that
is beside it for as long as the interval is left alone. So of a task with many finished parts, the
old ones are read, and where few of a part's commits are left, those of each computation are put as
one segment. Where many are, the part is no waste, and is looked at again when it is twice as old.

Nothing else changes by it: a commit log finds a commit in either, and a crash in between leaves it
in both. The part is in the segment's name, as two sessions may have parts of one epoch and task.

Source: docs/design/2026-11-22-where-a-journal-ends.md; Rosenblum and Ousterhout, "The design and
implementation of a log-structured file system" (cleaning by how much of a segment is alive).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from millrace.model.errors import DamagedStore
from millrace.store.commit import Commit
from millrace.store.journal import JournalName
from millrace.store.log import HardState

#: Finished parts of a task that are not looked at: what is hot is covered by then.
KEPT_PARTS = 64
#: What is old is put again if at the most one of so many of its commits is left.
LEFT = 8
#: A round ends after so many commits: the rest of the run waits for it.
_COMMITS_A_ROUND = 5_000

#: (computation, interval) -> the last commit that nobody needs.
Floors = Mapping[tuple[str, int], int]


class Mover:
    """Empties old parts of a checkpoint's journals. For one thread.

    Args:
        state: The checkpoint.
        kept_parts: How many finished parts of a task are left alone.
        left: A part is emptied if at the most one of so many of its commits is left.
    """

    def __init__(self, state: HardState, kept_parts: int = KEPT_PARTS, left: int = LEFT) -> None:
        self._state = state
        self._kept = kept_parts
        self._left = left
        # Part -> how many of its task's must have followed before it is looked at again.
        self._later: dict[JournalName, int] = {}

    def emptied(
        self, there: Collection[JournalName], floors: Floors
    ) -> Iterator[tuple[JournalName, int]]:
        """Yield parts whose commits, as far as they are needed, are in segments now; how many.

        Args:
            there: Finished parts that cannot be removed; their marks are complete, or they are
                sealed. So every commit in them exists, whoever has begun a session since.
            floors: What of them nobody needs.

        Raises:
            CheckpointUnwritable: A commit was not moved. It is, next time.
            DamagedStore: A part is damaged, or its segment has other commits.
        """
        self._later = {name: age for name, age in self._later.items() if name in there}
        moved = 0
        for name, commits in self._state.journals.finished(self._old(there)):
            left, count = list[Commit](), 0
            for commit in commits:
                count += 1
                if commit.number > floors.get((commit.computation, commit.interval), 0):
                    left.append(commit)
            if len(left) * self._left > count:
                self._later[name] *= 2
                continue
            self._put(name, left)
            yield name, len(left)
            moved += len(left)
            if moved >= _COMMITS_A_ROUND:
                return

    def _old(self, there: Collection[JournalName]) -> list[JournalName]:
        """Return the parts that are to be looked at now, oldest first."""
        tasks: dict[tuple[int, int], list[JournalName]] = defaultdict(list)
        for name in sorted(there, reverse=True):
            tasks[name.level, name.task].append(name)
        return sorted(
            name
            for names in tasks.values()
            for age, name in enumerate(names)
            if age >= self._later.setdefault(name, self._kept)
        )

    def _put(self, part: JournalName, commits: Sequence[Commit]) -> None:
        left: dict[str, list[Commit]] = defaultdict(list)
        for commit in commits:
            left[commit.computation].append(commit)
        for computation, some in left.items():
            epoch = max(commit.epoch for commit in some)
            segment = self._state.commits.of_part(computation, epoch, part)
            if not segment.put(some):
                # By a round that was cut off, if all is well.
                for commit in some:
                    _check_same(part, commit, segment.read(commit.interval, commit.number))


def _check_same(part: JournalName, commit: Commit, found: Commit | None) -> None:
    if found is None or found.chain != commit.chain:
        raise DamagedStore(
            f"commit {commit.number} of interval {commit.interval} of {commit.computation!r} is in "
            f"journal {part} with chain {commit.chain}, and the segment that was made of it has "
            f"{'none' if found is None else found.chain}: two histories. The journal stays. Was "
            "the checkpoint copied or restored while a run went on? Restore it as a whole from a "
            "copy that was made of a run that had stopped."
        )
