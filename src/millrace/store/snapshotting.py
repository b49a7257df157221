"""When a snapshot of a key interval is due, and writing it from a view of its cache.

A snapshot is worth its price when the commits since the last one cost as much to read again: then
log and snapshots together are read at most twice, are never more than a small multiple of the
state, and an interval that did not change much is left alone. That is also how snapshots are
incremental: by interval, of which a computation has many.

Source: docs/architecture.md, "Snapshots and collection".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from millrace.store.cache import Cache
from millrace.store.snapshots import Rows, SnapshotHead, Snapshots, encode_snapshot

#: What each mark costs that passes while an interval's commits keep parts of journals, in bytes.
_MARK_BYTES = 32 << 10


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """When a snapshot is due: when reading the commits since the last one costs as much.

    A commit costs its bytes and 64 KiB, or in a journal its bytes alone, see
    :func:`~millrace.store.replay_cost`; a snapshot costs the bytes of the state, and
    ``fixed_bytes``. So a small interval has one every 64 commits, one of a gigabyte when a gigabyte
    was committed, or 16,000 small commits.

    Where commits are in journals, an interval that is seldom met never comes to so many bytes, and
    keeps what lies beside its commits. So each mark that passes costs 32 KiB: a small interval has
    a snapshot at the latest 128 marks after a commit, one of a gigabyte after 32,000.

    Args:
        fixed_bytes: What a snapshot costs however small it is.

    >>> from millrace.store import Commit, MemoryCache
    >>> cache = MemoryCache("count", 0)
    >>> due = []
    >>> for number in range(1, 66):
    ...     cache.apply(Commit("count", 0, number, 1, 1, [(b"Sk", b"%d" % number)]))
    ...     due.append(SnapshotPolicy().due(cache))
    >>> due.index(True) + 1
    64
    """

    fixed_bytes: int = 4 << 20

    def due(self, cache: Cache, marks: int = 0) -> bool:
        """Return whether the rows of ``cache`` should be written.

        Args:
            cache: Of the interval.
            marks: How many have passed since the first commit that no snapshot covers.
        """
        debt = cache.standing.debt
        if debt:
            debt += marks * _MARK_BYTES
        return debt >= self.fixed_bytes and debt >= self.fixed_bytes + cache.size_bytes


class Written(msgspec.Struct, array_like=True):
    """What became of snapshots.

    Attributes:
        snapshots: How many were written.
        bytes: Their size.
        failed: How many could not be; each was logged, and is tried again.
    """

    snapshots: int = 0
    bytes: int = 0
    failed: int = 0

    def add(self, other: Written) -> None:
        """Add another's counts to these."""
        self.snapshots += other.snapshots
        self.bytes += other.bytes
        self.failed += other.failed


def _no_pause() -> None:
    return None


def write_if_due(
    cache: Cache,
    snapshots: Snapshots,
    computation: str,
    interval: int,
    policy: SnapshotPolicy,
    pause: Callable[[], None] = _no_pause,
    marks: int = 0,
) -> Written:
    """Write a snapshot of the cache as it is now if one is due, and return what was written.

    Commits may be applied meanwhile: the view does not show them, and they stay owed.

    Args:
        cache: Of the interval, holding durable commits only.
        snapshots: Where to.
        computation: Name of the computation.
        interval: Id of the key interval.
        policy: When one is due.
        pause: Called before each megabyte or so, to leave the processor to the tasks.
        marks: See :meth:`SnapshotPolicy.due`.

    Raises:
        DamagedCache: What the cache holds is not what was written, so there is no snapshot of it.
        CheckpointUnwritable: There is none, for another reason.

    >>> from millrace.store import Commit, MemoryCache, MemoryHardState
    >>> cache, state = MemoryCache("count", 0), MemoryHardState()
    >>> cache.apply(Commit("count", 0, 1, 1, 1, [(b"Sk", b"1")]))
    >>> always = SnapshotPolicy(fixed_bytes=0)
    >>> write_if_due(cache, state.snapshots, "count", 0, always).snapshots
    1
    >>> write_if_due(cache, state.snapshots, "count", 0, always).snapshots
    0
    """
    written = Written()
    if not policy.due(cache, marks):
        return written
    with cache.view() as view:
        standing = view.standing
        if not standing.position:
            return written
        head = SnapshotHead(computation, interval, standing.position, standing.chain)
        pieces = _counted(encode_snapshot(head, _paced(view.everything(), pause)), written)
        if snapshots.put(computation, interval, standing.position, pieces):
            written.snapshots = 1
    cache.settle(standing.debt)
    return written


def _paced(parts: Iterator[Rows], pause: Callable[[], None]) -> Iterator[Rows]:
    for part in parts:
        pause()
        yield part


def _counted(pieces: Iterator[bytes], written: Written) -> Iterator[bytes]:
    for piece in pieces:
        written.bytes += len(piece)
        yield piece
