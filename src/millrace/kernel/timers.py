"""The timers of one key while its bundle runs, and what is pending in its interval afterwards.

Pending timers lie in the store twice: by time, to find the due ones at a cost that depends on how
many fire and not on how many wait, and by tag, to move or delete one. One that holds the low
watermark has a row among the holds as well.

The report that a commit carries says when each clock's first timer is due, and what the first hold
is. So no row is read to find that nothing is due, and after a bundle only where the first of them
was taken away.

Source: MillWheel, 4.6 (timers fire in increasing timestamp order for a key) and 4.5 (the oldest
work of a computation).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from millrace.compile.topology import ComputationSpec
from millrace.kernel import row_codec, timer_families
from millrace.kernel.timer_families import (
    Due,
    Setting,
    pack_setting,
    pack_timer,
    timer_named,
    timer_rows,
    unpack_setting,
    work_us,
)
from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View
from millrace.watermark.percentiles import Outstanding
from millrace.watermark.report import NOTHING_PENDING, Report


class KeyRows:
    """Where the current key's rows are read from and written to.

    Attributes:
        view: The interval's rows as of the last commit.
        mutations: Row -> new value or None, for the commit being made.
        key_row: The current key's part of a row.
        timed: The rows written that are ordered by time (timers and holds).
        freed: Those of them that were there before and are deleted.
        counts: Domain -> how many more timers are pending than before.
        number: The number of the commit being made.
        delta: Timestamp -> how many more timers and holds are pending there; None if not counted.
        goes_on: Whether earlier bundles commit together with this one, under its number.
    """

    __slots__ = (
        "counts", "delta", "freed", "goes_on", "key_row", "mutations", "number", "timed", "view",
    )  # fmt: skip

    def __init__(self) -> None:
        self.view: View = None  # type: ignore[assignment]  # set for every interval
        self.mutations: dict[bytes, bytes | None] = {}
        self.timed: list[bytes] = []
        self.freed: list[bytes] = []
        self.counts = [0, 0]
        self.key_row = b""
        self.number = 0
        self.goes_on = False
        self.delta: dict[int, int] | None = None


#: Due timers of a key, and the hold and percentile of each.
DueTimers = dict[Due, tuple[int | None, int]]


class KeyTimers:
    """Timers of the current key.

    Attributes:
        clocks: Clock -> where it stands, in microseconds; see :func:`~.rows.clock_of`.
        heap: Due timers, earliest first, some of them moved or deleted meanwhile.
        rearmed: How many were set when they were due already.
        touched: Whether anything is known of timers: there may be some to fire or to write.
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
        clock = domain if percentile == 100 else timer_families.clock_of(domain, percentile)
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
                stored = self._rows.view.get(timer_named(self._rows.key_row, domain, tag))
                pending = None if stored is None else unpack_setting(stored)
                if pending is not None:
                    # Though nothing is to be written: the next key must not find it here.
                    self.touched = True
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
                and at_us <= self.clocks[timer_families.clock_of(domain, setting[2])]
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
            if old is None and (stored := view.get(by_tag)) is not None:
                old = unpack_setting(stored)
            if old == new:
                continue
            if delta is not None:
                for setting, count in ((old, -1), (new, 1)):
                    at_us = None if setting is None else work_us(domain, tag, setting)
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


# User code is given it, and must not write to it.
_NO_PERCENTILES: Mapping[int, int] = MappingProxyType({})

_LOW_WATERMARK, _WALL = timer_families.timers(LOW_WATERMARK), timer_families.timers(WALL_TIME)


def pending_by(report: Report, clock: int) -> int:
    """Return when the first timer of a clock is due; MAX_TIMESTAMP if there is none.

    >>> pending_by(Report(wall_timer_us=7), 1), pending_by(Report(), 0) == MAX_TIMESTAMP
    (7, True)
    """
    if clock == LOW_WATERMARK:
        return report.low_watermark_timer_us
    if clock == WALL_TIME:
        return report.wall_timer_us
    _, percentile = timer_families.domain_of(clock)
    return dict(report.percentile_timers).get(percentile, MAX_TIMESTAMP)


def percentiles_of(
    spec: ComputationSpec, clocks: Mapping[int, int], report: Report
) -> Mapping[int, int]:
    """Return the low watermarks of the percentiles that something waits for, or may.

    Args:
        spec: The computation.
        clocks: Percentile -> input low watermark, 100 among them.
        report: What was pending in the interval before.
    """
    if len(clocks) == 1 and not spec.percentiles and not report.percentile_timers:
        return _NO_PERCENTILES
    waiting = (p for p, _ in report.percentile_timers)
    # A timer whose percentile nobody declares any more waits for the low watermark.
    return {p: clocks.get(p, clocks[100]) for p in {*spec.percentiles, *clocks, *waiting} - {100}}


def report_of(key_rows: KeyRows, before: Report, percentiles: Iterable[int]) -> Report:
    """Return what pins the low watermark once a bundle's mutations are committed.

    Args:
        key_rows: What the bundle changed.
        before: What pinned it before.
        percentiles: Those that something waits for, or may.
    """
    if before == NOTHING_PENDING and not key_rows.timed and key_rows.delta is None:
        return before
    timers_us = earliest_us(key_rows, _LOW_WATERMARK, before.low_watermark_timer_us)
    wall_us = earliest_us(key_rows, _WALL, before.wall_timer_us)
    held_us = earliest_us(key_rows, timer_families.HOLDS, before.hold_us)
    waiting = {
        p: earliest_us(
            key_rows,
            timer_families.timers(timer_families.clock_of(LOW_WATERMARK, p)),
            pending_by(before, timer_families.clock_of(LOW_WATERMARK, p)),
        )
        for p in sorted(percentiles)
    }
    percentile_timers = tuple((p, us) for p, us in waiting.items() if us < MAX_TIMESTAMP)
    outstanding = None
    if key_rows.delta is not None:
        outstanding = before.outstanding
        if outstanding is None:
            outstanding = Outstanding.of(timer_families.pending_us(key_rows.view))
        outstanding = outstanding.changed(key_rows.delta)
    return Report(
        timers_us,
        wall_us,
        held_us,
        percentile_timers=percentile_timers,
        outstanding=outstanding,
        timers=before.timers + key_rows.counts[LOW_WATERMARK],
        wall_timers=before.wall_timers + key_rows.counts[WALL_TIME],
    )


def earliest_us(key_rows: KeyRows, prefix: bytes, before_us: int) -> int:
    """Return the first instant under a prefix of rows ordered by time, as the commit leaves them.

    Args:
        key_rows: What the bundle changed.
        prefix: Of the rows.
        before_us: The first instant under it before; MAX_TIMESTAMP if there was no row.

    Returns:
        Microseconds; MAX_TIMESTAMP if no row is left.
    """
    mutations, earliest = key_rows.mutations, MAX_TIMESTAMP
    for row in key_rows.timed:
        if row.startswith(prefix) and mutations[row] is not None:
            earliest = min(earliest, row_codec.instant_behind(prefix, row))
    if earliest <= before_us:
        return earliest
    first = prefix + row_codec.time8(before_us)
    if not any(row.startswith(first) for row in key_rows.freed):
        return before_us
    # A cache that is behind walks what was deleted since: only what may be the first is looked at.
    for row, _ in key_rows.view.scan(first, prefix + row_codec.time8(earliest)):
        if mutations.get(row, b"") is not None:
            return row_codec.instant_behind(prefix, row)
    return earliest
