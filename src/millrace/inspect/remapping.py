"""Remapping: the key intervals of a computation, written to another checkpoint as those of a map.

Source: MillWheel, "Architecture" (7.1: intervals split and merge); docs/changing.md.
"""

from __future__ import annotations

from dataclasses import replace as without
from itertools import chain

from msgspec.structs import replace

from millrace.dataflow.columns.cutting import cut_chunk
from millrace.inspect.checkpoint import Checkpoint
from millrace.inspect.computation import Interval
from millrace.store import HardState, SnapshotHead, encode_snapshot
from millrace.store.snapshot import parts_of
from millrace.watermark.intervals import KeyInterval
from millrace.watermark.report import NOTHING_PENDING
from millrace.windmill.manifest import Completion, interval_map, partition_of
from millrace.windmill.remapping import Standing, remade, resized


def remapped(
    found: Checkpoint, name: str, intervals: int, made: HardState, completion: Completion
) -> Completion:
    """Write a snapshot of each interval of a map of equal ones; return what says where they stand.

    One interval that is read is in memory at a time, or all that goes into one that is written.

    Args:
        found: The checkpoint that is read.
        name: Of the computation.
        intervals: How many, a power of two.
        made: The checkpoint that is written.
        completion: Where the intervals before them stand, and those of other computations.

    Raises:
        CheckpointMismatch: Intervals that are to be one differ in what they keep for all keys.
    """
    target = resized(interval_map(completion.intervals[name]), intervals)
    earlier = [one for one in found.intervals(name) if one.commit]
    stand = list[Standing]()
    for interval in target.intervals:
        over = [one for one in earlier if one.start < interval.end and interval.start < one.end]
        new = remade(interval, [_standing(found, name, one) for one in over], cut_chunk)
        if new is None:
            continue
        head = SnapshotHead(name, interval.id, new.number, new.chain)
        made.snapshots.put(
            name, interval.id, new.number, encode_snapshot(head, parts_of(iter(new.pairs)))
        )
        stand.append(without(new, pairs=()))
    return replace(
        completion,
        intervals=completion.intervals | {name: partition_of(target)},
        numbers=completion.numbers | {name: {one.interval.id: one.number for one in stand}},
        chains=completion.chains | {name: {one.interval.id: one.chain for one in stand}},
        reports=completion.reports | {name: {one.interval.id: one.report for one in stand}},
    )


def _standing(found: Checkpoint, name: str, one: Interval) -> Standing:
    with found.rows(name, one) as view:
        pairs = list(chain.from_iterable(view.everything()))
    report = one.report or NOTHING_PENDING
    return Standing(KeyInterval(one.id, one.start, one.end), one.commit, one.chain, report, pairs)
