"""Remapping: what key intervals of another map begin with, of the rows of those before.

An interval that is new has the rows of its range, goes on with the numbers of commits where the one
that was furthest stood, and reports what its rows say. So its low watermark begins where theirs
stood, and nothing passes it. Its id is above all that its computation ever had: what it produces
and what it commits has names of its own.

Source: MillWheel, "Architecture" (7.1: intervals split and merge; 7.2: no low watermark passes a
hole in the map).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

import xxhash

from millrace.model.errors import CheckpointMismatch
from millrace.model.time import MAX_TIMESTAMP
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.outstanding import Outstanding
from millrace.watermark.report import Report
from millrace.windmill import rows
from millrace.windmill.all_keys import ALL_KEYS_ROW
from millrace.windmill.dividing import Cut, Pair, of_range, together


@dataclass(frozen=True)
class IntervalSeed:
    """Where an interval stands that had a commit.

    Attributes:
        interval: The interval.
        number: Of its last commit.
        chain: That commit's.
        report: Its last report.
        pairs: All its rows.
    """

    interval: KeyInterval
    number: int
    chain: int
    report: Report
    pairs: Sequence[Pair]


def resized(intervals: IntervalMap, count: int, *, first_id: int) -> IntervalMap:
    """Return a map of some intervals of equal size.

    An interval that is in both keeps its id.

    Args:
        intervals: The map before.
        count: A power of two.
        first_id: Of those that are new; above all that the computation ever had.

    >>> made = resized(IntervalMap.uniform(1), 2, first_id=1)
    >>> [(one.id, one.start) for one in made.intervals]
    [(1, 0), (2, 9223372036854775808)]
    """
    known = {(one.start, one.end): one for one in intervals.intervals}
    return IntervalMap(
        [
            known.get((one.start, one.end), KeyInterval(first_id + one.id, one.start, one.end))
            for one in IntervalMap.uniform(count).intervals
        ]
    )


def remade(interval: KeyInterval, before: Sequence[IntervalSeed], cut: Cut) -> IntervalSeed | None:
    """Return where an interval of another map begins; None if nothing was ever there.

    Args:
        interval: The new one.
        before: Intervals before it that overlap it and had a commit.
        cut: Cuts chunks of all keys by hash.

    Raises:
        CheckpointMismatch: What they keep for all keys is not the same; or they keep their cells in
            two shapes.
    """
    if not before:
        return None
    versions = sorted({one.report.version for one in before})
    if len(versions) > 1:
        raise CheckpointMismatch(
            f"key intervals {[one.interval.id for one in before]} are to be one, and have "
            f"their cells in shapes {versions}: cells were changed, and some have not run since. "
            "Keep the number of key intervals, or raise it: then none come together."
        )
    ranges = (of_range(one.pairs, interval.start, interval.end, cut) for one in before)
    pairs = together(ranges)
    counted = any(one.report.outstanding is not None for one in before)
    names = b"".join(struct.pack("<QQ", one.interval.id, one.chain) for one in before)
    return IntervalSeed(
        interval,
        max(one.number for one in before),
        xxhash.xxh3_64_intdigest(names, seed=interval.id),
        report_of_rows(pairs, version=versions[0], counted=counted),
        pairs,
    )


def report_of_rows(pairs: Iterable[Pair], *, version: int = 0, counted: bool = False) -> Report:
    """Return what rows say pins the low watermark of their interval.

    How the work is spread is known where it is kept by key; of chunks and their timers it is not,
    until the interval has its next bundle.

    Args:
        pairs: All rows of an interval.
        version: Which shape its cells have.
        counted: Whether it is asked how the work is spread.
    """
    timers: dict[int, int] = {}
    counts = [0, 0]
    held_us = ids_us = MAX_TIMESTAMP
    pending: dict[int, int] = {}
    of_many = False
    for row in starmap(rows.unpack, (pair for pair in pairs if pair[0][:1] in _PINNING)):
        work_us = None
        if isinstance(row, rows.TimerRow):
            timers[row.clock] = min(timers.get(row.clock, MAX_TIMESTAMP), row.at_us)
            counts[row.domain] += 1
            work_us = rows.work_us(row.domain, row.tag, row.setting)
            of_many = of_many or row.key_row == ALL_KEYS_ROW
        elif isinstance(row, rows.HoldRow):
            held_us = min(held_us, row.at_us)
        elif isinstance(row, rows.KeyHoldRow):
            work_us = row.at_us
        elif isinstance(row, rows.ExpiryRow):
            ids_us = min(ids_us, row.expires_us)
        else:
            of_many = True
        if work_us is not None:
            pending[work_us] = pending.get(work_us, 0) + 1
    return Report(
        timers.pop(0, MAX_TIMESTAMP),
        timers.pop(1, MAX_TIMESTAMP),
        held_us,
        ids_us,
        tuple(
            (rows.domain_of(clock)[1], at_us)
            for clock, at_us in sorted(timers.items())
            if at_us < MAX_TIMESTAMP
        ),
        outstanding=Outstanding().changed(pending) if counted and not of_many else None,
        version=version,
        timers=counts[0],
        wall_timers=counts[1],
    )


_PINNING = frozenset([rows.TIMERS, rows.HOLDS, rows.HOLD_BY_KEY, rows.IDS_BY_EXPIRY, rows.CHUNKS])
