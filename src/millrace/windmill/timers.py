"""The timers of one key while its bundle runs: set, moved, deleted, and popped when due.

Pending timers lie in the store twice: by time, to find the due ones at a cost that depends on how
many fire and not on how many wait, and by tag, to move or delete one. One that holds the low
watermark has a row among the holds as well.

Source: MillWheel, "Timers" (4.6): timers fire in increasing timestamp order for a key.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from millrace.windmill import rows
from millrace.windmill.key_rows import KeyRows
from millrace.windmill.rows import (
    Due,
    Setting,
    pack_setting,
    pack_timer,
    timer_named,
    timer_rows,
    unpack_setting,
)

#: Due timers of a key, and the hold and percentile of each.
DueTimers = dict[Due, tuple[int | None, int]]


class KeyTimers:
    """Timers of the current key.

    Attributes:
        clocks: Clock -> where it stands, in microseconds; see :func:`~.rows.clock_of`.
        heap: Due timers, earliest first, some of them moved or deleted meanwhile.
        rearmed: How many were set when they were due already.
        touched: Whether there is anything to fire or to write.
    """

    def __init__(self, key_rows: KeyRows) -> None:
        self.clocks: Mapping[int, int] = {0: 0, 1: 0}
        self.heap: list[Due] = []
        self.rearmed = 0
        self.touched = False
        self._rows = key_rows
        self._stored: dict[tuple[int, bytes], Setting] = {}
        self._changed: dict[tuple[int, bytes], Setting | None] = {}

    def begin(self, due: DueTimers | None) -> None:
        """Start a key; ``due`` are its stored timers that are due, and how they were set."""
        self.rearmed = 0
        self._changed = {}
        self._stored = {}
        if due:
            self.heap = sorted(due) if len(due) > 1 else [*due]
            self.touched = True
            for (at_us, domain, tag), (hold_us, percentile) in due.items():
                self._stored[domain, tag] = (at_us, hold_us, percentile)
        else:
            self.heap = []
            self.touched = False

    def set(self, tag: bytes, domain: int, setting: Setting) -> None:
        """Set or move a timer; a due one joins those that fire in this bundle."""
        self.touched = True
        self._changed[domain, tag] = setting
        at_us, _, percentile = setting
        clock = domain if percentile == 100 else rows.clock_of(domain, percentile)
        if at_us <= self.clocks[clock]:
            self.rearmed += 1
            heapq.heappush(self.heap, (at_us, domain, tag))

    def prolong(self, tag: bytes, domain: int, at_us: int) -> None:
        """Set a timer, or move it on; one that is set for later stays."""
        name = (domain, tag)
        if name in self._changed:
            pending = self._changed[name]
        else:
            pending = self._stored.get(name)
            if pending is None:
                found = self._rows.view.get(timer_named(self._rows.key_row, domain, tag))
                pending = None if found is None else unpack_setting(found)
                if pending is not None:
                    self._stored[name] = pending
        if pending is None or pending[0] < at_us:
            self.set(tag, domain, (at_us, None, 100))

    def delete(self, tag: bytes, domain: int) -> None:
        """Cancel a timer."""
        self.touched = True
        self._changed[domain, tag] = None

    def pop_due(self) -> tuple[Due, Setting] | None:
        """Return the earliest due timer, no longer pending, and how it was set; or None."""
        heap, changed, stored = self.heap, self._changed, self._stored
        while heap:
            due = heapq.heappop(heap)
            at_us, domain, tag = due
            name = (domain, tag)
            setting = changed[name] if name in changed else stored.get(name)
            if (
                setting is not None
                and setting[0] == at_us
                # It may have been set again to the same time, by a clock that is not there yet.
                and at_us <= self.clocks[rows.clock_of(domain, setting[2])]
            ):
                changed[name] = None
                return due, setting
        return None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        mutations, view, key_row = self._rows.mutations, self._rows.view, self._rows.key_row
        timed, freed, delta = self._rows.timed, self._rows.freed, self._rows.delta
        counts = self._rows.counts
        for name, new in self._changed.items():
            domain, tag = name
            by_tag = timer_named(key_row, domain, tag)
            old = self._stored.get(name)
            if old is None and (found := view.get(by_tag)) is not None:
                old = unpack_setting(found)
            if old == new:
                continue
            if delta is not None:
                for setting, count in ((old, -1), (new, 1)):
                    at_us = None if setting is None else rows.work_us(domain, tag, setting)
                    if at_us is not None:
                        delta[at_us] = delta.get(at_us, 0) + count
            if old is not None:
                by_time, hold = timer_rows(by_tag, key_row, domain, old)
                mutations[by_time] = None
                freed.append(by_time)
                if hold is not None:
                    mutations[hold] = None
                    freed.append(hold)
                if new is None:
                    mutations[by_tag] = None
                    counts[domain] -= 1
            if new is not None:
                if old is None:
                    counts[domain] += 1
                by_time, hold = timer_rows(by_tag, key_row, domain, new)
                timed.append(by_time)
                mutations[by_tag] = pack_setting(new)
                mutations[by_time] = pack_timer(key, tag, new[1])
                if hold is not None:
                    mutations[hold] = key
                    timed.append(hold)
