"""What a level task takes up as its session begins: its own commits since the last mark."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.model.errors import DamagedStore, InvariantViolation
from millrace.store import Commit, JournalName, Journals
from millrace.windmill.positions import Positions
from millrace.windmill.replay import Result, footing_of
from millrace.windmill.routing import Productions


def commits_again(
    journals: Journals, level: int, task: int, positions: Positions
) -> Iterator[Result]:
    """Yield what came of each commit that a task's journals have after its positions, in order.

    Who takes one moves the positions to it before the next.

    Args:
        journals: Of the checkpoint; those of older sessions are sealed.
        level: The task's level.
        task: Its number.
        positions: Where its intervals stand.

    Raises:
        InvariantViolation: A commit is missing.
    """
    for name in journals.names():
        if name.level != level or name.task != task:
            continue
        for commit in _commits(journals, name):
            known = positions.numbers.get(commit.computation)
            if known is None or commit.number <= known.get(commit.interval, 0):
                continue
            intervals = positions.maps.get(commit.computation)
            if intervals is not None and commit.interval not in intervals.places:
                continue  # it was split or merged away since
            expected = known.get(commit.interval, 0) + 1
            if commit.number != expected:
                raise InvariantViolation(
                    f"level {level}, task {task}: commit {commit.number} of interval "
                    f"{commit.interval} of {commit.computation!r} is in the journal where "
                    f"{expected} was expected."
                )
            yield _result(commit)


def _commits(journals: Journals, name: JournalName) -> Iterator[Commit]:
    """Yield a journal's commits; fewer if it is collected meanwhile, and so behind the mark."""
    try:
        for group in journals.groups(name):
            yield from group.commits
    except DamagedStore:
        if name in journals.names():
            raise


def _result(commit: Commit) -> Result:
    report, counters = footing_of(commit)
    return Result(
        commit.computation,
        commit.interval,
        commit.number,
        report,
        counters,
        Productions.unpack(commit.productions),
        chain=commit.chain,
    )
