"""Snapshots written beside the tasks: one thread in each worker process, one snapshot at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from millrace.model.errors import StoreError
from millrace.store.cache import Caches
from millrace.store.log import Snapshots
from millrace.store.snapshotting import SnapshotPolicy, Written, write_if_due

_log = logging.getLogger(__name__)

# Python runs one thread at a time, so a thread that never waits takes half of what the tasks have.
# This one sleeps as long as it works, up to this, so that a process that was stopped goes on.
_REST_SECONDS_MAX = 0.1


class SnapshotWriter:
    """Writes the snapshots that are due of the intervals it is told of.

    Its thread starts with the first interval and dies with the process, whenever that is: a
    snapshot is there or not, and one that is not is written next time. An error is logged and
    counted, and ends nothing.

    Args:
        caches: Of this process.
        snapshots: Where to.
        policy: When one is due.
    """

    def __init__(
        self, caches: Caches, snapshots: Snapshots, policy: SnapshotPolicy | None = None
    ) -> None:
        self._caches = caches
        self._snapshots = snapshots
        self._policy = policy or SnapshotPolicy()
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, int], None] = {}
        self._busy = False
        self._thread: threading.Thread | None = None
        self._written = Written()

    def offer(self, computation: str, intervals: Iterable[int]) -> None:
        """Have the intervals looked at, which have had a commit. Returns at once."""
        with self._changed:
            self._waiting.update(((computation, interval), None) for interval in intervals)
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
                del self._waiting[name]
                self._busy = True
            rest.begin()
            written = self._write(*name, rest)
            with self._changed:
                self._written.add(written)

    def _write(self, computation: str, interval: int, rest: _Rest) -> Written:
        try:
            cache = self._caches.open(computation, interval)
            return write_if_due(cache, self._snapshots, computation, interval, self._policy, rest)
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
