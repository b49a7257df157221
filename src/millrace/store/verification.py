"""Verification: read everything that a checkpoint holds of an interval, and say what is damaged.

It reads every byte and checks every checksum and every chain, writes nothing, and goes on after a
finding. What is damaged is not lost as long as another way leads to the last commit: a snapshot
that is whole, and all commits after it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millrace.model.errors import StoreError
from millrace.store.commit import Commit, chain_of
from millrace.store.commit_log import CommitLog
from millrace.store.epoch_log import EpochLog
from millrace.store.hard_state import HardState
from millrace.store.incarnations import Incarnations
from millrace.store.snapshots import decode_snapshot


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it was written.

    Args:
        what: The entry, commit, snapshot, or interval.
        problem: What is wrong with it.
        lost: Whether something cannot be recovered from what is left.
    """

    what: str
    problem: str
    lost: bool = False


class Verified(msgspec.Struct):
    """What was read, and what was found.

    Attributes:
        entries: Of the epoch log.
        commits: Commits.
        snapshots: Snapshots.
        segments: Segments of incarnations.
        letters: Messages with dead letters that are sent again.
        findings: What is damaged or lost.
    """

    entries: int = 0
    commits: int = 0
    snapshots: int = 0
    segments: int = 0
    letters: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)


def verify_epochs(log: EpochLog, check: Callable[[bytes], object], verified: Verified) -> None:
    """Read the epoch log from its first entry without a gap to its last.

    Args:
        log: The log.
        check: Decodes an entry, and raises ValueError when it cannot.
        verified: Where to count, and to add findings.
    """
    for number in range(max(1, log.first()), log.last() + 1):
        verified.entries += 1
        try:
            data = log.read(number)
            if data is None:
                raise StoreError("it has gone")
            check(data)
        except (StoreError, ValueError) as error:
            # A start reads from the last entry back, and not past one that it cannot read.
            verified.findings.append(Finding(f"epoch log entry {number}", str(error), lost=True))


def verify_incarnations(incarnations: Incarnations, verified: Verified) -> None:
    """Read the grown segments that a run would read, those of one under way among them.

    Args:
        incarnations: Of the checkpoint.
        verified: Where to count, and to add findings.
    """
    try:
        now = incarnations.under_way()
        for name in now.names():
            verified.segments += 1
            for _ in now.groups(name):
                pass
    except StoreError as error:
        # A run reads all of them, or none.
        verified.findings.append(Finding("the grown segments", str(error), lost=True))


def verify_segments(log: CommitLog, computation: str, title: str, verified: Verified) -> None:
    """Tell which segments cannot be opened. What is in them, others may make up for.

    Args:
        log: The commit log.
        computation: Name of the computation in it.
        title: Its present name, for findings.
        verified: Where to add findings.
    """
    for problem in log.damaged(computation):
        verified.findings.append(Finding(f"commits of computation {title!r}", problem))


def verify_interval(
    state: HardState,
    computation: str,
    title: str,
    interval: int,
    number: int,
    chain: int,
    verified: Verified,
) -> None:
    """Read the commits and snapshots of an interval.

    Args:
        state: The checkpoint.
        computation: Name of the computation's logs and snapshots.
        title: Its present name, for findings.
        interval: Id of the key interval.
        number: Its last commit, as the last completion has it; 0 for none.
        chain: That commit's.
        verified: Where to count, and to add findings.
    """
    name = (computation, interval)
    where = f"of interval {interval} of computation {title!r}"
    commits: dict[int, Commit] = {}
    for at in state.commits.numbers(computation).get(interval, ()):
        verified.commits += 1
        try:
            commit = state.commits.read(*name, at)
            if commit is None:
                continue  # collected since it was listed
            if commit.chain != chain_of(commit.previous, commit.mutations):
                raise StoreError("its chain is not that of its mutations")
            # Only what ties it to its neighbours is kept.
            commits[at] = msgspec.structs.replace(commit, mutations=[], productions=b"")
        except StoreError as error:
            verified.findings.append(Finding(f"commit {at} {where}", str(error)))
    chains = {0: 0}
    for at in state.snapshots.numbers(computation).get(interval, ()):
        verified.snapshots += 1
        try:
            chains[at] = _read_snapshot(state, computation, interval, at)
        except StoreError as error:
            verified.findings.append(Finding(f"snapshot {at} {where}", str(error)))
    problems = [
        problem
        for start in sorted((at for at in chains if at <= number), reverse=True)
        if (problem := _gap(commits, start, chains[start], number, chain)) is not None
    ]
    if len(problems) == sum(at <= number for at in chains):
        verified.findings.append(
            Finding(f"commit {number} {where}", f"no way leads to it: {problems[0]}", lost=True)
        )


def _read_snapshot(state: HardState, computation: str, interval: int, number: int) -> int:
    """Read all of a snapshot and return its chain."""
    pieces = state.snapshots.read(computation, interval, number)
    if pieces is None:
        raise StoreError("it has gone")
    head, parts = decode_snapshot(pieces, str(number))
    for _ in parts:
        pass
    if (head.computation, head.interval, head.number) != (computation, interval, number):
        raise StoreError(f"it is in fact {head}")
    return head.chain


def _gap(commits: dict[int, Commit], start: int, chain: int, number: int, last: int) -> str | None:
    """Return what is in the way from a snapshot to a commit, None if nothing is."""
    for at in range(start + 1, number + 1):
        commit = commits.get(at)
        if commit is None:
            return f"commit {at} is missing or damaged"
        if commit.previous != chain:
            return f"commit {at} does not follow from what is before it"
        chain = commit.chain
    return None if chain == last else f"commit {number} is not the one that its completion names"
