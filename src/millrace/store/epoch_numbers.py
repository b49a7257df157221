"""Which entries an epoch log has: its first and its last, with few looks at what is listed."""

from __future__ import annotations

from abc import ABC, abstractmethod


class EpochNumbers(ABC):
    """What a log of numbered entries, without gaps, says of their numbers.

    Listing is the dear part: the last entry is found by a list once, and then by looking for what
    came after it.
    """

    _last = 0

    @abstractmethod
    def exists(self, number: int) -> bool:
        """See :meth:`millrace.store.EpochLog.exists`."""

    @abstractmethod
    def _listed(self) -> list[int]:
        """Return the numbers of all entries, in order."""

    def first(self) -> int:
        """See :meth:`millrace.store.EpochLog.first`. Cost: a list."""
        first = 0
        for number in reversed(self._listed()):
            if first and number != first - 1:
                break
            first = number
        return first

    def last(self) -> int:
        """See :meth:`millrace.store.EpochLog.last`. Cost: a list at first, then two looks."""
        last = self._last or max(self._listed(), default=0)
        while True:
            while self.exists(last + 1):
                last += 1
            # In this order: entries go from the lowest up, so what came after one that is there
            # has not gone. Who slept before this look may find that all he knew has.
            if self.exists(last) if last else not self._listed():
                break
            last = max(self._listed(), default=0)
        # Housekeeping asks while the driver appends.
        self._last = max(self._last, last)
        return last
