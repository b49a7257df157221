"""SnapshotWriter: when a snapshot of a key interval is due, and writing it beside the tasks.

A snapshot is worth its price when the commits since the last one cost as much to read again: then
log and snapshots together are read at most twice, are never more than a small multiple of the
state, and an interval that did not change much is left alone. That is also how snapshots are
incremental: by interval, of which a computation has many.

A snapshot is written from a view of its cache, by one thread in each worker process, one snapshot
at a time.

Source: docs/architecture.md, "Snapshots and collection".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from millrace.model.errors import StoreError
from millrace.store.cache import Cache, Caches
from millrace.store.cache_eviction import CacheLimit
from millrace.store.snapshots import Rows, SnapshotHead, Snapshots, encode_snapshot

#: What each mark costs that passes while an interval's commits keep grown segments, in bytes.
_MARK_BYTES = 32 << 10


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """When a snapshot is due: when reading the commits since the last one costs as much.

    A commit costs its bytes and 64 KiB, or in a grown segment its bytes alone, see
    :func:`~millrace.store.cache.replay_cost`; a snapshot costs the bytes of the state, and
    ``fixed_bytes``. So a small interval has one every 64 commits, one of a gigabyte when a gigabyte
    was committed, or 16,000 small commits.

    Where segments are grown, an interval that is seldom met never comes to so many bytes, and
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
        debt = cache.cache_position.debt
        if debt:
            debt += marks * _MARK_BYTES
        return debt >= self.fixed_bytes and debt >= self.fixed_bytes + cache.size_bytes


class SnapshotStats(msgspec.Struct, array_like=True):
    """What became of snapshots.

    Attributes:
        snapshots: How many were written.
        bytes: Their size.
        failed: How many could not be; each was logged, and is tried again.
    """

    snapshots: int = 0
    bytes: int = 0
    failed: int = 0

    def add(self, other: SnapshotStats) -> None:
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
) -> SnapshotStats:
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
    written = SnapshotStats()
    if not policy.due(cache, marks):
        return written
    with cache.view() as view:
        cache_position = view.cache_position
        if not cache_position.position:
            return written
        head = SnapshotHead(computation, interval, cache_position.position, cache_position.chain)
        pieces = _counted(encode_snapshot(head, _paced(view.everything(), pause)), written)
        if snapshots.put(computation, interval, cache_position.position, pieces):
            written.snapshots = 1
    cache.settle(cache_position.debt)
    return written


def _paced(parts: Iterator[Rows], pause: Callable[[], None]) -> Iterator[Rows]:
    for part in parts:
        pause()
        yield part


def _counted(pieces: Iterator[bytes], written: SnapshotStats) -> Iterator[bytes]:
    for piece in pieces:
        written.bytes += len(piece)
        yield piece


_log = logging.getLogger(__name__)

# Python runs one thread at a time, so a thread that never waits takes half of what the tasks have.
# This one sleeps as long as it works, up to this, so that a process that was stopped goes on.
_REST_SECONDS_MAX = 0.1

# Where segments are grown, an interval is looked at again every so many marks, though nothing
# may have come for it.
_LOOK_MARKS = 64


class SnapshotWriter:
    """Writes the snapshots that are due of the intervals it is told of.

    Its thread starts with the first interval and dies with the process, whenever that is: a
    snapshot is there or not, and one that is not is written next time. An error is logged and
    counted, and ends nothing.

    Args:
        caches: Of this process.
        snapshots: Where to.
        policy: When one is due.
        limit: Evicts caches that are too many, when nothing else is left to do: a snapshot that is
            due would be gone with its cache, and the commits to read again ever more.
    """

    def __init__(
        self,
        caches: Caches,
        snapshots: Snapshots,
        policy: SnapshotPolicy | None = None,
        limit: CacheLimit | None = None,
    ) -> None:
        self._caches = caches
        self._snapshots = snapshots
        self._policy = policy or SnapshotPolicy()
        self._limit = limit
        self._changed = threading.Condition()
        # Interval -> marks since its first commit that no snapshot covers, where they count.
        self._waiting: dict[tuple[str, int], int] = {}
        # Interval -> that mark; and the last one that has passed.
        self._since: dict[tuple[str, int], int] = {}
        self._mark = 0
        self._busy = False
        self._thread: threading.Thread | None = None
        self._written = SnapshotStats()

    def offer(self, computation: str, intervals: Iterable[int], mark: int | None = None) -> None:
        """Have the intervals looked at, which have had a commit. Returns at once.

        Args:
            computation: Name of the computation.
            intervals: Its intervals.
            mark: The mark that the commits came before, if they are in grown segments.
        """
        names = [(computation, interval) for interval in intervals]
        with self._changed:
            if mark is not None:
                for name in names:
                    self._since.setdefault(name, mark)
            self._look_at(dict.fromkeys(names, 0))

    def passed(self, mark: int) -> None:
        """Have those intervals looked at that have kept grown segments for long."""
        with self._changed:
            self._mark = max(self._mark, mark)
            ages = {name: mark - since for name, since in self._since.items()}
            old = {name: age for name, age in ages.items() if age and not age % _LOOK_MARKS}
            self._look_at(old)

    def _look_at(self, intervals: Mapping[tuple[str, int], int]) -> None:
        for name, marks in intervals.items():
            self._waiting[name] = max(marks, self._waiting.get(name, 0))
        if self._waiting and self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="millrace-snapshots", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def take(self) -> SnapshotStats:
        """Return what became of snapshots since this was called last."""
        with self._changed:
            written, self._written = self._written, SnapshotStats()
            return written

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is left to look at; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout)

    def _run(self) -> None:
        rest = _Rest()
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                name = next(iter(self._waiting))
                marks = self._waiting.pop(name)
                self._busy = True
            rest.begin()
            written = self._write(*name, rest, marks)
            if self._limit is not None and not self._waiting:
                written.add(self._evict(self._limit, rest))
            with self._changed:
                self._written.add(written)
                if written.snapshots and name in self._since:
                    # What has come since the snapshot has come since about now; if there is
                    # nothing, nothing is due when it is looked at again.
                    self._since[name] = self._mark

    def _evict(self, limit: CacheLimit, rest: _Rest) -> SnapshotStats:
        written = SnapshotStats()
        try:
            for computation, interval in limit.over():
                # Another process's, maybe, which has not come to it.
                written.add(self._write(computation, interval, rest, 0))
                limit.evict(computation, interval)
        except OSError as error:
            _log.warning("caches are over their limit, and stay so for now: %s", error)
        return written

    def _write(self, computation: str, interval: int, rest: _Rest, marks: int) -> SnapshotStats:
        try:
            cache = self._caches.open(computation, interval)
            with self._changed:  # who offers it meanwhile has committed before
                if not cache.cache_position.debt:
                    self._since.pop((computation, interval), None)
                    return SnapshotStats()
            return write_if_due(
                cache, self._snapshots, computation, interval, self._policy, rest, marks
            )
        except (StoreError, OSError) as error:
            _log.warning(
                "no snapshot of interval %d of computation %r, it is tried again after the next "
                "commit: %s", interval, computation, error,
            )  # fmt: skip
        except Exception:  # noqa: BLE001  a snapshot that fails may not end what it is beside
            _log.exception("no snapshot of interval %d of computation %r", interval, computation)
        return SnapshotStats(failed=1)


class _Rest:
    """Sleeps as long as the caller has worked since the last rest."""

    def begin(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        time.sleep(min(time.perf_counter() - self._since, _REST_SECONDS_MAX))
        self._since = time.perf_counter()
