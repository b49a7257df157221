"""LmdbCache: rows in an LMDB environment that all processes of a host share.

Each interval has an environment of its own, as LMDB has one writer an environment, at

.. code-block:: text

    <directory>/<uuid>/<format>-<host>-<boot id>/<computation>/<interval>/

Nothing is fsync'd, because the log is: a killed process leaves an environment whole (LMDB never
overwrites live pages), a crash of the operating system may not. After one the boot id is another,
so the old path is never opened again, and is removed (:mod:`millrace.store.boots`).

LMDB reads a row in about 1 us and needs no hand-over between processes; SQLite and RocksDB were the
alternatives (slower reads; one process a database).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from zlib import crc32

import lmdb
import msgspec

from millrace.model.errors import StoreError
from millrace.store import boots, lmdb_environments
from millrace.store.cache import (
    CRC_BYTES,
    RESIDUE,
    CachePosition,
    View,
    changes,
    check_owner,
    checked,
    following,
    moved,
)
from millrace.store.commit import COMMIT_BYTES, Commit
from millrace.store.lmdb_environments import Damaged, Environment
from millrace.store.lmdb_trouble import CacheErrors
from millrace.store.lmdb_view import LmdbView, size_in
from millrace.store.names import file_name
from millrace.store.snapshots import Rows

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
        self._home = boots.home(directory, uuid, FORMAT)
        self._path = str(self._home / name)
        self._trouble = CacheErrors(self._path, computation, interval, map_size_bytes)
        self.wiped = 0
        """How many times this object found its environment unusable and removed it."""

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self.standing.position

    @property
    def standing(self) -> CachePosition:
        """See :attr:`millrace.store.Cache.standing`."""
        opened = self._acquire()
        try:
            with opened.env.begin() as txn:
                return self._standing(txn)
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
                new, standing = following(self._standing(txn), commits, overhead=overhead)
                if not new:
                    return
                puts, deletes = changes(*new)
                for row in deletes:
                    txn.delete(row)
                if puts:
                    with txn.cursor() as cursor:
                        cursor.putmulti(checked(puts))
                self._put_standing(txn, standing)
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
                self._put_standing(txn, CachePosition())
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
        boots.remove_earlier(self._home)
        try:
            with lmdb_environments.aside(self._path) as directory:
                env = lmdb_environments.open_aside(directory, self._map_size_bytes, boots.unknown())
                try:
                    for part in parts:
                        with env.begin(write=True) as txn, txn.cursor() as cursor:
                            cursor.putmulti(checked(part), append=True)
                    with env.begin(write=True) as txn:
                        self._put_standing(txn, CachePosition(position, chain))
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
                now = self._standing(txn)
                self._put_standing(txn, now._replace(debt=max(0, now.debt - debt)))
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
                return LmdbView(txn, self._standing(txn), damaged, opened.paging)
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
            self._path, self._map_size_bytes, boots.unknown(), self._check
        )

    def _check(self, env: lmdb.Environment) -> None:
        boots.remove_earlier(self._home)
        with env.begin() as txn:
            if txn.get(_META) is None and txn.stat()["entries"]:
                raise Damaged(f"{self._path}: rows without a position")
            self._standing(txn)

    def _standing(self, txn: lmdb.Transaction[bytes]) -> CachePosition:
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

    def _put_standing(self, txn: lmdb.Transaction[bytes], standing: CachePosition) -> None:
        [(row, value)] = checked([(_META, _encode_meta(_Meta(FORMAT, self._uuid, *standing)))])
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
        return boots.home(self._directory, self._uuid, FORMAT)

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

        Who has them open still, of a run that was superseded, goes on with what is unlinked. What
        cannot be removed stays: a cache costs nothing but its disk.
        """
        shutil.rmtree(self.home / file_name(computation), ignore_errors=True)

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._directory, self._uuid, self._map_size_bytes)

    def __repr__(self) -> str:
        return f"LmdbCaches({self._directory!r}, {self._uuid!r})"


def _again(directory: str, uuid: str, map_size_bytes: int) -> LmdbCaches:
    return LmdbCaches(directory, uuid, map_size_bytes=map_size_bytes)
