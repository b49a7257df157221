"""The vector form of aggregations that keep numbers in order: Quantiles all, Top the largest."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.dataflow.aggregations.vector import Mask, Starts, numbers, plain


@dataclass(frozen=True)
class Ordered:
    """Sorts the numbers of each segment.

    Attributes:
        largest: Keep so many, the largest first; None: all, the smallest first.
    """

    largest: int | None = None
    needs_values = True

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which values are numbers."""
        column = numbers(values)
        return None if column is None else plain(column, values)

    def accumulators(self, values: pa.Array, starts: Starts) -> list[list[Any]]:
        """Return the numbers of each segment, in order."""
        column = numbers(values)
        assert column is not None, "only usable values are folded"
        bounds = [*starts.tolist(), len(column)]
        segments = np.repeat(np.arange(len(starts)), np.diff(bounds))
        ordered = column[np.lexsort((column, segments))].tolist()
        pairs = itertools.pairwise(bounds)
        if self.largest is None:
            return [ordered[first:last] for first, last in pairs]
        return [ordered[first:last][: -self.largest - 1 : -1] for first, last in pairs]
