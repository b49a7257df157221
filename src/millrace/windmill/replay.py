"""Replay: what an attempt makes of a commit that an earlier attempt has made.

Source: MillWheel 6.1.2 (strong productions are checkpointed before they are delivered) and 6.1.3
(weak productions are not; user code makes them again).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from millrace.model.errors import ZombieWriter
from millrace.store import NOTHING, Commit, CommitLog, Repair
from millrace.watermark.report import Report
from millrace.windmill.bundle import Attempt
from millrace.windmill.counters import Counters
from millrace.windmill.load import NO_LOAD, Load
from millrace.windmill.manifest import Changes
from millrace.windmill.routing import Productions


class _Footing(msgspec.Struct, array_like=True):
    """What a commit carries besides state and productions, so that a replay reports the same.

    ``weak`` says that the productions are not in the commit. It stands in the commit, and is not
    taken from the pipeline, as that may have changed since.
    """

    report: Report
    counters: Counters
    weak: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Footing).decode


def footing(report: Report, counters: Counters, *, weak: bool) -> bytes:
    """Return what a commit carries besides state and productions."""
    return _encode(_Footing(report, counters, weak))


def footing_of(commit: Commit) -> tuple[Report, Counters]:
    """Return what a commit carries besides state and productions."""
    found = _decode(commit.report)
    return found.report, found.counters


@dataclass(slots=True)
class Result:
    """One interval after a bundle, or after an epoch without one.

    Attributes:
        computation: Its name.
        interval: The interval's id.
        number: Number of its last commit.
        report: What pins its low watermark.
        counters: What happened.
        productions: What leaves for consumers.
        replayed: Whether an earlier attempt had committed. Then no user code ran, or, where the
            commit holds no productions, only to make those again.
        chain: That commit's.
        repair: What it took to bring its cache to where the bundle begins.
        load: What it cost this attempt.
    """

    computation: str
    interval: int
    number: int
    report: Report
    counters: Counters
    productions: Productions
    replayed: bool = False
    chain: int = 0
    repair: Repair = NOTHING
    load: Load = NO_LOAD


def changes_of(results: Iterable[Result], since: int) -> Changes:
    """Return what results say of where intervals stand.

    Args:
        results: Of an epoch.
        since: See :class:`Changes`.
    """
    changed = Changes(since)
    for result in results:
        name, interval = result.computation, result.interval
        changed.reports.setdefault(name, {})[interval] = result.report
        if result.number:
            changed.numbers.setdefault(name, {})[interval] = result.number
            changed.chains.setdefault(name, {})[interval] = result.chain
    return changed


def holds_productions(log: CommitLog, commit: Commit, attempt: Attempt) -> bool:
    """Return whether a commit can be replayed from what is in it.

    Raises:
        ZombieWriter: The commit is another epoch's; or its productions would have to be made again,
            and its epoch is over: the cache is not rebuilt for an attempt that was left behind.
    """
    _refuse_zombie(commit, attempt)
    if not _decode(commit.report).weak:
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


def replay(commit: Commit, attempt: Attempt, weak: Productions) -> Result:
    """Return what an earlier attempt committed.

    Args:
        commit: The earlier attempt's.
        attempt: This one.
        weak: What this attempt made; sent on if the commit holds no productions.

    Raises:
        ZombieWriter: The commit is another epoch's.
    """
    _refuse_zombie(commit, attempt)
    found = _decode(commit.report)
    return Result(
        commit.computation,
        commit.interval,
        commit.number,
        found.report,
        found.counters,
        weak if found.weak else Productions.unpack(commit.productions),
        replayed=True,
        chain=commit.chain,
    )


def _refuse_zombie(commit: Commit, attempt: Attempt) -> None:
    """Raise ZombieWriter if a slot was taken by another epoch."""
    if commit.epoch != attempt.epoch:
        raise ZombieWriter(
            f"zombie writer: epoch {attempt.epoch} (generation {attempt.generation}) wants "
            f"to write commit {commit.number} of {commit.computation!r}, interval "
            f"{commit.interval}, but epoch {commit.epoch} (generation {commit.generation}) "
            "has written it. A newer run has taken this checkpoint over; this one must stop. "
            "Nothing was lost."
        )
