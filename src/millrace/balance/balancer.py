"""The balancer: key intervals that follow the load of a run, between its epochs, or at its rests.

Every few epochs that had records it looks at what intervals cost of late, and splits and merges
some where a task has much more than its share. What that reads is read beside the epochs, so it
takes effect in a later turn than it was decided in; one computation after the other, each decided
by the current map and loads. In real time marks take the part of epochs, and a remap waits until
the run is quiesced.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace.balance.load import Loads
from millrace.balance.policy import Balance, busiest, cut_by_load, evened, uneven, weights_after
from millrace.balance.preparation import Preparation
from millrace.balance.transfer import remap
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Merge, Remapped, Split

_log = logging.getLogger("millrace")

#: Epochs with records between two looks: what an interval costs of late is half of the last three.
_EVERY: Final = 5
#: Ranges of tasks are cut anew if the busiest then has so much of what it has, or less.
_WORTH: Final = 0.9


@dataclass(frozen=True)
class _Decided:
    """What is to become of the intervals of a computation.

    Attributes:
        name: Of the computation.
        intervals: The map that it was decided by.
        remaps: Splits and merges.
        preparation: Of those.
    """

    name: str
    intervals: IntervalMap
    remaps: list[Split | Merge]
    preparation: Preparation


class Balancer:
    """Has the key intervals of a run follow its load.

    Args:
        run_log: Of the run.
        loads: Computation -> what its intervals cost lately.
        tasks: Tasks a level.
        how: How hard it is tried.
        beside: Has a preparation read, and may return before it has; here by default.
        is_near: Returns whether a preparation is as near as it gets; between two epochs by default.
        remap: Remaps, as :func:`~millrace.balance.transfer.remap`, which it is by default.
        every: Epochs with records between two looks.

    Attributes:
        tasks: Tasks a level; who changes it does so between two looks.
        splits: How many there were.
        merges: The same.
    """

    def __init__(
        self,
        run_log: RunLog,
        loads: Mapping[str, Loads],
        tasks: int,
        how: Balance,
        *,
        beside: Callable[[Preparation], object] = Preparation.read,
        is_near: Callable[[Preparation], bool] = lambda preparation: preparation.is_near(),
        remap: Callable[..., Any] = remap,
        every: int = _EVERY,
    ) -> None:
        self._run_log = run_log
        self._loads = loads
        self.tasks = tasks
        self._how = how
        self._beside = beside
        self._is_near = is_near
        self._remap = remap
        self._every = every
        self._since = 0
        self._due: list[str] = []
        self._decided: _Decided | None = None
        self._prepared = False
        self._left = set[str]()
        self.splits = self.merges = 0

    def after_epoch(self, *, busy: bool) -> bool:
        """Look at the load if it is time, and carry out what is prepared.

        Args:
            busy: Whether the epoch had records.

        Returns:
            Whether intervals were split or merged, or other tasks have them.
        """
        return self.prepared(busy=busy) and self.carried_out()

    def prepared(self, *, busy: bool) -> bool:
        """Look at the load if it is time; return whether something is to be carried out now.

        What that reads is read beside, if it is not yet.

        Args:
            busy: Whether the epoch, or mark, had records.
        """
        self._since += busy
        if self._since >= self._every:
            self._since = 0
            self._due = [*self._run_log.positions.maps]
        return self._is_prepared()

    def carried_out(self) -> bool:
        """Carry out what is prepared, and what else is due and has nothing to read.

        Returns:
            Whether intervals were split or merged, or other tasks have them.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint.
            StoreError: It cannot be written.
        """
        changed = False
        while self._is_prepared():
            changed |= self._carried_out()
        return changed

    def _is_prepared(self) -> bool:
        """Return whether something is decided that needs no more reading; else have it read."""
        while (decided := self._next()) is not None:
            if self._run_log.positions.maps[decided.name] != decided.intervals:
                _log.info(
                    "%r is not balanced now: its key intervals were remapped meanwhile",
                    decided.name,
                )
                self._decided = None
                continue
            if self._prepared or decided.preparation.under_way:
                return self._prepared
            self._prepared = self._is_near(decided.preparation)
            if not self._prepared:
                self._beside(decided.preparation)
            return self._prepared
        return False

    def _next(self) -> _Decided | None:
        """Return what is decided; decide for what is due if nothing is."""
        while self._decided is None and self._due:
            self._decided, self._prepared = self._decision(self._due.pop(0)), False
        return self._decided

    def _decision(self, name: str) -> _Decided | None:
        positions, tasks = self._run_log.positions, self.tasks
        intervals, spec = positions.maps[name], self._run_log.topology.computation(name)
        if positions.behind(spec, range(len(intervals))):
            return None  # Intervals whose state has two shapes cannot be one; soon it has not.
        weights = self._loads[name].weights(intervals)
        if name in self._left or not uneven(intervals, weights, tasks, self._how):
            return None
        remaps = evened(intervals, weights, tasks, self._how)
        if not remaps:
            cut = cut_by_load(intervals, weights, tasks)
            if busiest(cut, weights, tasks) > _WORTH * busiest(intervals, weights, tasks):
                return None
        return _Decided(name, intervals, remaps, Preparation(self._run_log, {name: remaps}))

    def _carried_out(self) -> bool:
        """Do what was decided."""
        decided, self._decided = self._decided, None
        assert decided is not None, "it is prepared"
        name, intervals, remaps = decided.name, decided.intervals, decided.remaps
        weights = self._loads[name].weights(intervals)

        def grouped(remapped: Remapped) -> IntervalMap:
            return cut_by_load(remapped.intervals, weights_after(remapped, weights), self.tasks)

        ready = decided.preparation.ready
        try:
            self._remap(self._run_log, {name: remaps}, grouped=grouped, ready=ready)
        except CheckpointMismatch as problem:
            # Tables of side inputs that differ: it would be so the next time, too.
            self._left.add(name)
            _log.warning("key intervals of %r follow the load no more: %s", name, problem)
            return False
        splits = sum(isinstance(remap, Split) for remap in remaps)
        self.splits += splits
        self.merges += len(remaps) - splits
        _log.info(
            "%r: %d key intervals split, %d merged by load", name, splits, len(remaps) - splits
        )
        return True
