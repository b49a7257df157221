"""Segments: the elements of one key and window side by side, found for whole columns at once.

Source: Dataflow patent, "AssignWindows" and "MergeWindows", FIG. 5, here before the grouping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.dataflow.windows import FixedWindows, Sessions, SlidingWindows
from millrace.dataflow.windows.window_fn import WindowFn

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Elements, sorted.

    Attributes:
        order: Positions of the elements, those of a segment side by side and in order of arrival,
            or by time where windows merge.
        starts: Where in ``order`` each segment begins.
    """

    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.starts)


def segments(
    window_fn: WindowFn, codes: _Ints, hashes: npt.NDArray[np.uint64], timestamps: _Ints
) -> Segments:
    """Return the elements by key and window.

    Elements of one segment are in the same windows: of sliding ones, in the same several; of
    sessions, in one that holds the windows of all.

    Args:
        window_fn: Fixed, sliding or global windows, or sessions.
        codes: The number of each element's key.
        hashes: The keys' hashes.
        timestamps: Microseconds.
    """
    if isinstance(window_fn, Sessions):
        order = _sorted(codes, timestamps)
        apart = np.diff(timestamps[order]) >= window_fn.gap_us
    else:
        minor = _window_numbers(window_fn, hashes, timestamps)
        order = _sorted(codes, minor)
        apart = np.diff(minor[order]) != 0
    by_key = codes[order]
    begins = np.flatnonzero(apart | (by_key[1:] != by_key[:-1])) + 1
    return Segments(order, np.concatenate(([0], begins)))


def _window_numbers(
    window_fn: WindowFn, hashes: npt.NDArray[np.uint64], timestamps: _Ints
) -> _Ints:
    """Return a number for each element that is the same for two if all their windows are."""
    if isinstance(window_fn, FixedWindows):
        size, shifted = window_fn.size_us, timestamps - window_fn.offset_us
        if window_fn.phase_shift:
            # As phase_us: the hash of a key is that of its encoding.
            shifted = shifted - (hashes % np.uint64(size)).astype(np.int64)
        numbers: _Ints = shifted // size
        return numbers
    if isinstance(window_fn, SlidingWindows):
        size, period = window_fn.size_us, window_fn.period_us
        last, into = np.divmod(timestamps - window_fn.offset_us, period)
        # Two elements have the same last window, and the same first, if as many windows hold them.
        count = (size - into - 1) // period
        numbers = last * 2 + (count - size // period)
        return numbers.astype(np.int64)
    return np.zeros(len(timestamps), np.int64)


def _sorted(codes: _Ints, minor: _Ints) -> npt.NDArray[np.intp]:
    """Return the order by code and then by minor, stable."""
    least = int(minor.min())
    width = int(minor.max()) - least + 1
    if width * (int(codes.max()) + 1) < 2**62:
        return np.argsort(codes * width + (minor - least), kind="stable")
    return np.lexsort((minor, codes))
