"""LmdbView: the rows of an LMDB environment as one read transaction shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from zlib import crc32

import lmdb

from millrace.model.errors import InvariantViolation, StoreError
from millrace.store.cache import CRC_BYTES, RESIDUE, CachePosition, Size
from millrace.store.lmdb_environments import Damaged
from millrace.store.lmdb_paging import Paging
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
        standing: Where the cache stands in it.
        damaged: Called when a row is found altered; returns what to raise.
        paging: Of the environment.

    Attributes:
        failure: What was raised because a row was found altered; None if none was.
    """

    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        standing: CachePosition,
        damaged: Callable[[Exception], StoreError],
        paging: Paging,
    ) -> None:
        self.standing = standing
        self.position = standing.position
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
            found = self._paging.get_many(self._txn, rows)
            crcs = set(map(crc32, filter(None, found), map(crc32, compress(rows, found))))
            if crcs - {RESIDUE} or b"" in found:
                raise Damaged(_ALTERED)
        except (lmdb.Error, Damaged) as error:
            raise self._failed(error) from error
        return [None if data is None else data[:-CRC_BYTES] for data in found]

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
