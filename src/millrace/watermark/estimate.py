"""Estimate: percentile low watermarks of an injector that several live tasks read.

On the epoch plane a stream has one low watermark that all its records are compared with, in the
driver. Live tasks each have their own, and go on without asking: so each says how far ahead of its
own its records came, and who hears all of them puts that together.

Source: MillWheel 7.2, percentile low watermarks; Dataflow patent, "Percentile Watermark".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.ahead import RECORDS_MAX, Ahead, edge_us

Ints = npt.NDArray[np.int64]


class Estimate:
    """Percentile low watermarks of an injector whose processes several tasks read, each its own.

    What a task still sends is expected as far ahead of its low watermark as what it sent, and so
    much of it: so a task that lags counts by its share of the records, and no more.

    >>> estimate = Estimate()
    >>> estimate.add(0, Ahead.of(np.full(9, 1_000), 0)), estimate.add(1, Ahead.of(np.array([5]), 0))
    (None, None)
    >>> estimate.us(100, {0: 70_000, 1: 20}), 70_900 < estimate.us(90, {0: 70_000, 1: 20}) <= 71_000
    (20, True)
    """

    def __init__(self) -> None:
        self._tasks: dict[int, Ahead] = {}
        self._edges: dict[int, tuple[Ints, Ints]] = {}

    def add(self, task: int, ahead: Ahead) -> None:
        """Take what a task has counted since it last said so."""
        self._tasks[task] = self._tasks.get(task, Ahead()).merged(ahead)
        self._edges.pop(task, None)
        # All at once: how much each has sent, beside the others, must not change by it.
        while sum(one.records for one in self._tasks.values()) > RECORDS_MAX:
            self._tasks = {n: one.halved() for n, one in self._tasks.items()}
            self._edges.clear()

    def us(self, percentile: int, low_watermarks: Mapping[int, int]) -> int:
        """Return what the injector publishes for a share.

        Args:
            percentile: The share.
            low_watermarks: Task -> low watermark of what it reads, now; of all tasks.

        Returns:
            Microseconds; with one task, its low watermark and :meth:`Ahead.ahead_us`. Never below
            the least of them.
        """
        least_us = min(low_watermarks.values())
        reading = [n for n in self._tasks if low_watermarks[n] < MAX_TIMESTAMP]
        if percentile == 100 or least_us == MIN_TIMESTAMP or not reading:
            return least_us
        parts = [(low_watermarks[n], *self._spread(n)) for n in reading]
        at_us = np.concatenate(
            [np.minimum(edges, MAX_TIMESTAMP - us) + us for us, edges, _ in parts]
        )
        counts = np.concatenate([counts for _, _, counts in parts])
        order = np.argsort(at_us, kind="stable")
        passed = np.cumsum(counts[order])
        if not len(passed):
            return least_us
        first = int(np.searchsorted(passed, int(passed[-1]) * (100 - percentile) // 100, "right"))
        return max(least_us, int(at_us[order[first]]))

    def _spread(self, task: int) -> tuple[Ints, Ints]:
        found = self._edges.get(task)
        if found is None:
            counts = self._tasks[task].counts
            found = self._edges[task] = (
                np.array([edge_us(bucket) for bucket in counts], dtype=np.int64),
                np.array(list(counts.values()), dtype=np.int64),
            )
        return found
