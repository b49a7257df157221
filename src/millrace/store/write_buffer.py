"""Caches that are behind: the last commits of a live task's intervals, in memory over their rows.

A task that does not end reads again, a moment later, what it has just written. So its commits are
kept in memory and come to the cache below together, some turns later: of a row that was written
ten times the last value alone is. The rows themselves stay in memory after that, as far as there is
room, and are found there without asking the cache.

Nothing rests on it. What is kept is durable, or is not yet, where productions leave before their
commit; that comes to no cache, so that no cache that outlives a failure, and no snapshot, has state
that the failure took back. After a failure a cache is as many commits behind as were kept, and is
brought forward from the log.

Source: MillWheel 8.3 (a cache in memory, as the owner of an interval is its only writer), 6.1.3;
docs/design/2026-11-24-rows-in-memory.md.

Views with other rows over them: what is not in a cache yet, read as if it were.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import compress, repeat
from typing import Any, Final, Self

from sortedcontainers import SortedDict

from millrace.model.errors import DamagedCache, StoreError
from millrace.store.cache import Cache, CachePosition, Caches, Size, View, moved
from millrace.store.commit import COMMIT_BYTES, Commit, payload_bytes
from millrace.store.snapshots import Rows, parts_of


class OverView:
    """Rows of a view, and others over them; None where one is deleted.

    Args:
        below: The view.
        over: The others.
        cache_position: What the view is said to show.
    """

    def __init__(
        self, below: View, over: SortedDict[bytes, bytes | None], cache_position: CachePosition
    ) -> None:
        self._below = below
        self._over = over
        self.cache_position = cache_position
        self.position = cache_position.position

    @property
    def size(self) -> Size:
        """See :attr:`millrace.store.View.size`; of the view below."""
        return self._below.size

    def get(self, row: bytes) -> bytes | None:
        """See :meth:`millrace.store.View.get`."""
        return self._over[row] if row in self._over else self._below.get(row)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """See :meth:`millrace.store.View.get_many`."""
        over = self._over
        others = [row for row in rows if row not in over]
        values = dict(zip(others, self._below.get_many(others), strict=True)) if others else {}
        return [over[row] if row in over else values[row] for row in rows]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`millrace.store.View.scan`."""
        over = self._over.irange(start, stop, inclusive=(True, False))
        return laid_over(self._below.scan(start, stop), over, self._over)

    def everything(self) -> Iterator[Rows]:
        """See :meth:`millrace.store.View.everything`."""
        yield from parts_of(self.scan(b"\x01", b"\xff"))


def laid_over(
    below: Iterable[tuple[bytes, bytes]],
    over: Iterable[bytes],
    values: Mapping[bytes, bytes | None],
) -> Iterator[tuple[bytes, bytes]]:
    """Yield rows, ascending, with others over them.

    Args:
        below: The rows, ascending.
        over: The others, ascending.
        values: Their values; None where a row is deleted.

    >>> list(laid_over([(b"a", b"1"), (b"b", b"2")], [b"b", b"c"], {b"b": None, b"c": b"3"}))
    [(b'a', b'1'), (b'c', b'3')]
    """
    ahead = iter(over)
    buffered = next(ahead, None)
    for row, value_below in below:
        while buffered is not None and buffered < row:
            if (value := values[buffered]) is not None:
                yield buffered, value
            buffered = next(ahead, None)
        if buffered != row:
            yield row, value_below
    while buffered is not None:
        if (value := values[buffered]) is not None:
            yield buffered, value
        buffered = next(ahead, None)


_log = logging.getLogger(__name__)

#: About what a row in memory takes besides its bytes: two objects, and its place in a dict.
_ROW_BYTES: Final = 150
#: So many bytes are kept for caches that are behind, and so many more of rows that caches have.
_KEPT_BYTES: Final = 16 << 20
_KNOWN_BYTES: Final = 48 << 20
#: So many turns of its task a commit is kept at most.
KEPT_TURNS: Final = 64
#: A commit of more rows goes to its cache at once: what a write costs, its rows share, and so many
#: rows are found in the cache about as fast as in memory.
_FEW_ROWS: Final = 500

_MISSING: Final = object()


