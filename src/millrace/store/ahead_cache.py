"""Caches that may be ahead of what is durable: commits that are kept in memory, over the rows.

A computation whose productions leave before its commit goes on from state that a failure takes
back. So that no cache that outlives the failure, and no snapshot, ever has such state, it lies
beside the cache until it is durable.

Source: MillWheel 6.1.3; docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager

from sortedcontainers import SortedDict

from millrace.model.errors import StoreError
from millrace.store.cache import Cache, Caches, Standing, View, moved
from millrace.store.commit import Commit, payload_bytes
from millrace.store.over import OverView
from millrace.store.snapshot import Rows
from millrace.store.task_commits import SLOT_BYTES

_log = logging.getLogger(__name__)


class AheadCache:
    """The cache of one interval, and commits after it that are not durable yet.

    Args:
        computation: Of the interval.
        interval: Its id.
        below: Its cache.

    >>> from millrace.store import MemoryCache
    >>> cache = AheadCache("count", 0, MemoryCache("count", 0))
    >>> cache.keep(Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")], chain=7))
    >>> with cache.view(at=1) as view:
    ...     view.get(b"Sk"), view.standing.chain
    (b'1', 7)
    """

    def __init__(self, computation: str, interval: int, below: Cache) -> None:
        self._name = computation, interval
        self._below = below
        self._rows: SortedDict[bytes, bytes | None] = SortedDict()
        self._commits: list[Commit] = []

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self.standing.position

    @property
    def standing(self) -> Standing:
        """See :attr:`millrace.store.Cache.standing`; what is ahead costs nothing to read again."""
        if not self._commits:
            return self._below.standing
        last = self._commits[-1]
        return Standing(last.number, last.chain)

    @property
    def size_bytes(self) -> int:
        """See :attr:`millrace.store.Cache.size_bytes`."""
        return self._below.size_bytes

    @contextmanager
    def view(self, at: int | None = None) -> Iterator[View]:
        """See :meth:`millrace.store.Cache.view`."""
        if not self._commits:
            with self._below.view(at) as view:
                yield view
            return
        standing, first = self.standing, self._commits[0]
        if at is not None and at != standing.position:
            raise moved(*self._name, standing.position, at)
        with self._below.view(at=first.number - 1) as below:
            yield OverView(below, self._rows, standing)

    def keep(self, commit: Commit) -> None:
        """Take a commit that is not durable; it follows the last one."""
        self._commits.append(commit)
        self._rows.update(commit.mutations)

    def forward(self) -> None:
        """Bring the cache below up to what was kept, which is durable now.

        Whatever is wrong with it can wait: whoever next reads it repairs it, or says he cannot.
        """
        commits, self._commits = self._commits, []
        self._rows = SortedDict()
        try:
            self._below.apply(*commits, overhead=0)
        except StoreError as problem:
            _log.warning("the cache is brought forward later: %s", problem)

    def apply(self, *commits: Commit, overhead: int = SLOT_BYTES) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        self._below.apply(*commits, overhead=overhead)

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`."""
        self._below.load(position, chain, parts)

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        self._below.settle(debt)

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        self._below.clear()


class AheadCaches:
    """The caches of a process, some of which may be ahead; for one task and session.

    Args:
        below: Those of the process.
        names: Computations whose commits are kept.

    Attributes:
        commits: All that is kept, in order.
        size_bytes: Of that.
    """

    def __init__(self, below: Caches, names: Container[str]) -> None:
        self._below = below
        self._names = names
        self._open: dict[tuple[str, int], AheadCache] = {}
        self.commits: list[Commit] = []
        self.size_bytes = 0

    def open(self, computation: str, interval: int) -> Cache:
        """See :meth:`millrace.store.Caches.open`."""
        if computation not in self._names:
            return self._below.open(computation, interval)
        return self._ahead(computation, interval)

    def keep(self, commit: Commit) -> None:
        """Take a commit of one of them that is not durable yet."""
        self._ahead(commit.computation, commit.interval).keep(commit)
        self.commits.append(commit)
        self.size_bytes += payload_bytes(commit)

    def forward(self) -> None:
        """Bring the process's caches up to what was kept, which is durable now."""
        for name, interval in {(one.computation, one.interval) for one in self.commits}:
            self._ahead(name, interval).forward()
        self.commits, self.size_bytes = [], 0

    def _ahead(self, computation: str, interval: int) -> AheadCache:
        found = self._open.get((computation, interval))
        if found is None:
            below = self._below.open(computation, interval)
            found = self._open[computation, interval] = AheadCache(computation, interval, below)
        return found
