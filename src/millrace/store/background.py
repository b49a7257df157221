"""Snapshots written beside the tasks: one thread in each worker process, one snapshot at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping

from millrace.model.errors import StoreError
from millrace.store.cache import Caches
from millrace.store.cache_limit import CacheLimit
from millrace.store.snapshots import Snapshots
from millrace.store.snapshotting import SnapshotPolicy, Written, write_if_due

_log = logging.getLogger(__name__)

# Python runs one thread at a time, so a thread that never waits takes half of what the tasks have.
# This one sleeps as long as it works, up to this, so that a process that was stopped goes on.
_REST_SECONDS_MAX = 0.1

# An interval whose commits are in journals is looked at again every so many marks, though nothing
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
        self._written = Written()

    def offer(self, computation: str, intervals: Iterable[int], mark: int | None = None) -> None:
        """Have the intervals looked at, which have had a commit. Returns at once.

        Args:
            computation: Name of the computation.
            intervals: Its intervals.
            mark: The mark that the commits came before, if they are in journals.
        """
        names = [(computation, interval) for interval in intervals]
        with self._changed:
            if mark is not None:
                for name in names:
                    self._since.setdefault(name, mark)
            self._look_at(dict.fromkeys(names, 0))

    def passed(self, mark: int) -> None:
        """Have those intervals looked at that have kept parts of journals for long."""
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

    def take(self) -> Written:
        """Return what became of snapshots since this was called last."""
        with self._changed:
            written, self._written = self._written, Written()
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

    def _evict(self, limit: CacheLimit, rest: _Rest) -> Written:
        written = Written()
        try:
            for computation, interval in limit.over():
                # Another process's, maybe, which has not come to it.
                written.add(self._write(computation, interval, rest, 0))
                limit.evict(computation, interval)
        except OSError as error:
            _log.warning("caches are over their limit, and stay so for now: %s", error)
        return written

    def _write(self, computation: str, interval: int, rest: _Rest, marks: int) -> Written:
        try:
            cache = self._caches.open(computation, interval)
            with self._changed:  # who offers it meanwhile has committed before
                if not cache.standing.debt:
                    self._since.pop((computation, interval), None)
                    return Written()
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
        return Written(failed=1)


class _Rest:
    """Sleeps as long as the caller has worked since the last rest."""

    def begin(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        time.sleep(min(time.perf_counter() - self._since, _REST_SECONDS_MAX))
        self._since = time.perf_counter()
