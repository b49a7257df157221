"""Task stats: what a live task counts in its turns, and sends the coordinator now and then."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.model.time import MIN_TIMESTAMP, is_over
from millrace.plane.realtime.messages import TaskStatus
from millrace.windmill.bundle import KeyedRecords

#: A status is sent so often.
_EVERY_US = 500_000


class TaskStats:
    """What one task has done in one session.

    Args:
        level: The task's level.
        task: Its number.

    Attributes:
        records: Records that it has done.
        keys: Keys that they were of, counted in each bundle.
        groups: Groups of commits that it has appended.
        busy_s: Seconds in turns.
        waited_s: Seconds in turns, besides, in which it waited for input from outside.
        waited_cpu_s: Of its CPU time.
    """

    def __init__(self, level: int, task: int) -> None:
        self._level = level
        self._task = task
        self._sent_us = MIN_TIMESTAMP
        self.records = 0
        self.keys = 0
        self.groups = 0
        self.busy_s = 0.0
        self.waited_s = 0.0
        self.waited_cpu_s = 0.0

    def count(self, records: KeyedRecords) -> None:
        """Take it that a bundle of records is done."""
        self.records += records.cuts[-1] - records.cuts[0]
        self.keys += len(records.keys)

    def due(self, wall_us: int) -> bool:
        """Return whether the coordinator is to be sent a status now."""
        return is_over(_EVERY_US, self._sent_us, wall_us)

    def status(self, wall_us: int, inputs: Mapping[str, int]) -> TaskStatus:
        """Return what is sent to the coordinator now.

        Args:
            wall_us: What time it is.
            inputs: Computation, or injected stream at level 0, -> its low watermark in the task.
        """
        self._sent_us = wall_us
        return TaskStatus(
            self._level, self._task, self.records, dict(inputs), self.groups, self.busy_s
        )
