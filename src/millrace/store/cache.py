"""Cache: the rows of one key interval as they are after some commit. Disposable, unlike the log.

Everything in a cache can be made again from the commit log (:func:`millrace.store.bring`), so a
cache may be fast rather than safe.

Source: MillWheel, section 8.3 "Framework-Level Caching", and 6.2: a single writer a key, guaranteed
by the sequencer, is what makes it right to read back what was written without asking the store.

:class:`MemoryCache` keeps rows in a sorted dictionary, for the Harness and simulations. On disk
each row has a checksum behind its value, so that an altered one is noticed when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol
from zlib import crc32

from sortedcontainers import SortedDict

from millrace.model.errors import DamagedCache, InvariantViolation, StoreError
from millrace.store.commit import COMMIT_BYTES, Commit, payload_bytes
from millrace.store.snapshots import Rows, parts_of

# LMDB's limit is 511 bytes, less room for a prefix of its own that a store may want.
ROW_BYTES_MAX = 480


class CachePosition(NamedTuple):
    """Where a cache stands.

    Attributes:
        position: Number of the last commit applied; 0 when the cache is empty.
        chain: That commit's, see :func:`~millrace.store.chain_of`.
        debt: What it would cost to read again the commits since the last snapshot, in bytes;
            see :func:`~millrace.store.cache.replay_cost`.
    """

    position: int = 0
    chain: int = 0
    debt: int = 0

    def after(self, commit: Commit, *, overhead: int = COMMIT_BYTES) -> CachePosition:
        """Return where the cache stands when ``commit`` is applied."""
        cost = replay_cost(commit, overhead)
        return CachePosition(commit.number, commit.chain, self.debt + cost)


def replay_cost(commit: Commit, overhead: int = COMMIT_BYTES) -> int:
    """Return what reading and applying a commit costs, in bytes: its own, and those to get it.

    Args:
        commit: The commit.
        overhead: In bytes that could be read in that time: 64 KiB for a request to an object store
            or the opening of a file, less for what lies beside others, nothing in a grown segment.

    >>> replay_cost(Commit("count", 0, 1, 1, 1, [(b"Sk", b"123")]))
    65541
    """
    return overhead + payload_bytes(commit)


class Size(NamedTuple):
    """How much a cache holds.

    Attributes:
        rows: Rows.
        bytes: About how many bytes they take.
    """

    rows: int
    bytes: int


class View(Protocol):
    """The rows of one interval at one commit; later commits do not show.

    Reading raises DamagedCache when a row was altered.
    """

    @property
    def position(self) -> int:
        """Number of the commit that the view shows, 0 for none."""
        ...

    @property
    def cache_position(self) -> CachePosition:
        """Where the cache stood when the view was opened."""
        ...

    @property
    def size(self) -> Size:
        """How much there is; what lies over a cache, or in it beside the rows, may be left out."""
        ...

    def get(self, row: bytes) -> bytes | None:
        """Return the value of a row, None when there is none."""
        ...

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each of ``rows`` (sorted, distinct), None where there is none."""
        ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows in ``[start, stop)``, ascending; only inside the ``with`` of the view."""
        ...

    def everything(self) -> Iterator[Rows]:
        """Yield all rows, ascending, in parts of about :data:`~.snapshot.FRAME_BYTES`.

        Called for a snapshot, beside the tasks.

        Raises:
            DamagedCache: a row was altered, or one is missing.
        """
        ...


class Cache(Protocol):
    """The cache of ONE ``(computation, interval)``; other processes may share what is behind it."""

    @property
    def position(self) -> int:
        """Number of the last commit applied; 0 when the cache is empty or was unusable."""
        ...

    @property
    def cache_position(self) -> CachePosition:
        """Where the cache stands; all zero when it is empty or was unusable."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how many bytes its rows take."""
        ...

    def view(self, at: int | None = None) -> AbstractContextManager[View]:
        """Open a view.

        Args:
            at: The commit the caller has to read at. Another attempt of a task, in another
                process, may have moved the cache since :func:`~millrace.store.bring`; reading at
                any other commit would compute a wrong commit, so pass it when a commit follows.

        Raises:
            StoreError: the cache is at another commit than ``at``; try the task again.
        """
        ...

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        """Apply durable commits, all of them or none; those that were applied before are passed by.

        Args:
            commits: In order of their numbers. Many at once cost little more than their last rows.
            overhead: What reading one again costs beside its bytes: see :func:`replay_cost`.

        Raises:
            StoreError: a commit between ``position`` and one of these is missing, or there is no
                room.
            DamagedCache: one does not follow from what the cache holds.
            InvariantViolation: one is of another interval, or a row is malformed.
        """
        ...

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """Replace everything by the rows of a snapshot, once the last of them has come.

        If ``parts`` raises, the cache is as it was.
        """
        ...

    def settle(self, debt: int) -> None:
        """Say that a snapshot has been written, when the debt was ``debt``."""
        ...

    def clear(self) -> None:
        """Drop every row and go back to position 0."""
        ...


class Caches(Protocol):
    """All the caches that one process may use."""

    def open(self, computation: str, interval: int) -> Cache:
        """Return the cache of an interval; the same one for the same arguments."""
        ...


