"""MemoryCache: rows in a sorted dictionary, for the Harness and simulations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sortedcontainers import SortedDict

from millrace.store.cache import View, changes, check_owner, gap, moved
from millrace.store.commit import Commit


class MemoryCache:
    """The cache of one interval, in this process only; not for use by several threads.

    >>> cache = MemoryCache("count", 0)
    >>> cache.apply(Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")]))
    >>> with cache.view(at=1) as view:
    ...     list(view.scan(b"A", b"z"))
    [(b'Sk', b'1')]
    """

    def __init__(self, computation: str, interval: int) -> None:
        self._computation = computation
        self._interval = interval
        self._position = 0
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._views = 0

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self._position

    @contextmanager
    def view(self, at: int | None = None) -> Iterator[View]:
        """See :meth:`millrace.store.Cache.view`."""
        if at is not None and at != self._position:
            raise moved(self._computation, self._interval, self._position, at)
        self._views += 1
        try:
            yield _MemoryView(self._rows, self._position)
        finally:
            self._views -= 1

    def apply(self, commit: Commit) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        check_owner(self._computation, self._interval, commit)
        puts, deletes = changes(commit)
        if commit.number <= self._position:
            return
        if commit.number > self._position + 1:
            raise gap(self._position, commit)
        if self._views:  # They keep the rows they have, as LMDB's readers do.
            self._rows = self._rows.copy()
        for row in deletes:
            self._rows.pop(row, None)
        self._rows.update(puts)
        self._position = commit.number

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        self._rows = SortedDict()
        self._position = 0


class MemoryCaches:
    """The caches of one simulated process; dropping the object is the crash of that process.

    >>> caches = MemoryCaches()
    >>> caches.open("count", 0) is caches.open("count", 0)
    True
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], MemoryCache] = {}

    def open(self, computation: str, interval: int) -> MemoryCache:
        """See :meth:`millrace.store.Caches.open`."""
        cache = self._open.get((computation, interval))
        if cache is None:
            cache = self._open[computation, interval] = MemoryCache(computation, interval)
        return cache


class _MemoryView:
    def __init__(self, rows: SortedDict[bytes, bytes], position: int) -> None:
        self._rows = rows
        self.position = position

    def get(self, row: bytes) -> bytes | None:
        return self._rows.get(row)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._rows.get, rows))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._rows
        for row in rows.irange(start, stop, inclusive=(True, False)):
            yield row, rows[row]
