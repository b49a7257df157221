"""Invariants of the kernel, checked from the outside: they read the store, not the kernel.

After dask distributed's ``validate``: a violated invariant names what was found, and is a bug.
"""

from __future__ import annotations

import itertools

import msgspec

from millrace.compile.topology import ComputationSpec
from millrace.kernel import families, row_codec, timer_families
from millrace.model.errors import InvariantViolation
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import Caches, HardState, MemoryCaches, bring
from millrace.watermark.percentiles import Outstanding
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import Report


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
    spec: ComputationSpec,
    interval: int,
    report: Report,
    low_watermark_us: int,
) -> None:
    """Check one interval: log, cache, timers, holds and report say the same."""
    computation = spec.name
    where = f"{spec.title!r}, interval {interval}"
    number = max(state.commits.numbers(computation).get(interval, ()), default=0)
    number = max(number, *state.snapshots.numbers(computation).get(interval, (0,)))
    fresh = MemoryCaches().open(computation, interval)
    bring(fresh, state, computation, interval, number)
    with fresh.view() as view:
        stored = dict(row_codec.everything(view))
    cache = caches.open(computation, interval)
    if cache.position:
        _hold(cache.position <= number, f"{where}: cache at {cache.position}, log at {number}")
        bring(cache, state, computation, interval, number)
        with cache.view() as view:
            _hold(
                dict(row_codec.everything(view)) == stored,
                f"{where}: the cache differs from the log",
            )

    by_time: set[tuple[bytes, bytes]] = set()
    holds: set[bytes] = set()
    holds_us: list[int] = []
    earliest = {0: MAX_TIMESTAMP, 1: MAX_TIMESTAMP}
    counts = [0, 0]
    for row in itertools.starmap(families.unpack, stored.items()):
        if isinstance(row, timer_families.TimerRow):
            by_time.add(row.tag_row().pack())
            counts[row.domain] += 1
            earliest[row.clock] = min(earliest.get(row.clock, MAX_TIMESTAMP), row.at_us)
            if (hold := row.hold_row()) is not None:
                holds.add(hold.pack()[0])
                holds_us.append(hold.at_us)
        elif isinstance(row, timer_families.KeyHoldRow):
            holds.add(row.hold_row())
            holds_us.append(row.at_us)
    family = timer_families.TIMER_BY_TAG
    found = {(row, value) for row, value in stored.items() if row.startswith(family)}
    _hold(by_time == found, f"{where}: timers by time and by tag differ: {by_time ^ found}")
    _hold(
        earliest[0] > low_watermark_us or earliest[0] == MAX_TIMESTAMP,
        f"{where}: a timer for {earliest[0]} is pending at low watermark {low_watermark_us}",
    )
    kept = {row for row in stored if row.startswith(timer_families.HOLDS)}
    _hold(kept == holds, f"{where}: holds by time and by owner differ: {kept ^ holds}")
    ids_us = min(_check_ids(stored, where, low_watermark_us), default=MAX_TIMESTAMP)
    waiting = tuple(
        (timer_families.domain_of(clock)[1], at_us)
        for clock, at_us in sorted(earliest.items())
        if clock > 1 and at_us < MAX_TIMESTAMP
    )
    truth = Report(
        earliest[0],
        earliest[1],
        min(holds_us, default=MAX_TIMESTAMP),
        ids_us,
        waiting,
        timers=counts[0],
        wall_timers=counts[1],
    )
    _hold(
        msgspec.structs.replace(report, outstanding=None, version=0) == truth,
        f"{where}: reported {report}, the store says {truth}",
    )
    if report.outstanding is not None:
        if spec.columnar is None:
            with fresh.view() as view:
                spread = Outstanding.of(timer_families.pending_us(view))
        else:
            chunks = (
                (families.chunk_instant(row), chunk)
                for row, chunk in stored.items()
                if row.startswith(families.CHUNKS)
            )
            spread = Outstanding().changed(spec.columnar.pending(chunks))
        spread = spread.coarser(report.outstanding.shift)
        _hold(report.outstanding == spread, f"{where}: {report.outstanding}, but it is {spread}")


def _check_ids(stored: dict[bytes, bytes], where: str, low_watermark_us: int) -> set[int]:
    """Check that delivered ids are the same by name, commit and expiry; return the expiries."""
    said = [
        row
        for row in itertools.starmap(families.unpack, stored.items())
        if isinstance(row, families.IdRow | families.IdBatchRow | families.ExpiryRow)
    ]
    batches = [row for row in said if isinstance(row, families.IdBatchRow)]
    by_commit = {batch.expiry_row() for batch in batches}
    by_expiry = {row for row in said if isinstance(row, families.ExpiryRow)}
    differ = by_commit ^ by_expiry
    _hold(not differ, f"{where}: batches of ids by commit and by expiry differ: {differ}")
    named = sorted(row for batch in batches for row in families.id_rows(batch.entries))
    found = sorted(row.pack()[0] for row in said if isinstance(row, families.IdRow))
    _hold(named == found, f"{where}: {len(found)} ids by name, {len(named)} in batches")
    expiries = {batch.expires_us for batch in batches}
    _hold(
        all(at_us > low_watermark_us for at_us in expiries),
        f"{where}: ids that expired at {min(expiries, default=0)} are kept at {low_watermark_us}",
    )
    return expiries


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvariantViolation(otherwise)
