"""Hosts: the soft state of a simulated cluster. Python workers, and the caches they share.

The cache of an interval is shared by all processes of a host, as LMDB's is, and every call of it is
a step. A Python worker serves one task after another of its run, and is gone when one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from millrace.model.errors import StoreError
from millrace.runtime.worker_process import WorkerProcess
from millrace.store import COMMIT_BYTES, Cache, CachePosition, Commit, MemoryCache, View
from millrace.store.snapshots import Rows

#: Asks for leave to call a cache; returns whether the call is to fail.
AskCache = Callable[[str, str, int], bool]


class Host:
    """One machine.

    Args:
        number: From 0.
        ask: Called before each call of a cache.
    """

    def __init__(self, number: int, ask: AskCache) -> None:
        self.number = number
        self.ask = ask
        self.caches: dict[tuple[str, int], MemoryCache] = {}
        self.idle: dict[str, list[WorkerProcess]] = {}

    def lose(self) -> None:
        """Forget everything, as a machine that starts again."""
        self.caches.clear()
        self.idle.clear()

    def cache(self, computation: str, interval: int) -> MemoryCache:
        """Return what is now the cache of an interval."""
        return self.caches.setdefault((computation, interval), MemoryCache(computation, interval))


class HostCaches:
    """The caches of a host as one process has them open: a :class:`millrace.store.Caches`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def open(self, computation: str, interval: int) -> Cache:
        """Return an interval's cache."""
        return _SharedCache(self._host, computation, interval)


class _SharedCache:
    def __init__(self, host: Host, computation: str, interval: int) -> None:
        self._host = host
        self._computation = computation
        self._interval = interval

    def _behind(self, call: str) -> MemoryCache:
        if self._host.ask(call, self._computation, self._interval):
            raise StoreError(
                f"cache of interval {self._interval} of {self._computation!r} on host "
                f"{self._host.number}: the simulation let {call} fail"
            )
        return self._host.cache(self._computation, self._interval)

    @property
    def position(self) -> int:
        return self._behind("position").position

    @property
    def cache_position(self) -> CachePosition:
        return self._behind("cache_position").cache_position

    @property
    def size_bytes(self) -> int:
        return self._behind("size").size_bytes

    @contextmanager
    def view(self, at: int | None = None) -> Iterator[View]:
        with self._behind("view").view(at) as view:
            yield view

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        self._behind("apply").apply(*commits, overhead=overhead)

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        rows = list(parts)  # as LMDB: nothing shows before the last of them has come
        self._behind("load").load(position, chain, rows)

    def settle(self, debt: int) -> None:
        self._behind("settle").settle(debt)

    def clear(self) -> None:
        self._behind("clear").clear()
