"""Balancing: key intervals that follow the load of a run, between its epochs.

Every few epochs that had records it looks at what intervals cost of late, and splits and merges
some where a task has much more than its share.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.model.errors import CheckpointMismatch
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.remap import Remapped, Split
from millrace.windmill.balancer import Balance
from millrace.windmill.epochs import Epochs
from millrace.windmill.evening import busiest, cut_by_load, evened, uneven, weights_after

_log = logging.getLogger("millrace")

#: Epochs with records between two looks: what an interval costs of late is half of the last three.
_EVERY: Final = 5
#: Ranges of tasks are cut anew if the busiest then has so much of what it has, or less.
_WORTH: Final = 0.9


class Balancing:
    """Has the key intervals of a run follow its load.

    Args:
        epochs: Of the run.
        tasks: Tasks a level.
        how: How hard it is tried.
        every: Epochs with records between two looks.

    Attributes:
        splits: How many there were.
        merges: The same.
    """

    def __init__(self, epochs: Epochs, tasks: int, how: Balance, *, every: int = _EVERY) -> None:
        self._epochs = epochs
        self._tasks = tasks
        self._how = how
        self._every = every
        self._since = 0
        self._left = set[str]()
        self.splits = self.merges = 0

    def after_epoch(self, *, busy: bool) -> bool:
        """Look at the load if it is time; return whether intervals were split or merged.

        Args:
            busy: Whether the epoch had records.
        """
        self._since += busy
        if self._since < self._every:
            return False
        self._since = 0
        changed = [self._even(name) for name in self._epochs.positions.maps]
        return any(changed)

    def _even(self, name: str) -> bool:
        intervals, tasks = self._epochs.positions.maps[name], self._tasks
        weights = self._epochs.loads[name].weights(intervals)
        if name in self._left or not uneven(intervals, weights, tasks, self._how):
            return False
        remaps = evened(intervals, weights, tasks, self._how)
        if not remaps:
            cut = cut_by_load(intervals, weights, tasks)
            if busiest(cut, weights, tasks) > _WORTH * busiest(intervals, weights, tasks):
                return False

        def grouped(made: Remapped) -> IntervalMap:
            return cut_by_load(made.intervals, weights_after(made, weights), tasks)

        try:
            self._epochs.remap({name: remaps}, grouped=grouped)
        except CheckpointMismatch as problem:
            # Tables of side inputs that differ: it would be so the next time, too.
            self._left.add(name)
            _log.warning("key intervals of %r follow the load no more: %s", name, problem)
            return False
        splits = sum(isinstance(one, Split) for one in remaps)
        self.splits += splits
        self.merges += len(remaps) - splits
        _log.info(
            "%r: %d key intervals split, %d merged by load", name, splits, len(remaps) - splits
        )
        return True
