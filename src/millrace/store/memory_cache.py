"""MemoryCache: rows in a sorted dictionary, for the Harness and simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sortedcontainers import SortedDict

from millrace.store.cache import Size, Standing, View, changes, check_owner, following, moved
from millrace.store.commit import COMMIT_BYTES, Commit
from millrace.store.snapshots import Rows, parts_of


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
        self._standing = Standing()
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._bytes = 0
        self._views = 0

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self._standing.position

    @property
    def standing(self) -> Standing:
        """See :attr:`millrace.store.Cache.standing`."""
        return self._standing

    @property
    def size_bytes(self) -> int:
        """See :attr:`millrace.store.Cache.size_bytes`."""
        return self._bytes

    @contextmanager
    def view(self, at: int | None = None) -> Iterator[View]:
        """See :meth:`millrace.store.Cache.view`."""
        if at is not None and at != self.position:
            raise moved(self._computation, self._interval, self.position, at)
        self._views += 1
        try:
            yield _MemoryView(self._rows, self._standing, Size(len(self._rows), self._bytes))
        finally:
            self._views -= 1

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        check_owner(self._computation, self._interval, commits)
        new, standing = following(self._standing, commits, overhead=overhead)
        puts, deletes = changes(*new)
        if not new:
            return
        if self._views:  # They keep the rows they have, as LMDB's readers do.
            self._rows = self._rows.copy()
        for row in deletes:
            self._bytes -= _bytes_of(row, self._rows.pop(row, None))
        for row, value in puts:
            self._bytes += _bytes_of(row, value) - _bytes_of(row, self._rows.get(row))
            self._rows[row] = value
        self._standing = standing

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`."""
        self._rows = SortedDict(row for part in parts for row in part)
        self._bytes = sum(_bytes_of(row, value) for row, value in self._rows.items())
        self._standing = Standing(position, chain)

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        now = self._standing
        self._standing = now._replace(debt=max(0, now.debt - debt))

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        self._rows = SortedDict()
        self._standing = Standing()
        self._bytes = 0


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
    def __init__(self, rows: SortedDict[bytes, bytes], standing: Standing, size: Size) -> None:
        self._rows = rows
        self.size = size
        self.standing = standing
        self.position = standing.position

    def get(self, row: bytes) -> bytes | None:
        return self._rows.get(row)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._rows.get, rows))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._rows
        for row in rows.irange(start, stop, inclusive=(True, False)):
            yield row, rows[row]

    def everything(self) -> Iterator[Rows]:
        yield from parts_of(iter(self._rows.items()))


def _bytes_of(row: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(row) + len(value)
