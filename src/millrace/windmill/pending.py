"""What is pending in an interval: the report that a commit carries.

The report of the commit before says when each clock's first timer is due, and what the first hold
is. So no row is read to find that nothing is due, and after a bundle only where the first of them
was taken away.

Source: MillWheel 4.5: the oldest work of a computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from millrace.compile.topology import ComputationSpec
from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.time import MAX_TIMESTAMP
from millrace.watermark.outstanding import Outstanding
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill import rows
from millrace.windmill.key_rows import KeyRows

# User code is given it, and must not write to it.
_NO_PERCENTILES: Mapping[int, int] = MappingProxyType({})

_LOW_WATERMARK, _WALL = rows.timers(LOW_WATERMARK), rows.timers(WALL_TIME)


def pending_by(report: Report, clock: int) -> int:
    """Return when the first timer of a clock is due; MAX_TIMESTAMP if there is none.

    >>> pending_by(Report(wall_timer_us=7), 1), pending_by(Report(), 0) == MAX_TIMESTAMP
    (7, True)
    """
    if clock == LOW_WATERMARK:
        return report.low_watermark_timer_us
    if clock == WALL_TIME:
        return report.wall_timer_us
    _, percentile = rows.domain_of(clock)
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
    held_us = earliest_us(key_rows, rows.HOLDS, before.hold_us)
    waiting = {
        p: earliest_us(
            key_rows,
            rows.timers(rows.clock_of(LOW_WATERMARK, p)),
            pending_by(before, rows.clock_of(LOW_WATERMARK, p)),
        )
        for p in sorted(percentiles)
    }
    percentile_timers = tuple((p, us) for p, us in waiting.items() if us < MAX_TIMESTAMP)
    outstanding = None
    if key_rows.delta is not None:
        outstanding = before.outstanding
        if outstanding is None:
            outstanding = Outstanding.of(rows.pending_us(key_rows.view))
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
    mutations, earliest = key_rows.mutations, before_us
    if key_rows.freed:
        first = prefix + rows.time8(before_us)
        if any(row.startswith(first) for row in key_rows.freed):
            left = (row for row, _ in rows.scan(key_rows.view, prefix) if _is_left(mutations, row))
            found = next(left, None)
            earliest = MAX_TIMESTAMP if found is None else rows.instant_behind(prefix, found)
    for row in key_rows.timed:
        if row.startswith(prefix) and mutations[row] is not None:
            earliest = min(earliest, rows.instant_behind(prefix, row))
    return earliest


def _is_left(mutations: Mapping[bytes, bytes | None], row: bytes) -> bool:
    return mutations.get(row, b"") is not None