def changes(*commits: Commit) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Return what commits leave behind: rows to put and rows to delete, each sorted, distinct.

    Raises:
        InvariantViolation: a row is empty, longer than 480 bytes, or begins with a zero byte,
            which caches keep for themselves.

    >>> changes(Commit("c", 0, 1, 1, 1, [(b"Sb", b"1"), (b"Sa", b"2"), (b"Sb", None)]))
    ([(b'Sa', b'2')], [b'Sb'])
    """
    last = {row: value for commit in commits for row, value in commit.mutations}
    if not last:
        return [], []
    rows = sorted(last)
    if rows[0] < b"\x01" or max(map(len, rows)) > ROW_BYTES_MAX:
        bad = next(row for row in rows if row < b"\x01" or len(row) > ROW_BYTES_MAX)
        raise InvariantViolation(
            f"row {bad[:40]!r} of {len(bad)} bytes in {_commit_with(commits, bad)}: expected 1 to "
            f"{ROW_BYTES_MAX} bytes, the first one not zero"
        )
    puts = [(row, value) for row in rows if (value := last[row]) is not None]
    deletes = [row for row in rows if last[row] is None] if len(puts) < len(rows) else []
    return puts, deletes


def _commit_with(commits: Sequence[Commit], row: bytes) -> str:
    """Return the name of the commit that has a row, for a message."""
    commit = next(commit for commit in commits if row in dict(commit.mutations))
    return (
        f"commit {commit.number} of interval {commit.interval} of computation "
        f"{commit.computation!r}"
    )


def following(
    cache_position: CachePosition, commits: Sequence[Commit], *, overhead: int
) -> tuple[Sequence[Commit], CachePosition]:
    """Return those of some commits that a cache does not have, and where it stands after them.

    Raises:
        StoreError: one is missing before them, or among them.
        DamagedCache: one does not follow from what the cache holds.
    """
    new = [commit for commit in commits if commit.number > cache_position.position]
    for commit in new:
        if commit.number > cache_position.position + 1:
            raise gap(cache_position.position, commit)
        check_chain(cache_position, commit)
        cache_position = cache_position.after(commit, overhead=overhead)
    return new, cache_position


def check_owner(computation: str, interval: int, commits: Iterable[Commit]) -> None:
    """Raise InvariantViolation unless commits are for this computation and interval."""
    for commit in commits:
        if (commit.computation, commit.interval) != (computation, interval):
            raise InvariantViolation(
                f"commit {commit.number} of interval {commit.interval} of computation "
                f"{commit.computation!r} was given to the cache of interval {interval} of "
                f"computation {computation!r}"
            )


def check_chain(cache_position: CachePosition, commit: Commit) -> None:
    """Raise DamagedCache unless ``commit`` follows the one that the cache stands at."""
    if commit.previous != cache_position.chain:
        raise DamagedCache(
            f"cache of interval {commit.interval} of computation {commit.computation!r}: at commit "
            f"{cache_position.position} with chain {cache_position.chain}, but commit "
            f"{commit.number} follows chain {commit.previous}. The cache is of another history: "
            f"was the checkpoint restored from a copy? Nothing is lost: the cache is built again."
        )


def gap(position: int, commit: Commit) -> StoreError:
    """Return the error for a commit that cannot be applied yet."""
    return StoreError(
        f"cache of interval {commit.interval} of computation {commit.computation!r}: at commit "
        f"{position}, asked to apply commit {commit.number}, expected {position + 1}. Did another "
        f"process clear the cache meanwhile? Bring the cache up from the log and try again."
    )


def moved(computation: str, interval: int, position: int, at: int) -> StoreError:
    """Return the error for a view at another commit than the caller needs."""
    return StoreError(
        f"cache of interval {interval} of computation {computation!r}: at commit {position}, "
        f"expected {at}. Another attempt of the same work is using the cache; try this task again."
    )


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
        self._cache_position = CachePosition()
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._bytes = 0
        self._views = 0

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self._cache_position.position

    @property
    def cache_position(self) -> CachePosition:
        """See :attr:`millrace.store.Cache.cache_position`."""
        return self._cache_position

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
            yield _MemoryView(self._rows, self._cache_position, Size(len(self._rows), self._bytes))
        finally:
            self._views -= 1

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        check_owner(self._computation, self._interval, commits)
        new, cache_position = following(self._cache_position, commits, overhead=overhead)
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
        self._cache_position = cache_position

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`."""
        self._rows = SortedDict(row for part in parts for row in part)
        self._bytes = sum(_bytes_of(row, value) for row, value in self._rows.items())
        self._cache_position = CachePosition(position, chain)

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        now = self._cache_position
        self._cache_position = now._replace(debt=max(0, now.debt - debt))

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        self._rows = SortedDict()
        self._cache_position = CachePosition()
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
    def __init__(
        self, rows: SortedDict[bytes, bytes], cache_position: CachePosition, size: Size
    ) -> None:
        self._rows = rows
        self.size = size
        self.cache_position = cache_position
        self.position = cache_position.position

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


#: A value is stored with the CRC-32 of row and value behind it. Over all of it the CRC is then this
#: constant, whatever the value: one call in C checks a row, and `map` checks a bundle's.
RESIDUE = 0x2144DF1C
CRC_BYTES = 4


def checked(rows: Rows) -> list[tuple[bytes, bytes]]:
    """Return rows with their CRC behind the value.

    >>> [(row, value)] = checked([(b"Sk", b"1")])
    >>> crc32(value, crc32(row)) == RESIDUE, value[:-CRC_BYTES]
    (True, b'1')
    """
    return [
        (row, value + crc32(value, crc32(row)).to_bytes(CRC_BYTES, "little")) for row, value in rows
    ]
