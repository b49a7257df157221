"""Tournament: the minimum of many values of which a few change at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.model.time import MAX_TIMESTAMP

#: Up to here a change climbs to the root by itself; above, numpy takes all of them level by level.
#: A numpy call costs about as much as three steps of Python, and a level needs half a dozen.
_FEW = 24


class Tournament:
    """Values at places 0, 1, 2, ..., and the least of them, in a complete binary tree.

    To change c of n values costs O(c log n), and never more than O(n); to ask for the least one
    costs nothing.

    >>> least = Tournament(3, initial=9)
    >>> least.update([1, 2], [4, 6])
    >>> least.minimum
    4
    >>> least.update([1], [7])
    >>> least.minimum
    6
    """

    def __init__(self, size: int, *, initial: int) -> None:
        self._leaves = 1 << max(0, size - 1).bit_length()
        self._nodes = np.full(2 * self._leaves, MAX_TIMESTAMP, dtype=np.int64)
        self.update(range(size), [initial] * size)

    @property
    def minimum(self) -> int:
        """The least value; MAX_TIMESTAMP if there is none."""
        return int(self._nodes[1])

    def minimum_of(self, places: range) -> int:
        """Return the least value at some places; MAX_TIMESTAMP if there are none.

        >>> Tournament(5, initial=9).minimum_of(range(1, 4))
        9
        """
        nodes, first, end = self._nodes, places.start + self._leaves, places.stop + self._leaves
        found = MAX_TIMESTAMP
        while first < end:
            if first & 1:
                found = min(found, int(nodes[first]))
                first += 1
            if end & 1:
                end -= 1
                found = min(found, int(nodes[end]))
            first >>= 1
            end >>= 1
        return found

    def at_most(self, places: range, limit: int) -> list[int]:
        """Return at which of some places the value is at most a limit, ascending.

        If it is so nowhere, the tree says so; else all of the places are looked at, by numpy.
        """
        if self.minimum_of(places) > limit:
            return []
        leaves = self._nodes[self._leaves + places.start : self._leaves + places.stop]
        found: list[int] = (np.flatnonzero(leaves <= limit) + places.start).tolist()
        return found

    def update(self, places: Sequence[int], values: Sequence[int]) -> None:
        """Change the values at some places, each named once."""
        nodes = self._nodes
        if len(places) <= _FEW:
            for place, value in zip(places, values, strict=True):
                node = place + self._leaves
                nodes[node] = value
                while node > 1:
                    node >>= 1
                    least = min(nodes[2 * node], nodes[2 * node + 1])
                    if nodes[node] == least:
                        break
                    nodes[node] = least
            return
        changed = np.asarray(places, dtype=np.int64) + self._leaves
        nodes[changed] = values
        changed.sort()
        while changed[0] > 1:
            # Sorted, and so are the parents: brothers stand next to each other.
            changed >>= 1
            changed = changed[np.flatnonzero(np.diff(changed, prepend=0))]
            nodes[changed] = np.minimum(nodes[2 * changed], nodes[2 * changed + 1])
