"""bring: a cache from wherever it is to a given commit, by the log.

Source: MillWheel, section 6.2 "State Manipulation": hard state is maintained with care so that soft
state, the caches and aggregates of a worker, may vanish at any time.
"""

from __future__ import annotations

import dataclasses

from millrace.model.errors import DamagedStore
from millrace.store.cache import Cache
from millrace.store.commit import payload_bytes
from millrace.store.log import CommitLog


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What it took to bring a cache to a commit; all zero in the usual case, when it was there.

    Args:
        deltas_applied: Commits read from the log and applied.
        rebuilt: The cache had nothing usable (or had run ahead) and was made from the first commit.
        bytes_read: Rows, values, productions and reports in those commits.
    """

    deltas_applied: int = 0
    rebuilt: bool = False
    bytes_read: int = 0


_NOTHING = Repair()


def bring(
    cache: Cache,
    log: CommitLog,
    computation: str,
    interval: int,
    number: int,
    *,
    allow_ahead: int = 0,
) -> Repair:
    """Bring ``cache`` to commit ``number``, and return what that took.

    At ``number``: nothing. Behind: the missing commits are applied in order. Ahead: cleared, and
    built again from the first commit, as when it was empty.

    Another process may move the cache right after; read through ``cache.view(at=number)``.

    Args:
        cache: The cache of ``(computation, interval)``.
        log: Where its commits are.
        computation: Name of the computation.
        interval: Id of the key interval.
        number: The last commit of the interval, from the epoch's manifest; 0 for none.
        allow_ahead: How many commits further the cache may be and be left there. 1 in a retry,
            where the commit of the open epoch may have been applied by an earlier attempt.

    Raises:
        DamagedStore: a commit up to ``number`` is not in the log, or damaged.
        StoreError: the cache cannot be written, or another process cleared it meanwhile.

    >>> from millrace.store import Commit, MemoryCache, MemoryHardState
    >>> log = MemoryHardState().commits
    >>> log.append([Commit("count", 0, n, 1, 1, [(b"Sk", b"%d" % n)]) for n in (1, 2)])
    [True, True]
    >>> bring(MemoryCache("count", 0), log, "count", 0, 2)
    Repair(deltas_applied=2, rebuilt=True, bytes_read=6)
    """
    position = cache.position
    if number <= position <= number + allow_ahead:
        return _NOTHING
    if position > number:
        cache.clear()
        position = 0
    rebuilt = position == 0
    bytes_read = 0
    for wanted in range(position + 1, number + 1):
        commit = log.read(computation, interval, wanted)
        if commit is None:
            raise _missing(log, computation, interval, wanted, number)
        cache.apply(commit)
        bytes_read += payload_bytes(commit)
    return Repair(number - position, rebuilt, bytes_read)


def _missing(
    log: CommitLog, computation: str, interval: int, wanted: int, number: int
) -> DamagedStore:
    before = log.read(computation, interval, wanted - 1) if wanted > 1 else None
    epoch = f"after epoch {before.epoch}" if before else "the first one of the interval"
    return DamagedStore(
        f"commit {wanted} of interval {interval} of computation {computation!r} ({epoch}) is not "
        f"in the log, though the manifest names commit {number}. State, timers and productions of "
        f"the interval from that commit on are lost. Restore the checkpoint from a copy."
    )
