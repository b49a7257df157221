"""Views with other rows over them: what is not in a cache yet, read as if it were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from millrace.store.cache import Size, Standing, View
from millrace.store.snapshot import Rows, parts_of


class OverView:
    """Rows of a view, and others over them; None where one is deleted.

    Args:
        below: The view.
        over: The others.
        standing: What the view is said to show.
    """

    def __init__(
        self, below: View, over: SortedDict[bytes, bytes | None], standing: Standing
    ) -> None:
        self._below = below
        self._over = over
        self.standing = standing
        self.position = standing.position

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
        found = dict(zip(others, self._below.get_many(others), strict=True)) if others else {}
        return [over[row] if row in over else found[row] for row in rows]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See :meth:`millrace.store.View.scan`."""
        over = self._over
        ahead = over.irange(start, stop, inclusive=(True, False))
        mine = next(ahead, None)
        for row, below in self._below.scan(start, stop):
            while mine is not None and mine < row:
                if (value := over[mine]) is not None:
                    yield mine, value
                mine = next(ahead, None)
            if mine != row:
                yield row, below
        while mine is not None:
            if (value := over[mine]) is not None:
                yield mine, value
            mine = next(ahead, None)

    def everything(self) -> Iterator[Rows]:
        """See :meth:`millrace.store.View.everything`."""
        yield from parts_of(self.scan(b"\x01", b"\xff"))
