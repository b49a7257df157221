"""What is pending in an interval after a bundle: the report that the commit carries.

Source: MillWheel 4.5: the oldest work of a computation.
"""

from __future__ import annotations

from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.time import MAX_TIMESTAMP
from millrace.watermark.outstanding import Outstanding
from millrace.watermark.report import Report
from millrace.windmill import rows
from millrace.windmill.key_rows import KeyRows
from millrace.windmill.work import Work


def report_of(key_rows: KeyRows, work: Work) -> Report:
    """Return what pins the low watermark once a bundle's mutations are committed."""
    timers_us, wall_us, held_us = (
        earliest_us(key_rows, prefix)
        for prefix in (rows.timers(LOW_WATERMARK), rows.timers(WALL_TIME), rows.HOLDS)
    )
    waiting = {
        p: earliest_us(key_rows, rows.timers(rows.clock_of(LOW_WATERMARK, p)))
        for p in sorted(work.percentiles)
    }
    percentile_timers = tuple((p, us) for p, us in waiting.items() if us < MAX_TIMESTAMP)
    if key_rows.delta is None:
        return Report(timers_us, wall_us, held_us, percentile_timers=percentile_timers)
    before = work.outstanding
    if before is None:
        before = Outstanding.of(rows.pending_us(key_rows.view))
    return Report(
        timers_us,
        wall_us,
        held_us,
        percentile_timers=percentile_timers,
        outstanding=before.changed(key_rows.delta),
    )


def earliest_us(key_rows: KeyRows, prefix: bytes) -> int:
    """Return the first instant under a prefix of rows ordered by time, as the commit leaves them.

    Returns:
        Microseconds; MAX_TIMESTAMP if no row is left.
    """
    mutations = key_rows.mutations
    stored = next(
        (row for row, _ in rows.scan(key_rows.view, prefix) if mutations.get(row, b"") is not None),
        None,
    )
    made = [row for row in key_rows.timed if row.startswith(prefix) and mutations[row] is not None]
    first = min([*made, stored] if stored is not None else made, default=None)
    return rows.instant_behind(prefix, first) if first is not None else MAX_TIMESTAMP
