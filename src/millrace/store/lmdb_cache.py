"""LmdbCache: rows in an LMDB environment that all processes of a host share.

Each interval has an environment of its own, as LMDB has one writer an environment, at

.. code-block:: text

    <directory>/<uuid>/<format>-<host>-<boot id>/<computation>/<interval>/

Nothing is fsync'd, because the log is: a killed process leaves an environment whole (LMDB never
overwrites live pages), a crash of the operating system may not. After one the boot id is another,
so the old path is never opened again, and is removed (:mod:`millrace.store.cache_directories`).

LMDB reads a row in about 1 us and needs no hand-over between processes; SQLite and RocksDB were the
alternatives (slower reads; one process a database).

What is read is an :class:`LmdbView`: the rows as one read transaction shows them. Where LMDB fails,
:class:`CacheErrors` says what is wrong: the host, a setting, or the files.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from pathlib import Path
from zlib import crc32

import lmdb
import msgspec

from millrace.model.errors import DamagedCache, InvariantViolation, StoreError
from millrace.store import cache_directories, lmdb_environments
from millrace.store.cache import (
    CRC_BYTES,
    RESIDUE,
    CachePosition,
    Size,
    View,
    changes,
    check_owner,
    checked,
    following,
    moved,
)
from millrace.store.checkpoint_format import file_name
from millrace.store.commit import COMMIT_BYTES, Commit
from millrace.store.durable_files import TOO_MANY_FILES
from millrace.store.lmdb_environments import Damaged, Environment, Paging
from millrace.store.snapshots import Rows, parts_of

#: Kernel rows begin with a letter and `changes` refuses a zero byte, so no scan meets the key under
#: which a cache keeps its position.
FIRST_ROW = b"\x01"
_AFTER_ROWS = b"\xff" * 512
_ALTERED = "a row was altered after it was written"


def size_in(txn: lmdb.Transaction[bytes]) -> Size:
    """Return how much an environment holds: whole pages, and the row of its position."""
    stat = txn.stat()
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return Size(stat["entries"], pages * stat["psize"])


class LmdbView:
    """A read transaction; its snapshot is kept by LMDB until it is closed.

    Args:
        txn: The transaction, which the view ends.
        cache_position: Where the cache stands in it.
        damaged: Called when a row is found altered; returns what to raise.
        paging: Of the environment.

    Attributes:
        failure: What was raised because a row was found altered; None if none was.
    """

    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        cache_position: CachePosition,
        damaged: Callable[[Exception], StoreError],
        paging: Paging,
    ) -> None:
        self.cache_position = cache_position
        self.position = cache_position.position
        self._damaged = damaged
        self._paging = paging
        self._txn = txn
        self._closed = False
        self.failure: StoreError | None = None

    @property
    def size(self) -> Size:
        """See :attr:`millrace.store.View.size`."""
        try:
            return size_in(self._txn)
        except lmdb.Error as error:
            raise self._failed(error) from error

    def get(self, row: bytes) -> bytes | None:
        """See :meth:`millrace.store.View.get`."""
        try:
            data = self._txn.get(row)
            if data is None:
                return None
            if crc32(data, crc32(row)) != RESIDUE:
                raise Damaged(_ALTERED)
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error
        return data[:-CRC_BYTES]

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """See :meth:`millrace.store.View.get_many`."""
        try:
            values = self._paging.get_many(self._txn, rows)
            crcs = set(map(crc32, filter(None, values), map(crc32, compress(rows, values))))
            if crcs - {RESIDUE} or b"" in values:
                raise Damaged(_ALTERED)
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error
        return [None if data is None else data[:-CRC_BYTES] for data in values]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`millrace.store.View.scan`."""
        try:
            with self._txn.cursor() as cursor:
                if not cursor.set_range(max(start, FIRST_ROW)):
                    return
                for row, data in cursor.iternext():
                    if row >= stop:
                        return
                    if crc32(data, crc32(row)) != RESIDUE:
                        raise Damaged(_ALTERED)
                    yield row, data[:-CRC_BYTES]
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error

    def everything(self) -> Iterator[Rows]:
        """See :meth:`millrace.store.View.everything`."""
        count = 0
        try:
            # The position is an entry as well.
            expected = max(0, self._txn.stat()["entries"] - 1)
        except lmdb.Error as error:
            raise self._failed(error) from error
        for part in parts_of(self.scan(FIRST_ROW, _AFTER_ROWS)):
            count += len(part)
            yield part
        if count != expected:
            raise self._failed(Damaged(f"{count} rows are found where {expected} were written"))

    def close(self) -> None:
        """End the transaction."""
        self._closed = True
        self._txn.abort()

    def _failed(self, error: lmdb.Error | Damaged) -> Exception:
        if self._closed:
            return InvariantViolation("a view of a cache was read after its `with` block ended")
        if isinstance(error, lmdb.BadValsizeError):
            return InvariantViolation(f"a row is read with an impossible key: {error}")
        self.failure = self._damaged(error)
        return self.failure


