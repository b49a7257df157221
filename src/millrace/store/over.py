"""Views with other rows over them: what is not in a cache yet, read as if it were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sortedcontainers import SortedDict

from millrace.store.cache import Size, Standing, View
from millrace.store.snapshots import Rows, parts_of


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
    mine = next(ahead, None)
    for row, value_below in below:
        while mine is not None and mine < row:
            if (value := values[mine]) is not None:
                yield mine, value
            mine = next(ahead, None)
        if mine != row:
            yield row, value_below
    while mine is not None:
        if (value := values[mine]) is not None:
            yield mine, value
        mine = next(ahead, None)
