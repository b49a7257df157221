"""Carrying: state from the key intervals of one map to those of another, as snapshots.

An interval that is made begins with a snapshot, under an id that was reserved for it before. No log
is copied: what its parents had is read by range from their snapshots and commits. Nothing of it
counts before a completion with the other map is in the epoch log, and everything after.

Source: MillWheel, "Architecture" (7.1: intervals split and merge); 6.1.1 (checkpoints).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace as without
from itertools import chain

from msgspec.structs import replace

from millrace.dataflow.columnar.plan import cut_chunk
from millrace.model.errors import InvariantViolation, PipelineError
from millrace.store import HardState, MemoryCache, SnapshotHead, Snapshots, bring, encode_snapshot
from millrace.store.snapshots import parts_of
from millrace.watermark.intervals import IDS, IntervalMap, KeyInterval
from millrace.watermark.map_change import Remap, Remapped, remapped
from millrace.watermark.report import NOTHING_PENDING
from millrace.windmill.dividing import Pair
from millrace.windmill.manifest import Completion, LiveMark, Manifest, interval_map, partition_of
from millrace.windmill.remapping import IntervalSeed, remade

#: Returns all rows of an interval at a commit, given that commit's number and chain.
Read = Callable[[KeyInterval, int, int], Sequence[Pair]]


#: Computation -> interval id -> a cache that was built before it is asked for.
Ready = Mapping[str, MutableMapping[int, MemoryCache]]


#: Returns a map after remaps with its intervals grouped into tasks.
Grouping = Callable[[Remapped], IntervalMap]


def same(made: Remapped) -> IntervalMap:
    """Return the map as it is: each task has about as many intervals."""
    return made.intervals


def first_id(ids: Mapping[str, int], name: str, intervals: IntervalMap) -> int:
    """Return the first id that no key interval of a computation was given yet.

    Args:
        ids: As the last claim says.
        name: Of the computation.
        intervals: Its map.
    """
    return max(ids.get(name, 0), 1 + max(one.id for one in intervals.intervals))


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
    made = {}
    for name, asked in remaps.items():
        if name not in maps:
            raise PipelineError(
                f"no computation {name!r} has key intervals here; those that have: "
                f"{', '.join(sorted(maps)) or 'none'}."
            )
        owners = dict.fromkeys(maps[name].places, 0)
        try:
            after = remapped(maps[name], owners, asked, first_id=first_id(ids, name, maps[name]))
        except ValueError as error:
            raise PipelineError(f"computation {name!r}: {error}") from error
        if max(after.parents, default=0) >= IDS:
            raise PipelineError(
                f"computation {name!r} has had {IDS:,} key intervals, and ids of productions have "
                "no room to tell more from one another. Leave its intervals as they are."
            )
        made[name] = without(after, intervals=grouped(after))
    return made


def check_between(
    completed: int, unfinished: Manifest | None, live: LiveMark | None, *, drained: bool
) -> None:
    """Refuse to change a map but between two epochs.

    Raises:
        PipelineError: An epoch is under way, none has completed, the run has ended for good, or
            live tasks were killed.
    """
    if live is not None and not live.last:
        raise PipelineError(
            f"epoch {completed} is a mark at which live tasks are not known to have stopped, and "
            "what they did since is of their key intervals. Start the run with realtime=True "
            "again, and end it with run.stop(), or ask it while it runs."
        )
    if unfinished is not None:
        raise PipelineError(
            f"epoch {unfinished.epoch} is unfinished, and key intervals change between epochs. "
            "Start the run and let it finish, or ask it while it runs."
        )
    if completed < 0 or drained:
        why = "was drained: it has ended for good" if drained else "has no complete epoch yet"
        raise PipelineError(f"the checkpoint {why}, so there is nothing to divide.")


def ids_after(ids: Mapping[str, int], made: Mapping[str, Remapped]) -> dict[str, int]:
    """Return what a claim says to reserve the ids of intervals that are to be made."""
    taken = {name: 1 + max(one.parents) for name, one in made.items() if one.parents}
    return {**ids, **taken}


def all_carried(
    completion: Completion,
    made: Mapping[str, Remapped],
    state: HardState,
    ready: Ready | None = None,
) -> Completion:
    """Write a snapshot for each interval that is made; return what says where all stand.

    Args:
        completion: Where all stand before.
        made: Computation -> its map after.
        state: The checkpoint.
        ready: What was read of it already.
    """
    for name, one in made.items():
        read = rows_at(state, name, None if ready is None else ready.get(name))
        completion = carried(completion, name, one.intervals, read, state.snapshots)
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

    def standing(one: KeyInterval, *, rows: bool = True) -> IntervalSeed:
        number, last = numbers[one.id], chains.get(one.id, 0)
        report = reports.get(one.id, NOTHING_PENDING)
        return IntervalSeed(one, number, last, report, read(one, number, last) if rows else ())

    stand, staying = list[IntervalSeed](), {*before}
    had = [one for one in before if numbers.get(one.id)]
    for interval in target.intervals:
        over = [one for one in had if one.start < interval.end and interval.start < one.end]
        if interval in staying:
            made = standing(interval, rows=whole) if over else None
        else:
            made = remade(interval, [standing(one) for one in over], cut_chunk)
        if made is None:
            continue
        if whole or interval not in staying:
            _write(name, made, snapshots)
        stand.append(without(made, pairs=()))
    return replace(
        completion,
        intervals=completion.intervals | {name: partition_of(target)},
        numbers=completion.numbers | {name: {one.interval.id: one.number for one in stand}},
        chains=completion.chains | {name: {one.interval.id: one.chain for one in stand}},
        reports=completion.reports | {name: {one.interval.id: one.report for one in stand}},
    )


def _once(read: Read) -> Read:
    """Return what reads an interval once while none but it is asked for; it keeps that one's rows.

    Maps ascend, so all that an interval is divided into come one after the other.
    """
    kept: dict[KeyInterval, Sequence[Pair]] = {}

    def of(interval: KeyInterval, number: int, last: int) -> Sequence[Pair]:
        if interval not in kept:
            kept.clear()  # first, so that two are not in memory while the next is read
            kept[interval] = read(interval, number, last)
        return kept[interval]

    return of


def _write(name: str, made: IntervalSeed, snapshots: Snapshots) -> None:
    interval = made.interval.id
    head = SnapshotHead(name, interval, made.number, made.chain)
    pieces = encode_snapshot(head, parts_of(iter(made.pairs)))
    if not snapshots.put(name, interval, made.number, pieces):
        raise InvariantViolation(
            f"there is a snapshot {made.number} of interval {interval} of {name!r}, whose id was "
            "reserved for an interval that is to be made now. Two drivers write one checkpoint."
        )