# What is wrong is the host or a setting, not the pages: to build the cache again would not help.
# EIO is among them as LMDB reports a write cut short by a full disk so.
_CAPACITY = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM,
     errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EAGAIN, errno.EIO}
)  # fmt: skip


class CacheErrors:
    """Says what is wrong with the cache of one interval.

    Args:
        path: Of its environment.
        computation: Name of the computation.
        interval: Id of the key interval.
        map_size_bytes: Largest size of its file.
    """

    def __init__(self, path: str, computation: str, interval: int, map_size_bytes: int) -> None:
        self._where = f"cache {path} of interval {interval} of computation {computation!r}"
        self._map_size_bytes = map_size_bytes

    def refuse_capacity(self, error: Exception) -> None:
        """Raise StoreError when the host or a setting is at fault, and not the pages."""
        if isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            raise self.unusable(
                error, f"Raise map_size_bytes of LmdbCaches, which is {self._map_size_bytes}"
            ) from error
        if isinstance(error, lmdb.ReadersFullError):
            raise self.unusable(error, "Fewer tasks can read one interval at a time") from error
        code = _errno(error)
        if code == errno.ENOMEM:
            raise self.unusable(
                error,
                "There is no address space for it: raise `ulimit -v`, which Spark's "
                "spark.executor.pyspark.memory sets, or lower map_size_bytes of LmdbCaches",
            ) from error
        if code in (errno.EMFILE, errno.ENFILE):
            raise self.unusable(error, TOO_MANY_FILES) from error
        if code in _CAPACITY:
            raise self.unusable(
                error, "Free room for the cache directory and make it writable, or choose another"
            ) from error

    def unusable(self, error: Exception, remedy: str) -> StoreError:
        """Return the error of a cache that cannot be used until somebody has done something."""
        return StoreError(
            f"{self._where}: {error}. What was committed is safe in the log. {remedy}, and "
            f"start again with the same checkpoint."
        )

    def damaged(self, error: Exception) -> DamagedCache:
        """Return the error of a cache whose files have been removed, as they were damaged."""
        return DamagedCache(
            f"{self._where}: {error}. Nothing is lost: it has been removed, and is built "
            f"again from the commit log when the task is tried again."
        )


def _errno(error: Exception) -> int | None:
    """Return the operating system's code. LMDB's errors carry it in their text only."""
    if isinstance(error, OSError):
        return error.errno
    return next((code for code in _CAPACITY if str(error).endswith(os.strerror(code))), None)


FORMAT = 1

# Address space, not memory or disk: the file is as large as the rows. 2,000 intervals of this size
# fit into what a 64-bit process can address.
MAP_SIZE_BYTES = 1 << 36

# Kernel rows begin with a letter and `changes` refuses a zero byte, so no scan meets this key.
_META = b"\x00"


class _Meta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    format: int
    uuid: str
    position: int
    chain: int
    debt: int


_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(_Meta).decode


