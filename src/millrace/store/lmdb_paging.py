"""Rows of a cache that is larger than memory: their pages are read by several threads at once.

LMDB reads a row by touching a page of a mapped file. One that is not in memory stops its thread
until the disk has it, and rows of a bundle lie on a page each, so they would be waited for one
after the other. Threads wait side by side: LMDB touches pages without holding Python's lock. They
take CPU time of their own, so they only run where the bundle before has waited.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import lmdb

#: Threads of a process; a disk or volume answers as many reads at once, and more.
THREADS = 16
#: A bundle of fewer rows is read as it is.
_FEW_ROWS = 256
#: Of so many rows one had to be read from the disk, or more of them, where it is worth it.
_ROWS_A_WAIT = 16


class Paging:
    """Reads rows of one environment.

    Args:
        env: The environment.

    Attributes:
        waits: Whether rows lay on the disk when some were last read.
    """

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env
        self.waits = False

    def get_many(self, txn: lmdb.Transaction[bytes], rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of rows, as a transaction sees them; None for those not there."""
        waited = 0
        if self.waits and len(rows) >= _FEW_ROWS:
            step = -(-len(rows) // THREADS)
            parts = [rows[start : start + step] for start in range(0, len(rows), step)]
            waited = sum(_threads().map(self._touch, parts))
        before = _waited()
        # Faster than Cursor.getmulti, which copies every key.
        found = list(map(txn.get, rows))
        waited += _waited() - before
        self.waits = waited * _ROWS_A_WAIT > len(rows)
        return found

    def _touch(self, rows: Sequence[bytes]) -> int:
        """Have the pages of rows in memory; return how often the disk was waited for."""
        before = _waited()
        # Who reads the rows then is told what is wrong.
        with contextlib.suppress(lmdb.Error), self._env.begin() as txn:
            for row in rows:
                txn.get(row)
        return _waited() - before


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "millrace-paging")


def _waited() -> int:
    """Return how often this thread has waited for a page of the disk."""
    return resource.getrusage(_OF_A_THREAD).ru_majflt


# Threads do not cross a fork.
os.register_at_fork(after_in_child=_threads.cache_clear)

# Systems other than Linux do not count by thread.
_OF_A_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
