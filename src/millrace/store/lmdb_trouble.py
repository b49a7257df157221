"""What is wrong when LMDB fails: the host, a setting, or the files."""

from __future__ import annotations

import errno
import os

import lmdb

from millrace.model.errors import DamagedCache, StoreError

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
