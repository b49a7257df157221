"""LmdbCache: rows in an LMDB environment that all processes of a host share.

Each interval has an environment of its own, as LMDB has one writer an environment, at

.. code-block:: text

    <directory>/<uuid>/<format>-<host>-<boot id>/<computation>/<interval>/

Nothing is fsync'd, because the log is: a killed process leaves an environment whole (LMDB never
overwrites live pages), a crash of the operating system may not. After one the boot id is another,
so the old path is never opened again, and is removed. The host's name is in the path since LMDB's
locks hold on one host, or one container, only.

LMDB reads a row in about 1 us and needs no hand-over between processes; SQLite and RocksDB were the
alternatives (slower reads; one process a database).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from zlib import crc32

import lmdb
import msgspec

from millrace.model.errors import DamagedCache, InvariantViolation, StoreError
from millrace.store import lmdb_environments
from millrace.store.cache import Standing, View, changes, check_chain, check_owner, gap, moved
from millrace.store.commit import Commit
from millrace.store.lmdb_environments import Damaged, Environment
from millrace.store.names import file_name
from millrace.store.snapshot import Rows, parts_of

FORMAT = 2

# Address space, not memory or disk: the file is as large as the rows. 2,000 intervals of this size
# fit into what a 64-bit process can address.
MAP_SIZE_BYTES = 1 << 36

# Kernel rows begin with a letter and `changes` refuses a zero byte, so no scan meets this key.
_META = b"\x00"
_FIRST_ROW = b"\x01"
_AFTER_ROWS = b"\xff" * 512

# What is wrong is the host or a setting, not the pages: to build the cache again would not help.
# EIO is among them as LMDB reports a write cut short by a full disk so.
_CAPACITY = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM,
     errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EAGAIN, errno.EIO}
)  # fmt: skip


# Then nothing tells a torn file from a whole one, and LMDB has to fsync.
_BOOT_UNKNOWN = "unknown"


class _Meta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    format: int
    uuid: str
    position: int
    chain: int
    debt: int


# A value is stored with the CRC-32 of row and value behind it. Over all of it the CRC is then this
# constant, whatever the value: one call in C checks a row, and `map` checks a bundle's.
_RESIDUE = 0x2144DF1C
_CRC_BYTES = 4
_ALTERED = "a row was altered after it was written"


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
        self._home = _home(directory, uuid)
        self._path = str(self._home / name)
        self.wiped = 0
        """How many times this object found its environment unusable and removed it."""

    @property
    def position(self) -> int:
        """See :attr:`millrace.store.Cache.position`."""
        return self.standing.position

    @property
    def standing(self) -> Standing:
        """See :attr:`millrace.store.Cache.standing`."""
        opened = self._acquire()
        try:
            with opened.env.begin() as txn:
                return self._standing(txn)
        except (lmdb.Error, Damaged) as error:
            self._refuse_capacity(error)
            self._wipe(opened)
            return Standing()
        finally:
            lmdb_environments.release(opened)

    @property
    def size_bytes(self) -> int:
        """See :attr:`millrace.store.Cache.size_bytes`."""
        opened = self._acquire()
        try:
            with opened.env.begin() as txn:
                stat = txn.stat()
                pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
                return int(pages * stat["psize"])
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

    def apply(self, commit: Commit) -> None:
        """See :meth:`millrace.store.Cache.apply`."""
        check_owner(self._computation, self._interval, commit)
        puts, deletes = changes(commit)
        opened = self._acquire()
        try:
            with opened.env.begin(write=True) as txn:
                standing = self._standing(txn)
                if commit.number <= standing.position:
                    return
                if commit.number > standing.position + 1:
                    raise gap(standing.position, commit)
                check_chain(standing, commit)
                for row in deletes:
                    txn.delete(row)
                if puts:
                    with txn.cursor() as cursor:
                        cursor.putmulti(_sealed(puts))
                self._put_standing(txn, standing.after(commit))
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error
        finally:
            lmdb_environments.release(opened)

    def clear(self) -> None:
        """See :meth:`millrace.store.Cache.clear`."""
        opened = self._acquire()
        try:
            rows = opened.env.open_db()
            with opened.env.begin(write=True) as txn:
                txn.drop(rows, delete=False)
                self._put_standing(txn, Standing())
        except lmdb.Error as error:
            self._refuse_capacity(error)
            self._wipe(opened)
        finally:
            lmdb_environments.release(opened)

    def load(self, position: int, chain: int, parts: Iterable[Rows]) -> None:
        """See :meth:`millrace.store.Cache.load`.

        The rows go into an environment aside, page after page, which then takes the place of the
        one that is there: no long write transaction, and never half a cache.
        """
        _remove_earlier_boots(self._home)
        try:
            with lmdb_environments.aside(self._path) as directory:
                env = lmdb_environments.open_aside(directory, self._map_size_bytes, _sync())
                try:
                    for part in parts:
                        with env.begin(write=True) as txn, txn.cursor() as cursor:
                            cursor.putmulti(_sealed(part), append=True)
                    with env.begin(write=True) as txn:
                        self._put_standing(txn, Standing(position, chain))
                finally:
                    env.close()
                lmdb_environments.install(self._path, directory)
        except (lmdb.Error, OSError) as error:
            if isinstance(error, StoreError):
                raise
            self._refuse_capacity(error)
            raise self._unusable(error, "Choose another cache directory") from error

    def settle(self, debt: int) -> None:
        """See :meth:`millrace.store.Cache.settle`."""
        opened = self._acquire()
        try:
            with opened.env.begin(write=True) as txn:
                now = self._standing(txn)
                self._put_standing(txn, now._replace(debt=max(0, now.debt - debt)))
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error
        finally:
            lmdb_environments.release(opened)

    def __repr__(self) -> str:
        return f"LmdbCache({self._path!r})"

    def _view(self, opened: Environment) -> _LmdbView:
        try:
            txn = opened.env.begin()
            try:
                return _LmdbView(self, opened, txn, self._standing(txn))
            except BaseException:
                txn.abort()
                raise
        except (lmdb.Error, Damaged) as error:
            raise self._damaged(error, opened) from error

    def _acquire(self) -> Environment:
        """Return the environment, a new one when the one that is there is of no use."""
        _remove_earlier_boots(self._home)
        try:
            return self._open()
        except (lmdb.Error, Damaged, OSError) as error:
            self._refuse_capacity(error)
        self._wipe(None)
        try:
            return self._open()
        except (lmdb.Error, Damaged, OSError) as error:
            raise self._unusable(error, "Choose another cache directory") from error

    def _open(self) -> Environment:
        return lmdb_environments.acquire(self._path, self._map_size_bytes, _sync(), self._check)

    def _check(self, env: lmdb.Environment) -> None:
        with env.begin() as txn:
            if txn.get(_META) is None and txn.stat()["entries"]:
                raise Damaged(f"{self._path}: rows without a position")
            self._standing(txn)

    def _standing(self, txn: lmdb.Transaction[bytes]) -> Standing:
        data = txn.get(_META)
        if data is None:
            return Standing()
        try:
            if crc32(data, crc32(_META)) != _RESIDUE:
                raise Damaged(f"{self._path}: position altered")
            meta = _decode_meta(data[:-_CRC_BYTES])
        except msgspec.DecodeError as error:
            raise Damaged(f"{self._path}: position unreadable: {error}") from error
        if (meta.format, meta.uuid) != (FORMAT, self._uuid):
            raise Damaged(f"{self._path}: format {meta.format} of {meta.uuid}, not {self._uuid}")
        return Standing(meta.position, meta.chain, meta.debt)

    def _put_standing(self, txn: lmdb.Transaction[bytes], standing: Standing) -> None:
        [(row, value)] = _sealed([(_META, _encode_meta(_Meta(FORMAT, self._uuid, *standing)))])
        txn.put(row, value)

    def _wipe(self, opened: Environment | None) -> None:
        self.wiped += 1
        lmdb_environments.retire(self._path, None if opened is None else opened.inode)

    def _damaged(self, error: Exception, opened: Environment) -> StoreError:
        """Remove the environment and return the error that makes the task start over."""
        self._refuse_capacity(error)
        self._wipe(opened)
        return DamagedCache(
            f"cache {self._path} of interval {self._interval} of computation "
            f"{self._computation!r}: {error}. Nothing is lost: it has been removed, and is built "
            f"again from the commit log when the task is tried again."
        )

    def _refuse_capacity(self, error: Exception) -> None:
        """Raise StoreError when the host or a setting is at fault, and not the pages."""
        if isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            raise self._unusable(
                error, f"Raise map_size_bytes of LmdbCaches, which is {self._map_size_bytes}"
            ) from error
        if isinstance(error, lmdb.ReadersFullError):
            raise self._unusable(error, "Fewer tasks can read one interval at a time") from error
        code = _errno(error)
        if code == errno.ENOMEM:
            raise self._unusable(
                error,
                "There is no address space for it: raise `ulimit -v`, which Spark's "
                "spark.executor.pyspark.memory sets, or lower map_size_bytes of LmdbCaches",
            ) from error
        if code in _CAPACITY:
            raise self._unusable(
                error, "Free room for the cache directory and make it writable, or choose another"
            ) from error

    def _unusable(self, error: Exception, remedy: str) -> StoreError:
        return StoreError(
            f"cache {self._path} of interval {self._interval} of computation "
            f"{self._computation!r}: {error}. What was committed is safe in the log. {remedy}, and "
            f"start again with the same checkpoint."
        )


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
        self,
        directory: str | os.PathLike[str],
        uuid: str,
        *,
        map_size_bytes: int = MAP_SIZE_BYTES,
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._uuid = uuid
        self._map_size_bytes = map_size_bytes
        self._caches: dict[tuple[str, int], LmdbCache] = {}

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

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._directory, self._uuid, self._map_size_bytes)

    def __repr__(self) -> str:
        return f"LmdbCaches({self._directory!r}, {self._uuid!r})"


def _again(directory: str, uuid: str, map_size_bytes: int) -> LmdbCaches:
    return LmdbCaches(directory, uuid, map_size_bytes=map_size_bytes)


class _LmdbView:
    """A read transaction; its snapshot is kept by LMDB until it is closed."""

    def __init__(
        self,
        cache: LmdbCache,
        opened: Environment,
        txn: lmdb.Transaction[bytes],
        standing: Standing,
    ) -> None:
        self.standing = standing
        self.position = standing.position
        self._cache = cache
        self._opened = opened
        self._txn = txn
        self._closed = False
        self.failure: StoreError | None = None

    def get(self, row: bytes) -> bytes | None:
        try:
            data = self._txn.get(row)
            if data is None:
                return None
            if crc32(data, crc32(row)) != _RESIDUE:
                raise Damaged(_ALTERED)
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error
        return data[:-_CRC_BYTES]

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        # Faster than Cursor.getmulti, which copies every key.
        try:
            found = list(map(self._txn.get, rows))
            crcs = set(map(crc32, filter(None, found), map(crc32, compress(rows, found))))
            if crcs - {_RESIDUE} or b"" in found:
                raise Damaged(_ALTERED)
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error
        return [None if data is None else data[:-_CRC_BYTES] for data in found]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            with self._txn.cursor() as cursor:
                if not cursor.set_range(max(start, _FIRST_ROW)):
                    return
                for row, data in cursor.iternext():
                    if row >= stop:
                        return
                    if crc32(data, crc32(row)) != _RESIDUE:
                        raise Damaged(_ALTERED)
                    yield row, data[:-_CRC_BYTES]
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error

    def everything(self) -> Iterator[Rows]:
        count = 0
        try:
            # The position is an entry as well.
            expected = max(0, self._txn.stat()["entries"] - 1)
        except lmdb.Error as error:
            raise self._failed(error) from error
        for part in parts_of(self.scan(_FIRST_ROW, _AFTER_ROWS)):
            count += len(part)
            yield part
        if count != expected:
            raise self._failed(Damaged(f"{count} rows are found where {expected} were written"))

    def close(self) -> None:
        self._closed = True
        self._txn.abort()

    def _failed(self, error: lmdb.Error | Damaged) -> Exception:
        if self._closed:
            return InvariantViolation("a view of a cache was read after its `with` block ended")
        if isinstance(error, lmdb.BadValsizeError):
            return InvariantViolation(f"a row is read with an impossible key: {error}")
        self.failure = self._cache._damaged(error, self._opened)
        return self.failure


def _sealed(rows: Rows) -> list[tuple[bytes, bytes]]:
    """Return rows with their CRC behind the value, see ``_RESIDUE``."""
    return [
        (row, value + crc32(value, crc32(row)).to_bytes(_CRC_BYTES, "little"))
        for row, value in rows
    ]


def _sync() -> bool:
    return _boot_id() == _BOOT_UNKNOWN


def _errno(error: Exception) -> int | None:
    """Return the operating system's code. LMDB's errors carry it in their text only."""
    if isinstance(error, OSError):
        return error.errno
    return next((code for code in _CAPACITY if str(error).endswith(os.strerror(code))), None)


def _home(directory: str | os.PathLike[str], uuid: str) -> Path:
    host = file_name(socket.gethostname())
    return Path(os.path.abspath(directory)) / file_name(uuid) / f"{FORMAT}-{host}-{_boot_id()}"


@functools.cache
def _boot_id() -> str:
    """Return what tells one boot of this host from another."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # macOS
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    return _BOOT_UNKNOWN


@functools.cache
def _remove_earlier_boots(home: Path) -> None:
    """Remove what this host cached before it was started again; no process can have it open."""
    host = home.name[: -len(_boot_id())]
    with contextlib.suppress(OSError):
        for name in os.listdir(home.parent):
            if name.startswith(host) and len(name) == len(home.name) and name != home.name:
                shutil.rmtree(home.parent / name, ignore_errors=True)
