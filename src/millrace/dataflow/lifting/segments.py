"""Segments: the elements of one key and window side by side, found for whole columns at once.

Source: Dataflow patent, "AssignWindows" and "MergeWindows", FIG. 5, here before the grouping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.dataflow.windows.vector import Hashes, Ints, overlaps
from millrace.dataflow.windows.window_fn import WindowFn, assigned_columns


@dataclass(frozen=True)
class Segments:
    """Elements, sorted.

    Attributes:
        order: Positions of the elements, those of a segment side by side and in order of arrival,
            or by time where windows merge.
        starts: Where in ``order`` each segment begins.
        windows: Where windows merge, start and end of each segment's.
    """

    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    windows: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.starts)


def segments(window_fn: WindowFn, codes: Ints, hashes: Hashes, timestamps: Ints) -> Segments:
    """Return the elements by key and window.

    Elements of one segment are in the same windows: of sliding ones, in the same several; where
    those that overlap merge, in one that holds the windows of all.

    Args:
        window_fn: One that assigns columns; see :func:`has_columns`.
        codes: The number of each element's key.
        hashes: The keys' hashes.
        timestamps: Microseconds.
    """
    if window_fn.merges:
        _, starts, ends = assigned_columns(window_fn, timestamps, hashes)
        order = by_code(codes, starts)
        starts, ends = starts[order], ends[order]
        begins = overlaps(codes[order], starts, ends)
        return Segments(order, begins, (starts[begins], np.maximum.reduceat(ends, begins)))
    return alike_segments(codes, window_fn.alike(timestamps, hashes))


def alike_segments(codes: Ints, minor: Ints) -> Segments:
    """Return elements by two numbers."""
    order = by_code(codes, minor)
    codes, minor = codes[order], minor[order]
    apart = (codes[1:] != codes[:-1]) | (minor[1:] != minor[:-1])
    return Segments(order, np.concatenate(([0], np.flatnonzero(apart) + 1)))


def by_code(codes: Ints, minor: Ints) -> npt.NDArray[np.intp]:
    """Return the order by code and then by minor, stable."""
    least = int(minor.min())
    width = int(minor.max()) - least + 1
    if width * (int(codes.max()) + 1) < 2**62:
        return np.argsort(codes * width + (minor - least), kind="stable")
    return np.lexsort((minor, codes))
