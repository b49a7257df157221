"""What a session takes up: the commits since the last mark, by task, and whether all are there.

What a deeper level has consumed was durable before it left. So a commit that somebody consumed, and
that no journal has, was lost: its journal was cut, removed or altered. Its sender would do its work
again, perhaps in other portions, under numbers that count as consumed, and rows would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from millrace.model.errors import DamagedStore
from millrace.store import Commit, JournalName, Journals
from millrace.watermark.intervals import IntervalMap
from millrace.windmill import rows
from millrace.windmill.channels import WEAK_PART
from millrace.windmill.positions import Positions
from millrace.windmill.results import Produced, footing_of, result_of
from millrace.windmill.router import RowsBuilder


def commits_again(
    journals: Journals, level: int, task: int, positions: Positions
) -> Iterator[Produced]:
    """Yield what came of each commit that a task's journals have after its positions, in order.

    Who takes one moves the positions to it before the next.

    Args:
        journals: Of the checkpoint; those of older sessions are sealed.
        level: The task's level.
        task: Its number.
        positions: Where its intervals stand.

    Raises:
        DamagedStore: A commit is missing.
    """
    for name in journals.names():
        if name.level != level or name.task != task:
            continue
        for commit in _commits(journals, name):
            if _follows(commit, name, positions.numbers, positions.maps):
                productions = RowsBuilder.unpack(commit.productions)
                yield result_of(commit, footing_of(commit)), productions


def check_consumed(
    journals: Iterable[Journals],
    numbers: Mapping[str, Mapping[int, int]],
    maps: Mapping[str, IntervalMap],
    names: Mapping[int, str],
) -> None:
    """Check that journals have every commit of which a deeper level has consumed something.

    Cost: reading the journals, which their tasks read, too.

    Args:
        journals: Those of the checkpoint that are sealed; then those of a session under way.
        numbers: Computation -> interval id -> its last commit that the last complete mark has.
        maps: Computation -> its key intervals; of one without, all are there.
        names: Number of a computation -> its name.

    Raises:
        DamagedStore: A commit is missing, or a journal cannot be read.
    """
    there = {name: dict(of) for name, of in numbers.items()}
    consumed: dict[tuple[str, int], tuple[int, Commit, JournalName]] = {}
    for name, commit in _all_commits(journals):
        if not _follows(commit, name, there, maps):
            continue
        there[commit.computation][commit.interval] = commit.number
        for row, value in commit.mutations:
            if row[:1] != rows.CHANNELS or value is None:
                continue
            channel = rows.ChannelRow.unpack(row, value)
            sender = names.get(channel.who)
            if sender is None or channel.part & WEAK_PART:
                continue
            known = consumed.get((sender, channel.part))
            if known is None or known[0] < channel.origin:
                consumed[sender, channel.part] = channel.origin, commit, name
    for (sender, interval), (number, commit, name) in consumed.items():
        intervals = maps.get(sender)
        if intervals is not None and interval not in intervals.places:
            continue  # it was split or merged away since
        last = there.get(sender, {}).get(interval, 0)
        if number > last:
            raise DamagedStore(
                f"commit {number} of interval {interval} of computation {sender!r} is missing: "
                f"its journal ends with {last}, and commit {commit.number} of interval "
                f"{commit.interval} of {commit.computation!r}, in journal {name}, has consumed "
                f"what came of {number}. A journal of an earlier level was cut, removed or "
                f"altered. Restore the checkpoint from a copy."
            )


def _follows(
    commit: Commit,
    name: JournalName,
    numbers: Mapping[str, Mapping[int, int]],
    maps: Mapping[str, IntervalMap],
) -> bool:
    """Return whether a commit is the next of its interval; False for one that does not count."""
    known = numbers.get(commit.computation)
    if known is None or commit.number <= known.get(commit.interval, 0):
        return False
    intervals = maps.get(commit.computation)
    if intervals is not None and commit.interval not in intervals.places:
        return False  # it was split or merged away since
    expected = known.get(commit.interval, 0) + 1
    if commit.number != expected:
        raise DamagedStore(
            f"commit {expected} of interval {commit.interval} of computation "
            f"{commit.computation!r} is missing: journal {name} goes on with {commit.number}. A "
            f"journal before it was cut, removed or altered. Restore the checkpoint from a copy."
        )
    return True


def _all_commits(journals: Iterable[Journals]) -> Iterator[tuple[JournalName, Commit]]:
    for some in journals:
        for name in some.names():
            for commit in _commits(some, name):
                yield name, commit


def _commits(journals: Journals, name: JournalName) -> Iterator[Commit]:
    """Yield a journal's commits; fewer if it is collected meanwhile, and so behind the mark."""
    try:
        for group in journals.groups(name):
            yield from group.commits
    except DamagedStore:
        if name in journals.names():
            raise
