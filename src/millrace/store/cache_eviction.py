"""CacheLimit: how many bytes the caches of a host may take, and which of them go when it is more.

A cache is evicted whole, by key interval: the one that longest had no commit goes first. What is
evicted is built again from its snapshot and the commits after it, when a record or timer of
it comes. So a limit costs reads, and changes no result; nothing waits for an eviction either, and
an epoch that needs more than the limit has it while it lasts.

Source: MillWheel, section 8.3 "Framework-Level Caching", figure 16. Its cache has a limit, too, and
evicts rows; here it is intervals, because they are what can be built again by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.store import lmdb_environments
from millrace.store.checkpoint_format import file_name
from millrace.store.lmdb_cache import LmdbCaches

_INTERVAL = re.compile(r"[0-9a-f]{8}")


class _Kept(NamedTuple):
    """A cache on disk, in the order in which they go."""

    used_ns: int
    bytes: int
    computation: str
    interval: int


class CacheLimit:
    """Says which caches of a host are over a limit, and evicts them.

    Processes of a host share their caches, so each counts all of them. One that is evicted while
    another process has it open stays for that process, and takes its space until that process
    looks here, too.

    Args:
        caches: Of this process.
        computations: Whose caches count.
        limit_bytes: How much disk they may take together.

    >>> import tempfile
    >>> from millrace.store import Commit
    >>> caches = LmdbCaches(tempfile.mkdtemp(), "uuid")
    >>> for interval in (0, 1):
    ...     mutations = [(b"Sk", b"1")]
    ...     caches.open("count", interval).apply(Commit("count", interval, 1, 1, 1, mutations))
    >>> CacheLimit(caches, ["count"], 1 << 30).over()
    []
    >>> limit = CacheLimit(caches, ["count"], 0)
    >>> limit.over()
    [('count', 0), ('count', 1)]
    >>> limit.evict("count", 0)
    >>> caches.open("count", 0).position, caches.open("count", 1).position
    (0, 1)
    """

    def __init__(self, caches: LmdbCaches, computations: Sequence[str], limit_bytes: int) -> None:
        self._home = caches.home
        self._computations = computations
        self._limit_bytes = limit_bytes

    def over(self) -> list[tuple[str, int]]:
        """Return the computation and interval of what is to go, the longest unused one first."""
        lmdb_environments.close_removed()
        caches = [cache for name in self._computations for cache in self._of(name)]
        over = sum(cache.bytes for cache in caches) - self._limit_bytes
        going = []
        for one in sorted(caches):
            if over <= 0:
                break
            going.append((one.computation, one.interval))
            over -= one.bytes
        return going

    def evict(self, computation: str, interval: int) -> None:
        """Remove the cache of an interval. Who has it open goes on with it undisturbed."""
        lmdb_environments.retire(str(self._path(computation) / f"{interval:08x}"), None)

    def _path(self, computation: str) -> Path:
        return self._home / file_name(computation)

    def _of(self, computation: str) -> list[_Kept]:
        caches = []
        # Others evict and build meanwhile: what is not there any more takes no space.
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path(computation)) as entries:
            for entry in entries:
                if _INTERVAL.fullmatch(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    rows = Path(entry.path, "data.mdb").stat()
                    caches.append(
                        _Kept(
                            # Every commit writes to the file.
                            rows.st_mtime_ns, rows.st_blocks * 512, computation,
                            int(entry.name, 16),
                        )
                    )  # fmt: skip
        return caches