class LmdbCache:
    """The cache of one interval, shared by the processes of a host.

    Nothing is opened before it is used, so the object may be pickled and may cross a fork.

    Args:
        directory: On a local disk, best on fast storage; may be deleted when no run uses it.
        computation: Name of the computation.
        interval: Id of the key interval.
        uuid: Of the hard state whose rows these are.
        map_size_bytes: Largest size the file may grow to.

    >>> import tempfile
    >>> cache = LmdbCache(tempfile.mkdtemp(), "count", 0, "uuid")
    >>> cache.apply(Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")]))
    >>> with cache.view(at=1) as view:
    ...     view.get_many([b"Sj", b"Sk"])
    [None, b'1']
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        computation: str,
        interval: int,
        uuid: str,
        *,
        map_size_bytes: int = MAP_SIZE_BYTES,
    ) -> None:
        self._computation = computation
        self._interval = interval
        self._uuid = uuid
        self._map_size_bytes = map_size_bytes
        name = Path(file_name(computation)) / f"{interval:08x}"
        self._home = cache_directories.home_of_boot(directory, uuid, FORMAT)
        self._path = str(self._home / name)
        self._trouble = CacheErrors(self._path, computation, interval, map_size_bytes)
        self.wiped = 0
        """How many times this object found its environment unusable and removed it."""

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self.cache_position.position

    @property
    def cache_position(self) -> CachePosition:
        """See :attr:`millrace.store.Cache.cache_position`."""
        opened = self._acquire()
        try:
            with opened.env.begin() as txn:
                return self._cache_position(txn)
        except (lmdb.Error, Damaged) as error:
            self._trouble.refuse_capacity(error)
            self._wipe(opened)
            return CachePosition()
        finally:
            lmdb_environments.release(opened)

    @property
    def size_bytes(self) -> int:
        """See :attr:`millrace.store.Cache.size_bytes`."""
        opened = self._acquire()
        try:
            with opened.env.begin() as txn:
                return size_in(txn).bytes
        except lmdb.Error as error:
            raise self._damaged(error, opened) from error
        finally:
            lmdb_environments.release(opened)

    @contextmanager
    def view(self, at: int | None = None) -> Iterator[View]:
        """See :meth:`millrace.store.Cache.view`."""
        opened = self._acquire()
        try:
            view = self._view(opened)
            try:
                if at is not None and at != view.position:
                    raise moved(self._computation, self._interval, view.position, at)
                yield view
                if view.failure is not None:
                    raise view.failure  # User code may have caught it where it read its state.
            finally:
                view.close()
        finally:
            lmdb_environments.release(opened)

    def apply(self, *commits: Commit, overhead: int = COMMIT_BYTES) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        check_owner(self._computation, self._interval, commits)
        opened = self._acquire()
        try:
            with opened.writing() as txn:
                new, cache_position = following(
                    self._cache_position(txn), commits, overhead=overhead
                )
                if not new:
                    return
                puts, deletes = changes(*new)
                for row in deletes:
                    txn.delete(row)
                if puts:
                    with txn.cursor() as cursor:
                        cursor.putmulti(checked(puts))
                self._put_position(txn, cache_position)
                opened.wrote(txn, len(puts) + len(deletes))
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error
        finally:
            lmdb_environments.release(opened)

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        opened = self._acquire()
        try:
            rows = opened.env.open_db()
            with opened.writing() as txn:
                txn.drop(rows, delete=False)
                self._put_position(txn, CachePosition())
        except (lmdb.Error, Damaged) as error:
            self._trouble.refuse_capacity(error)
            self._wipe(opened)
        finally:
            lmdb_environments.release(opened)

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`.

        The rows go into an environment aside, page after page, which then takes the place of the
        one that is there: no long write transaction, and never half a cache.
        """
        cache_directories.remove_earlier(self._home)
        try:
            with lmdb_environments.aside(self._path) as directory:
                env = lmdb_environments.open_aside(
                    directory, self._map_size_bytes, cache_directories.boot_unknown()
                )
                try:
                    for part in parts:
                        with env.begin(write=True) as txn, txn.cursor() as cursor:
                            cursor.putmulti(checked(part), append=True)
                    with env.begin(write=True) as txn:
                        self._put_position(txn, CachePosition(position, chain))
                finally:
                    env.close()
                lmdb_environments.install(self._path, directory)
        except (lmdb.Error, OSError) as error:
            if isinstance(error, StoreError):
                raise
            self._trouble.refuse_capacity(error)
            raise self._trouble.unusable(error, "Choose another cache directory") from error

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        opened = self._acquire()
        try:
            with opened.writing() as txn:
                now = self._cache_position(txn)
                self._put_position(txn, now._replace(debt=max(0, now.debt - debt)))
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error
        finally:
            lmdb_environments.release(opened)

    def __repr__(self) -> str:
        return f"LmdbCache({self._path!r})"

    def _view(self, opened: Environment) -> LmdbView:
        try:
            txn = opened.env.begin()
            try:
                damaged = partial(self._damaged, opened=opened)
                return LmdbView(txn, self._cache_position(txn), damaged, opened.paging)
            except BaseException:
                txn.abort()
                raise
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error

    def _acquire(self) -> Environment:
        """Return the environment, a new one when the one that is there is of no use."""
        try:
            return self._open()
        except (lmdb.Error, Damaged, OSError) as error:
            self._trouble.refuse_capacity(error)
        self._wipe(None)
        try:
            return self._open()
        except (lmdb.Error, Damaged, OSError) as error:
            raise self._trouble.unusable(error, "Choose another cache directory") from error

    def _open(self) -> Environment:
        return lmdb_environments.acquire(
            self._path, self._map_size_bytes, cache_directories.boot_unknown(), self._check
        )

    def _check(self, env: lmdb.Environment) -> None:
        cache_directories.remove_earlier(self._home)
        with env.begin() as txn:
            if txn.get(_META) is None and txn.stat()["entries"]:
                raise Damaged(f"{self._path}: rows without a position")
            self._cache_position(txn)

    def _cache_position(self, txn: lmdb.Transaction[bytes]) -> CachePosition:
        data = txn.get(_META)
        if data is None:
            return CachePosition()
        try:
            if crc32(data, crc32(_META)) != RESIDUE:
                raise Damaged(f"{self._path}: position altered")
            meta = _decode_meta(data[:-CRC_BYTES])
        except msgspec.DecodeError as error:
            raise Damaged(f"{self._path}: position unreadable: {error}") from error
        if (meta.format, meta.uuid) != (FORMAT, self._uuid):
            raise Damaged(f"{self._path}: format {meta.format} of {meta.uuid}, not {self._uuid}")
        return CachePosition(meta.position, meta.chain, meta.debt)

    def _put_position(self, txn: lmdb.Transaction[bytes], cache_position: CachePosition) -> None:
        [(row, value)] = checked(
            [(_META, _encode_meta(_Meta(FORMAT, self._uuid, *cache_position)))]
        )
        txn.put(row, value)

    def _wipe(self, opened: Environment | None) -> None:
        self.wiped += 1
        lmdb_environments.retire(self._path, None if opened is None else opened.inode)

    def _damaged(self, error: Exception, opened: Environment) -> StoreError:
        """Remove the environment and return the error that makes the task start over."""
        self._trouble.refuse_capacity(error)
        self._wipe(opened)
        return self._trouble.damaged(error)


