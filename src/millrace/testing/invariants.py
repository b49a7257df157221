"""Invariants of the kernel, checked from the outside: they read the store, not the kernel.

After dask distributed's ``validate``: a violated invariant names what was found, and is a bug.
"""

from __future__ import annotations

import msgspec

from millrace.model.errors import InvariantViolation
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import Caches, HardState, MemoryCaches, bring
from millrace.watermark.outstanding import Outstanding
from millrace.watermark.report import Report
from millrace.watermark.shown import LowWatermarks
from millrace.windmill import rows
from millrace.windmill.timers import decode_timer_row, domain_of, encode_setting, pending_us


def check_low_watermarks(before: LowWatermarks, after: LowWatermarks) -> None:
    """Check that no low watermark moved back, and that no output leads its input."""
    for earlier, later in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        for name, was_us in earlier.items():
            _hold(later[name] >= was_us, f"low watermark of {name} moved {was_us}->{later[name]}")
    for name, input_us in after.inputs.items():
        _hold(
            after.outputs[name] <= input_us,
            f"{name} shows consumers {after.outputs[name]} while its input is at {input_us}",
        )


def check_interval(
    state: HardState,
    caches: Caches,
    computation: str,
    interval: int,
    report: Report,
    low_watermark_us: int,
) -> None:
    """Check one interval: log, cache, timers, holds and report say the same."""
    where = f"{computation!r}, interval {interval}"
    number = max(state.commits.numbers(computation).get(interval, ()), default=0)
    number = max(number, *state.snapshots.numbers(computation).get(interval, (0,)))
    fresh = MemoryCaches().open(computation, interval)
    bring(fresh, state, computation, interval, number)
    with fresh.view() as view:
        stored = dict(view.scan(b"A", b"["))
    cache = caches.open(computation, interval)
    if cache.position:
        _hold(cache.position <= number, f"{where}: cache at {cache.position}, log at {number}")
        bring(cache, state, computation, interval, number)
        with cache.view() as view:
            _hold(dict(view.scan(b"A", b"[")) == stored, f"{where}: the cache differs from the log")

    by_time: set[tuple[bytes, bytes]] = set()
    holds: set[bytes] = set()
    earliest = {0: MAX_TIMESTAMP, 1: MAX_TIMESTAMP}
    for row, value in stored.items():
        if row.startswith(rows.TIMERS):
            clock, at_us = row[1], rows.time_of(row[2:10])
            domain, percentile = domain_of(clock)
            timer = decode_timer_row(value)
            named = (
                rows.key_row(row[10:18], timer.key) + bytes([domain]) + rows.last_part(timer.tag)
            )
            setting = encode_setting((at_us, timer.hold_us, percentile))
            if timer.hold_us is not None:
                holds.add(rows.HOLDS + rows.time8(timer.hold_us) + named)
            by_time.add((rows.TIMER_BY_TAG + named, setting))
            earliest[clock] = min(earliest.get(clock, MAX_TIMESTAMP), at_us)
        elif row.startswith(rows.HOLD_BY_KEY):
            holds.add(rows.HOLDS + value + row[1:])
    found = {(row, value) for row, value in stored.items() if row.startswith(rows.TIMER_BY_TAG)}
    _hold(by_time == found, f"{where}: timers by time and by tag differ: {by_time ^ found}")
    _hold(
        earliest[0] > low_watermark_us or earliest[0] == MAX_TIMESTAMP,
        f"{where}: a timer for {earliest[0]} is pending at low watermark {low_watermark_us}",
    )
    kept = {row for row in stored if row.startswith(rows.HOLDS)}
    _hold(kept == holds, f"{where}: holds by time and by owner differ: {kept ^ holds}")
    held = [rows.time_of(row[1:9]) for row in holds]
    ids_us = min(_check_ids(stored, where, low_watermark_us), default=MAX_TIMESTAMP)
    waiting = tuple((domain_of(c)[1], at_us) for c, at_us in sorted(earliest.items()) if c > 1)
    truth = Report(earliest[0], earliest[1], min(held, default=MAX_TIMESTAMP), ids_us, waiting)
    _hold(
        msgspec.structs.replace(report, outstanding=None) == truth,
        f"{where}: reported {report}, the store says {truth}",
    )
    if report.outstanding is not None:
        with fresh.view() as view:
            spread = Outstanding.of(pending_us(view)).coarser(report.outstanding.shift)
        _hold(report.outstanding == spread, f"{where}: {report.outstanding}, but it is {spread}")


def _check_ids(stored: dict[bytes, bytes], where: str, low_watermark_us: int) -> set[int]:
    """Check that delivered ids are the same by name, commit and expiry; return the expiries."""
    lots = {(row[1:9], row[9:17]) for row in stored if row.startswith(rows.IDS_BY_COMMIT)}
    due = {(row[9:17], row[1:9]) for row in stored if row.startswith(rows.IDS_BY_EXPIRY)}
    _hold(lots == due, f"{where}: lots of ids by commit and by expiry differ: {lots ^ due}")
    packed = [lot for row, lot in stored.items() if row.startswith(rows.IDS_BY_COMMIT)]
    named = sorted(rows.IDS + lot[n : n + 24] for lot in packed for n in range(0, len(lot), 24))
    found = sorted(row for row in stored if row.startswith(rows.IDS))
    _hold(named == found, f"{where}: {len(found)} ids by name, {len(named)} in lots")
    expiries = {rows.time_of(expiry) for _, expiry in lots}
    _hold(
        all(at_us > low_watermark_us for at_us in expiries),
        f"{where}: ids that expired at {min(expiries, default=0)} are kept at {low_watermark_us}",
    )
    return expiries


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvariantViolation(otherwise)
