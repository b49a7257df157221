"""The vector form of windows: those of many elements at once, as columns.

A WindowFn says it in its own class, beside ``assign``. Who wants it asks here, and learns that
there is none where a class further down assigns one by one in a way of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.model.errors import PipelineError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Assigned(NamedTuple):
    """Windows of elements, as columns of equal length.

    Attributes:
        rows: Of each window, the position of its element; ascending.
        starts: Of each window, microseconds.
        ends: The same; after ``starts``.
    """

    rows: npt.NDArray[np.intp]
    starts: Ints
    ends: Ints


def one_each(starts: Ints, ends: Ints) -> Assigned:
    """Return windows of which every element has one."""
    return Assigned(np.arange(len(starts)), starts, ends)


def alike(assigned: Assigned, count: int) -> Ints:
    """Return a number for each of so many elements, the same for two if all their windows are.

    >>> alike(Assigned(np.array([0, 1, 1, 3]), np.array([0, 0, 5, 0]), np.array([5, 5, 9, 5])), 4)
    array([1, 2, 0, 1])
    """
    rows, starts, ends = assigned
    nth = np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((count, 2 * (int(nth.max(initial=0)) + 1)), MIN_TIMESTAMP - 1, np.int64)
    table[rows, 2 * nth], table[rows, 2 * nth + 1] = starts, ends
    numbers: Ints = np.unique(table, axis=0, return_inverse=True)[1].reshape(count)
    return numbers


def overlaps(codes: Ints, starts: Ints, ends: Ints) -> npt.NDArray[np.intp]:
    """Return where windows begin that overlap none of their key before them.

    Args:
        codes: The number of each window's key, ascending.
        starts: Of the windows, ascending within a key.
        ends: Of the windows.
    """
    other = codes[1:] != codes[:-1]
    latest = ends
    if not (other | (ends[1:] >= ends[:-1])).all():
        # All keys in one run: each key's ends are lifted above those of the key before.
        values, ranks = np.unique(ends, return_inverse=True)
        latest = values[np.maximum.accumulate(ranks + codes * len(values)) - codes * len(values)]
    return np.concatenate(([0], np.flatnonzero(other | (starts[1:] >= latest[:-1])) + 1))


def checked(assigned: Any, count: int, function: str, *, one: bool) -> Assigned:
    """Return what a user's ``assign_column`` returned, or say what is wrong with it.

    Args:
        assigned: What it returned.
        count: Of elements.
        function: Its name.
        one: Whether each element must have one window, as where windows merge.
    """
    try:
        rows, starts, ends = map(np.asarray, assigned)
        sizes = {len(rows), len(starts), len(ends)}
        whole = all(np.issubdtype(column.dtype, np.integer) for column in (rows, starts, ends))
    except (TypeError, ValueError):
        sizes, whole = set(), False
    if len(sizes) != 1 or not whole:
        raise PipelineError(
            f"{function} returned {assigned!r}. Expected three columns of integers of one length: "
            "the position of the element, start and end of each window, in microseconds."
        )
    if len(rows) and not (rows[0] >= 0 and rows[-1] < count and (np.diff(rows) >= 0).all()):
        raise PipelineError(
            f"{function} returned windows of elements {rows.tolist()[:10]!r}. Expected positions "
            f"from 0 to {count - 1}, ascending."
        )
    if one and rows.tolist() != list(range(count)):
        raise PipelineError(
            f"{function} returned {len(rows)} windows of {count} elements. Expected one of "
            "each, as its windows merge."
        )
    wrong = np.flatnonzero((starts >= ends) | (starts < MIN_TIMESTAMP) | (ends > MAX_TIMESTAMP))
    if len(wrong):
        n = int(wrong[0])
        raise PipelineError(
            f"{function} returned a window from {starts[n]} to {ends[n]}. A window is a half-open "
            "interval [start, end) of microseconds, with start < end."
        )
    return Assigned(rows.astype(np.intp), starts.astype(np.int64), ends.astype(np.int64))
