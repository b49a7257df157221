"""Replay: what an attempt makes of a commit that an earlier attempt has made.

Source: MillWheel 6.1.2 (strong productions are checkpointed before they are delivered) and 6.1.3
(weak productions are not; user code makes them again).
"""

from __future__ import annotations

from millrace.model.errors import ZombieWriter
from millrace.store import Commit, CommitLog
from millrace.windmill.bundle import Attempt
from millrace.windmill.results import Produced, footing_of, result_of
from millrace.windmill.router import RowsBuilder


def holds_productions(log: CommitLog, commit: Commit, attempt: Attempt) -> bool:
    """Return whether a commit can be replayed from what is in it.

    Raises:
        ZombieWriter: Its productions would have to be made again, and its epoch is over: the cache
            is not rebuilt for an attempt that was left behind.
    """
    if not footing_of(commit).weak:
        return True
    following = commit.number + 1
    if log.exists(commit.computation, commit.interval, following):
        raise ZombieWriter(
            f"zombie writer: epoch {attempt.epoch} (generation {attempt.generation}) wants "
            f"the weak productions of commit {commit.number} of {commit.computation!r}, "
            f"interval {commit.interval}, but commit {following} has been made since, so that "
            "epoch is over. This attempt was left behind, and must stop. Nothing was lost."
        )
    return False


def replay(commit: Commit, weak: RowsBuilder) -> Produced:
    """Return what an earlier attempt committed.

    Args:
        commit: The earlier attempt's.
        weak: What this attempt made; sent on if the commit holds no productions.
    """
    footing = footing_of(commit)
    productions = weak if footing.weak else RowsBuilder.unpack(commit.productions)
    return result_of(commit, footing, replayed=True), productions