class LmdbCaches:
    """The caches of one process; only the arguments are pickled.

    Args:
        directory: On a disk of this host; the same for all processes that are to share caches.
        uuid: Of the hard state.
        map_size_bytes: Largest size of one interval's file.

    >>> import pickle, tempfile
    >>> caches = LmdbCaches(tempfile.mkdtemp(), "uuid")
    >>> pickle.loads(pickle.dumps(caches)).open("count", 0).position
    0
    """

    def __init__(
        self, directory: str | os.PathLike[str], uuid: str, *, map_size_bytes: int = MAP_SIZE_BYTES
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._uuid = uuid
        self._map_size_bytes = map_size_bytes
        self._caches: dict[tuple[str, int], LmdbCache] = {}

    @property
    def home(self) -> Path:
        """Where they lie: a directory for each computation, with one for each interval."""
        return cache_directories.home_of_boot(self._directory, self._uuid, FORMAT)

    @property
    def wiped(self) -> int:
        """How many environments this object found unusable and removed."""
        return sum(cache.wiped for cache in self._caches.values())

    def open(self, computation: str, interval: int) -> LmdbCache:
        """See :meth:`millrace.store.Caches.open`. Touches no file yet."""
        cache = self._caches.get((computation, interval))
        if cache is None:
            cache = self._caches[computation, interval] = LmdbCache(
                self._directory,
                computation,
                interval,
                self._uuid,
                map_size_bytes=self._map_size_bytes,
            )
        return cache

    def forget(self, computation: str) -> None:
        """Remove the files of a computation that was dropped.

        A superseded run that has them open continues with the unlinked files. Files that cannot be
        removed stay: a cache costs nothing but its disk.
        """
        shutil.rmtree(self.home / file_name(computation), ignore_errors=True)

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._directory, self._uuid, self._map_size_bytes)

    def __repr__(self) -> str:
        return f"LmdbCaches({self._directory!r}, {self._uuid!r})"


def _again(directory: str, uuid: str, map_size_bytes: int) -> LmdbCaches:
    return LmdbCaches(directory, uuid, map_size_bytes=map_size_bytes)
