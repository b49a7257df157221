"""State transfer: from the key intervals of one map to those of another, as snapshots.

A new interval begins with a snapshot, under an id that was reserved for it before. No log is
copied: the parents' rows are read by range from their snapshots and commits. The new intervals are
valid as soon as a completion with their map is in the epoch log, and not before.

A new interval has the rows of its range. It continues the numbering of commits after the parents'
highest number, and computes its report from its rows. So its low watermark begins at that of its
parents. Its id is above all that its computation ever had, so its productions and commits have
names of their own.

Rows of one key move by its hash. Rows of all keys are copied to each part: tables of side inputs,
the timers of chunks, the last consumed record of each sender. Rows of many keys, a batch of ids or
a chunk, are cut.

Source: MillWheel, "Architecture" (7.1: intervals split and merge; 7.2: no low watermark passes a
hole in the map); 6.1.1 (checkpoints).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as without
from itertools import chain, starmap
from typing import Final

import numpy as np
import xxhash
from msgspec.structs import replace

from millrace.dataflow.columnar.plan import cut_chunk
from millrace.epochlog.entries import Completion, Manifest, interval_map, partition_of
from millrace.epochlog.run_log import RunLog
from millrace.kernel import families, row_codec, timer_families
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.model.errors import (
    CheckpointMismatch,
    DamagedStore,
    InvariantViolation,
    PipelineError,
)
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import HardState, MemoryCache, SnapshotHead, Snapshots, bring, encode_snapshot
from millrace.store.snapshots import parts_of
from millrace.watermark.intervals import IDS, IntervalMap, KeyInterval
from millrace.watermark.map_change import Remap, Remapped, remapped
from millrace.watermark.percentiles import Outstanding
from millrace.watermark.report import NOTHING_PENDING, Report

#: A row and its value.
Pair = tuple[bytes, bytes]

#: Returns what a chunk has of the keys with hashes in [start, end); None if nothing.
Cut = Callable[[bytes, int, int], bytes | None]

#: Letter -> where in its rows the part begins that names a key.
_KEYED: Final = {
    families.VALUES: 1,
    families.MAP: 1,
    families.BAG: 1,
    timer_families.TIMER_BY_TAG: 1,
    timer_families.HOLD_BY_KEY: 1,
    families.IDS: 1,
    timer_families.HOLDS: 9,
    timer_families.TIMERS: 10,
}
_HASH: Final = row_codec.HASH_BYTES


def of_range(pairs: Iterable[Pair], start: int, end: int, cut: Cut) -> Iterator[Pair]:
    """Yield what the rows of an interval say of the keys with hashes in ``[start, end)``.

    Args:
        pairs: All rows of the interval.
        start: The lowest hash.
        end: One past the highest.
        cut: Cuts chunks.

    Raises:
        DamagedStore: A row is of no family.
    """
    for row, value in pairs:
        family = row[:1]
        at = _KEYED.get(family)
        if at is not None:
            hashed = int.from_bytes(row[at : at + _HASH])
            if start <= hashed < end or row.startswith(ALL_KEYS_ROW, at):
                yield row, value
        elif family == families.IDS_BY_COMMIT:
            yield from _id_batch(families.IdBatchRow.unpack(row, value), start, end)
        elif family == families.CHUNKS:
            if (left := cut(value, start, end)) is not None:
                yield row, left
        elif family == families.CHANNELS:
            yield row, value
        elif family != families.IDS_BY_EXPIRY:  # made of the batches that are left
            raise DamagedStore(f"row {row[:40]!r} is of no family that can be divided.")


def together(parts: Iterable[Iterable[Pair]]) -> list[Pair]:
    """Return the rows of several intervals, or parts of some, as those of one, ascending.

    Args:
        parts: The rows of each; no key is in two of them.

    Raises:
        CheckpointMismatch: What stands for all keys of an interval is not the same in two of them.
    """
    rows: dict[bytes, bytes] = {}
    for part in parts:
        for row, value in part:
            named = _free(rows, row, value) if row[:1] == families.CHUNKS else row
            known = rows.get(named, value)
            rows[named] = value if known == value else _one_of(row, known, value)
    return sorted(rows.items())


def _id_batch(batch: families.IdBatchRow, start: int, end: int) -> Iterator[Pair]:
    entries = families.entries_of(batch.entries)
    hashes = np.ascontiguousarray(entries[:, :_HASH]).view(">u8").ravel().astype(np.uint64)
    chosen = (hashes >= np.uint64(start)) & (hashes <= np.uint64(end - 1))
    if chosen.any():
        left = batch._replace(entries=entries[chosen].tobytes())
        yield left.pack()
        yield left.expiry_row().pack()


def _free(rows: dict[bytes, bytes], row: bytes, value: bytes) -> bytes:
    """Return a row for a chunk: commits of two intervals may have one number."""
    chunk = families.ChunkRow.unpack(row, value)
    while row in rows:
        chunk = chunk._replace(n=chunk.n + 1)
        row = chunk.pack()[0]
    return row


def _one_of(row: bytes, known: bytes, value: bytes) -> bytes:
    """Return the value of a row that two intervals have."""
    if row[:1] == families.IDS_BY_COMMIT:  # two commits with one number
        return known + value
    if row[:1] == families.CHANNELS:  # nothing is under way: what comes next is beyond both
        return max(known, value)
    raise CheckpointMismatch(
        f"two key intervals that are to be one differ in row {row[:40]!r}, which stands for all "
        "keys: a table of a side input, or when its entries expire. Expected the same in both. "
        "Keep the number of key intervals, or raise it: then none come together."
    )


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
    known = {(interval.start, interval.end): interval for interval in intervals.intervals}
    return IntervalMap(
        [
            known.get(
                (interval.start, interval.end),
                KeyInterval(first_id + interval.id, interval.start, interval.end),
            )
            for interval in IntervalMap.uniform(count).intervals
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
    versions = sorted({seed.report.version for seed in before})
    if len(versions) > 1:
        raise CheckpointMismatch(
            f"key intervals {[seed.interval.id for seed in before]} are to be one, and have "
            f"their cells in shapes {versions}: cells were changed, and some have not run since. "
            "Keep the number of key intervals, or raise it: then none come together."
        )
    ranges = (of_range(seed.pairs, interval.start, interval.end, cut) for seed in before)
    pairs = together(ranges)
    counted = any(seed.report.outstanding is not None for seed in before)
    names = b"".join(struct.pack("<QQ", seed.interval.id, seed.chain) for seed in before)
    return IntervalSeed(
        interval,
        max(seed.number for seed in before),
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
    for row in starmap(families.unpack, (pair for pair in pairs if pair[0][:1] in _PINNING)):
        work_us = None
        if isinstance(row, timer_families.TimerRow):
            timers[row.clock] = min(timers.get(row.clock, MAX_TIMESTAMP), row.at_us)
            counts[row.domain] += 1
            work_us = timer_families.work_us(row.domain, row.tag, row.setting)
            of_many = of_many or row.key_row == ALL_KEYS_ROW
        elif isinstance(row, timer_families.HoldRow):
            held_us = min(held_us, row.at_us)
        elif isinstance(row, timer_families.KeyHoldRow):
            work_us = row.at_us
        elif isinstance(row, families.ExpiryRow):
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
            (timer_families.domain_of(clock)[1], at_us)
            for clock, at_us in sorted(timers.items())
            if at_us < MAX_TIMESTAMP
        ),
        outstanding=Outstanding().changed(pending) if counted and not of_many else None,
        version=version,
        timers=counts[0],
        wall_timers=counts[1],
    )


_PINNING = frozenset(
    [
        timer_families.TIMERS,
        timer_families.HOLDS,
        timer_families.HOLD_BY_KEY,
        families.IDS_BY_EXPIRY,
        families.CHUNKS,
    ]
)

#: Returns all rows of an interval at a commit, given that commit's number and chain.
Read = Callable[[KeyInterval, int, int], Sequence[Pair]]


#: Computation -> interval id -> a cache that was built before it is asked for.
Ready = Mapping[str, MutableMapping[int, MemoryCache]]


#: Returns a map after remaps with its intervals grouped into tasks.
Grouping = Callable[[Remapped], IntervalMap]


def same(remapped: Remapped) -> IntervalMap:
    """Return the map as it is: each task has about as many intervals."""
    return remapped.intervals


def first_id(ids: Mapping[str, int], name: str, intervals: IntervalMap) -> int:
    """Return the first id that no key interval of a computation was given yet."""
    return max(ids.get(name, 0), 1 + max(interval.id for interval in intervals.intervals))


def maps_after(
    maps: Mapping[str, IntervalMap],
    ids: Mapping[str, int],
    remaps: Mapping[str, Iterable[Remap]],
    grouped: Grouping = same,
) -> dict[str, Remapped]:
    """Return the maps of computations after some remaps; nothing is done yet.

    Args:
        maps: Those before.
        ids: See :func:`first_id`.
        remaps: Computation -> what changes.
        grouped: How intervals are grouped into tasks then.

    Raises:
        PipelineError: There is no such computation or interval, or its map cannot become that.
    """
    remaps_of = {}
    for name, asked in remaps.items():
        if name not in maps:
            raise PipelineError(
                f"no computation {name!r} has key intervals here; those that have: "
                f"{', '.join(sorted(maps)) or 'none'}."
            )
        try:
            after = remapped(maps[name], asked, first_id=first_id(ids, name, maps[name]))
        except ValueError as error:
            raise PipelineError(f"computation {name!r}: {error}") from error
        if max(after.parents, default=0) >= IDS:
            raise PipelineError(
                f"computation {name!r} has had {IDS:,} key intervals, and ids of productions have "
                "no room to tell more from one another. Leave its intervals as they are."
            )
        remaps_of[name] = without(after, intervals=grouped(after))
    return remaps_of


def remap(
    run_log: RunLog,
    remaps: Mapping[str, Iterable[Remap]],
    *,
    grouped: Grouping = same,
    ready: Ready | None = None,
) -> dict[str, Remapped]:
    """Split and merge key intervals between two epochs of a run; return their maps.

    A claim reserves the ids of those that are made, each gets a snapshot, and it is done with a
    completion that has the new maps. What live tasks left is sealed before.

    Args:
        run_log: Of the run.
        remaps: Computation -> what changes.
        grouped: How intervals are grouped into tasks then.
        ready: Of a :class:`~millrace.balance.preparation.Preparation`.

    Raises:
        PipelineError: That cannot be, or not now; nothing was written.
        CheckpointMismatch: Intervals that are to be one differ in what is of all keys.
        ZombieWriter: A newer run has claimed the checkpoint.
    """
    run_log.settle()
    check_between(run_log.completed, run_log.open, drained=run_log.drained)
    maps = run_log.positions.maps
    remapped = maps_after(maps, run_log.ids, remaps, grouped)
    if any(
        remap.intervals != maps[name] for name, remap in remapped.items()
    ):  # else epochs before are kept
        run_log.replace_maps(
            remapped, lambda whole: all_carried(whole, remapped, run_log.state, ready)
        )
    return remapped


def check_between(completed: int, unfinished: Manifest | None, *, drained: bool) -> None:
    """Refuse to change a map but between two epochs.

    Raises:
        PipelineError: An epoch is under way, none has completed, the run has ended for good, or
            live tasks were killed.
    """
    if unfinished is not None and unfinished.live:
        raise PipelineError(
            f"epoch {unfinished.epoch} is under way in real time, and what live tasks have done in "
            "it is of their key intervals. Start the run with realtime=True again, and end it with "
            "run.stop(), or ask it while it runs."
        )
    if unfinished is not None:
        raise PipelineError(
            f"epoch {unfinished.epoch} is unfinished, and key intervals change between epochs. "
            "Start the run and let it finish, or ask it while it runs."
        )
    if completed < 0 or drained:
        why = "was drained: it has ended for good" if drained else "has no complete epoch yet"
        raise PipelineError(f"the checkpoint {why}, so there is nothing to divide.")


def all_carried(
    completion: Completion,
    remapped: Mapping[str, Remapped],
    state: HardState,
    ready: Ready | None = None,
) -> Completion:
    """Write a snapshot for each interval that is made; return what says where all stand.

    Args:
        completion: Where all stand before.
        remapped: Computation -> its map after.
        state: The checkpoint.
        ready: What was read of it already.
    """
    for name, remap in remapped.items():
        read = rows_at(state, name, None if ready is None else ready.get(name))
        completion = carried(completion, name, remap.intervals, read, state.snapshots)
    return completion


def rows_at(
    state: HardState, name: str, ready: MutableMapping[int, MemoryCache] | None = None
) -> Read:
    """Return what reads rows of a computation's intervals from their snapshots and commits.

    Args:
        state: The checkpoint.
        name: Of the computation.
        ready: Interval id -> a cache of it. Wherever that stands, it is brought to the commit that
            is asked for; an interval is taken out as it is read.
    """
    caches = {} if ready is None else ready

    def read(interval: KeyInterval, number: int, last: int) -> Sequence[Pair]:
        cache = caches.pop(interval.id, None) or MemoryCache(name, interval.id)
        bring(cache, state, name, interval.id, number, last)
        with cache.view() as view:
            return list(chain.from_iterable(view.everything()))

    return read


def carried(
    completion: Completion,
    name: str,
    target: IntervalMap,
    read: Read,
    snapshots: Snapshots,
    *,
    whole: bool = False,
) -> Completion:
    """Write a snapshot for each interval of a map; return what says where they stand.

    An interval that is in both maps stays as it is. One that is read is in memory at a time, or all
    that go into one that is written; it is read once, however many it is divided into.

    Args:
        completion: Where the intervals before stand, and those of other computations.
        name: Of the computation.
        target: The map after.
        read: Reads intervals of the one before.
        snapshots: Where to.
        whole: Whether those that stay are written, too: to another checkpoint.

    Raises:
        CheckpointMismatch: Intervals that are to be one differ in what they keep for all keys.
        InvariantViolation: Somebody else has written under an id that was reserved.
    """
    before = interval_map(completion.intervals[name]).intervals
    read = _once(read)
    numbers = completion.numbers.get(name, {})
    chains, reports = completion.chains.get(name, {}), completion.reports.get(name, {})

    def interval_seed(interval: KeyInterval, *, rows: bool = True) -> IntervalSeed:
        number, last = numbers[interval.id], chains.get(interval.id, 0)
        report = reports.get(interval.id, NOTHING_PENDING)
        return IntervalSeed(
            interval, number, last, report, read(interval, number, last) if rows else ()
        )

    seeds, staying = list[IntervalSeed](), {*before}
    had = [interval_before for interval_before in before if numbers.get(interval_before.id)]
    starts, ends = [interval.start for interval in had], [interval.end for interval in had]
    for interval in target.intervals:
        over = had[bisect_right(ends, interval.start) : bisect_left(starts, interval.end)]
        if interval in staying:
            remade_seed = interval_seed(interval, rows=whole) if over else None
        else:
            remade_seed = remade(interval, [interval_seed(source) for source in over], cut_chunk)
        if remade_seed is None:
            continue
        if whole or interval not in staying:
            _write(name, remade_seed, snapshots)
        seeds.append(without(remade_seed, pairs=()))
    return replace(
        completion,
        intervals=completion.intervals | {name: partition_of(target)},
        numbers=completion.numbers | {name: {seed.interval.id: seed.number for seed in seeds}},
        chains=completion.chains | {name: {seed.interval.id: seed.chain for seed in seeds}},
        reports=completion.reports | {name: {seed.interval.id: seed.report for seed in seeds}},
    )


def _once(read: Read) -> Read:
    """Return what reads an interval once while none but it is asked for; it keeps that one's rows.

    Maps ascend, so all that an interval is divided into come one after the other.
    """
    rows: dict[KeyInterval, Sequence[Pair]] = {}

    def of(interval: KeyInterval, number: int, last: int) -> Sequence[Pair]:
        if interval not in rows:
            rows.clear()  # first, so that two are not in memory while the next is read
            rows[interval] = read(interval, number, last)
        return rows[interval]

    return of


def _write(name: str, seed: IntervalSeed, snapshots: Snapshots) -> None:
    interval = seed.interval.id
    head = SnapshotHead(name, interval, seed.number, seed.chain)
    pieces = encode_snapshot(head, parts_of(iter(seed.pairs)))
    if not snapshots.put(name, interval, seed.number, pieces):
        raise InvariantViolation(
            f"there is a snapshot {seed.number} of interval {interval} of {name!r}, whose id was "
            "reserved for an interval that is to be made now. Two drivers write one checkpoint."
        )