class AheadCache:
    """The cache of one interval, and commits after it.

    Args:
        computation: Of the interval.
        interval: Its id.
        below: Its cache.
        looked_up: What rows begin with that are looked up and hardly ever scanned.

    >>> from millrace.store import MemoryCache
    >>> cache = AheadCache("count", 0, MemoryCache("count", 0))
    >>> cache.keep(Commit("count", 0, 1, 1, 1, [(b"Sk", b"1")], chain=7), size=3)
    >>> with cache.view(at=1) as view:
    ...     view.get(b"Sk"), view.cache_position.chain
    (b'1', 7)
    """

    def __init__(
        self, computation: str, interval: int, below: Cache, looked_up: bytes = b"\xff"
    ) -> None:
        self.name = computation, interval
        self._below = below
        self._looked_up = looked_up
        self._commits: list[Commit] = []
        self._unordered: list[Commit] = []
        self._order: SortedDict[bytes, None] = SortedDict()
        self._cache_position: CachePosition | None = None
        self.kept_bytes = 0
        """About what the kept commits take in memory."""
        self.known_bytes = 0
        """About what the rows take that are in memory and below, when last brought forward."""
        self.rows: dict[bytes, bytes | None] = {}
        """Rows that are known as of now; None where there is none."""

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self.cache_position.position

    @property
    def cache_position(self) -> CachePosition:
        """See :attr:`millrace.store.Cache.cache_position`; it is read once and remembered."""
        if self._commits:
            last = self._commits[-1]
            return CachePosition(last.number, last.chain)
        if self._cache_position is None:
            self._cache_position = self._below.cache_position
        return self._cache_position

    @property
    def size_bytes(self) -> int:
        """See :attr:`millrace.store.Cache.size_bytes`."""
        return self._below.size_bytes

    def view(self, at: int | None = None) -> AbstractContextManager[View]:
        """See :meth:`millrace.store.Cache.view`; the cache below is opened when it is asked."""
        cache_position = self.cache_position
        if at is not None and at != cache_position.position:
            raise moved(*self.name, cache_position.position, at)
        return AheadView(self, cache_position)

    def open_below(self) -> AbstractContextManager[View]:
        """Return a view of the cache below, not entered yet."""
        return self._below.view(self._commits[0].number - 1 if self._commits else self.position)

    def keep(self, commit: Commit, size: int) -> None:
        """Take a commit; it follows the last one.

        Args:
            commit: The commit.
            size: Bytes in it.
        """
        self._commits.append(commit)
        self._unordered.append(commit)
        self.rows.update(commit.mutations)
        self.kept_bytes += size + _ROW_BYTES * len(commit.mutations)

    def kept_in(self, start: bytes, stop: bytes) -> Iterable[bytes]:
        """Return the rows in ``[start, stop)`` that commits wrote which are kept, ascending."""
        looked_up, order = self._looked_up, self._order
        for commit in self._unordered:
            order.update([(row, None) for row, _ in commit.mutations if row[:1] != looked_up])
        self._unordered = []
        scanned = order.irange(start, stop, inclusive=(True, False))
        if stop <= looked_up or start[:1] > looked_up:
            return scanned
        written = (row for commit in self._commits for row, _ in commit.mutations)
        others = {row for row in written if row[:1] == looked_up and start <= row < stop}
        return sorted([*scanned, *others])

    def forward(self, *more: Commit) -> None:
        """Bring the cache below up to what was kept, and to more; all of it is durable now.

        Whatever is wrong with it can wait: whoever next reads it repairs it, or says he cannot.
        """
        commits = [*self._commits, *more]
        written = self._row_bytes()
        self._commits, self._unordered, self._order = [], [], SortedDict()
        self.kept_bytes = 0
        try:
            self._below.apply(*commits, overhead=0)
        except StoreError as problem:
            self.forget()
            _log.warning("the cache is brought forward later: %s", problem)
            return
        last, rows = commits[-1], self.rows
        self._cache_position = CachePosition(last.number, last.chain)
        if more:
            rows = self.rows = {}
        # Of a timer that has fired nothing is asked again.
        for row in {row for commit in commits for row, value in commit.mutations if value is None}:
            if rows.get(row, b"") is None:
                del rows[row]
        self.known_bytes = len(self.rows) * written

    def _row_bytes(self) -> int:
        """Return about what a row in memory takes, by those that were kept last."""
        return self.kept_bytes // max(1, sum(len(commit.mutations) for commit in self._commits))

    def forget(self) -> None:
        """Know nothing of the cache below; what is kept stays."""
        self._cache_position = None
        self.known_bytes = 0
        self.rows = {row: value for commit in self._commits for row, value in commit.mutations}

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        self.forget()
        self._below.apply(*commits, overhead=overhead)

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`."""
        self.forget()
        self._below.load(position, chain, parts)

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        self._below.settle(debt)

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        self.forget()
        self._below.clear()


class AheadView:
    """The rows of an interval with what was kept; the cache below is opened once it is needed.

    Args:
        cache: Of the interval.
        cache_position: Where it stands.
    """

    def __init__(self, cache: AheadCache, cache_position: CachePosition) -> None:
        self._cache = cache
        self._rows = cache.rows
        self.cache_position = cache_position
        self.position = cache_position.position
        self._opened: AbstractContextManager[View] | None = None
        self._view: View | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        opened, self._opened = self._opened, None
        try:
            if opened is not None:
                opened.__exit__(kind, error, trace)
            if isinstance(error, DamagedCache):
                self._cache.forget()
        except DamagedCache:
            # User code may have caught it where it read its state; a view says it in the end.
            self._cache.forget()
            raise

    @property
    def size(self) -> Size:
        """See :attr:`millrace.store.View.size`; of the cache below."""
        return self._below().size

    def get(self, row: bytes) -> bytes | None:
        """See :meth:`millrace.store.View.get`."""
        rows = self._rows
        return rows[row] if row in rows else self._below().get(row)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """See :meth:`millrace.store.View.get_many`."""
        known: dict[bytes, Any] = self._rows
        values = list(map(known.get, rows, repeat(_MISSING)))
        if _MISSING in values:
            missing = [value is _MISSING for value in values]
            others = iter(self._below().get_many(list(compress(rows, missing))))
            values = [next(others) if value is _MISSING else value for value in values]
        return values

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`millrace.store.View.scan`."""
        over = self._cache.kept_in(start, stop)
        return laid_over(self._below().scan(start, stop), over, self._rows)

    def everything(self) -> Iterator[Rows]:
        """See :meth:`millrace.store.View.everything`."""
        yield from parts_of(self.scan(b"\x01", b"\xff"))

    def _below(self) -> View:
        if self._view is None:
            opened = self._cache.open_below()
            try:
                self._view = opened.__enter__()
            except DamagedCache:
                raise
            except StoreError as moved_on:
                # Its owner is this process alone, so it was cleared, as it was found damaged.
                self._cache.forget()
                raise DamagedCache(str(moved_on)) from moved_on
            self._opened = opened
        return self._view


class AheadCaches:
    """The caches of a process as one task of an incarnation has them.

    Args:
        below: Those of the process.
        looked_up: What rows begin with that are looked up and hardly ever scanned.
        turns: So many a commit is kept at most.
        kept_bytes: Memory for commits that caches do not have yet.
        known_bytes: Memory for rows that they have.

    Attributes:
        commits: All that is kept and not durable yet, in order.
        size_bytes: Of that.
    """

    def __init__(
        self,
        below: Caches,
        looked_up: bytes = b"\xff",
        *,
        turns: int = KEPT_TURNS,
        kept_bytes: int = _KEPT_BYTES,
        known_bytes: int = _KNOWN_BYTES,
    ) -> None:
        self._below = below
        self._looked_up = looked_up
        self._turns = turns
        self._kept_max = kept_bytes
        self._known_max = known_bytes
        self._open: dict[tuple[str, int], AheadCache] = {}
        # Those that are ahead, and since which turn, ascending.
        self._ahead: dict[AheadCache, int] = {}
        self._turn = self._kept_bytes = 0
        # Those brought forward, the last one last: about how many bytes of rows they know.
        self._known: OrderedDict[AheadCache, int] = OrderedDict()
        self._known_bytes = 0
        self.commits: list[Commit] = []
        self.size_bytes = 0

    def open(self, computation: str, interval: int) -> AheadCache:
        """See :meth:`millrace.store.Caches.open`."""
        cache = self._open.get((computation, interval))
        if cache is None:
            below = self._below.open(computation, interval)
            cache = AheadCache(computation, interval, below, self._looked_up)
            self._open[computation, interval] = cache
        return cache

    def wait(self, commit: Commit) -> None:
        """Take a commit that is not durable yet."""
        self.commits.append(commit)
        self.size_bytes += self._keep(commit)

    def durable(self, commits: Iterable[Commit]) -> None:
        """Take the commits of a turn, which are durable, as all are now that waited."""
        for commit in commits:
            if len(commit.mutations) > _FEW_ROWS:
                self._forward(self.open(commit.computation, commit.interval), commit)
            else:
                self._keep(commit)
        self.commits, self.size_bytes = [], 0
        self._turn += 1
        # One a turn, so that none waits for many; and those that take memory.
        longest, since = next(iter(self._ahead.items()), (None, 0))
        if longest is not None and self._turn - since >= self._turns:
            self._forward(longest)
        while self._kept_bytes > self._kept_max:
            self._forward(next(iter(self._ahead)))

    def forward(self) -> None:
        """Bring all caches forward to what is durable."""
        waiting = {(commit.computation, commit.interval) for commit in self.commits}
        for cache in [
            cache_ahead for cache_ahead in self._ahead if cache_ahead.name not in waiting
        ]:
            self._forward(cache)

    def _keep(self, commit: Commit) -> int:
        """Keep a commit; return the bytes of what is in it."""
        cache, size = self.open(commit.computation, commit.interval), payload_bytes(commit)
        cache.keep(commit, size)
        self._ahead.setdefault(cache, self._turn)
        self._kept_bytes += size + _ROW_BYTES * len(commit.mutations)
        return size

    def _forward(self, cache: AheadCache, *commits: Commit) -> None:
        """Bring a cache forward, with commits that were not kept."""
        self._ahead.pop(cache, None)
        self._kept_bytes -= cache.kept_bytes
        cache.forward(*commits)
        self._known_bytes += cache.known_bytes - self._known.pop(cache, 0)
        self._known[cache] = cache.known_bytes
        while self._known_bytes > self._known_max:
            oldest, size = self._known.popitem(last=False)
            self._known_bytes -= size
            oldest.forget()
