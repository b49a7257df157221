"""Restoring a checkpoint: it goes on from one of its savepoints, in its place.

The epoch log goes forward: a claim of the next generation, which fences off who still runs, and a
completion with a number above all epochs that were begun, in which everything stands as in the
savepoint. Key intervals get new ids, so that nothing of what came after the savepoint has their
names. What sinks have of the epochs in between is taken back when a run claims them.

Source: docs/changing.md, "Going back in place".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from millrace.inspect.copying import (
    Location,
    copy_files,
    offset_files,
    place_of_savepoint,
    rows_of_intervals,
    savepoints,
)
from millrace.inspect.ended import ended
from millrace.inspect.letters import forget_letters
from millrace.inspect.location import open_checkpoint, state_at
from millrace.model.errors import CheckpointMismatch, PipelineError, ZombieWriter
from millrace.store import is_object_store, local_path, open_location
from millrace.watermark.intervals import IDS, IntervalMap, KeyInterval
from millrace.windmill.carrying import carried, first_id
from millrace.windmill.epoch_log import end_of
from millrace.windmill.fence import seal_left
from millrace.windmill.manifest import Claim, Completion, Restoration, encode_entry, interval_map


def restore_checkpoint(checkpoint: Location, savepoint: str, *, accept: bool = False) -> int:
    """Let a checkpoint go on from one of its savepoints; return the savepoint's epoch.

    No run may use the checkpoint; one that still does is fenced off, and ends. The next run goes on
    with the state, the timers, the low watermarks and the places in sources that the savepoint has,
    and reads again what came after. Sinks by key go on as they are: their rows are replaced as
    their keys come again. :class:`~millrace.Parquet`, :class:`~millrace.Delta` and
    :class:`~millrace.Iceberg` without a key take back what later epochs added, when that run
    starts. Dead letters that were sent again since are forgotten: what their sink has of them then
    can be sent.

    Args:
        checkpoint: A path or a URL.
        savepoint: The name of one of its savepoints, which stays.
        accept: Whether sinks that cannot take anything back (Kafka, functions, PostgreSQL without a
            key) may keep what they have, and get it again.

    Raises:
        CheckpointMismatch: There is no such savepoint; a sink cannot take back what it has, and
            that is not accepted; or a computation of the savepoint was removed since. Nothing was
            written.
        PipelineError: That cannot be the name of a savepoint.
        ZombieWriter: A run has claimed the checkpoint meanwhile.
        CheckpointUnwritable: The checkpoint cannot be written. Restore it again.
    """
    place = place_of_savepoint(checkpoint, savepoint)
    known = savepoints(checkpoint)
    if savepoint not in known:
        raise CheckpointMismatch(
            f"{os.fspath(checkpoint)}: there is no savepoint {savepoint!r}; there are "
            f"{', '.join(known) or 'none'}."
        )
    kept = open_checkpoint(place)
    then = ended(state_at(place).epochs)
    state = open_location(checkpoint, pipeline=state_at(checkpoint).form.pipeline)
    end = end_of(state.epochs)
    assert then.claim is not None, "a savepoint has a claim"
    assert then.completion is not None, "a savepoint is of a completed epoch"
    if end.claim is None or end.completion is None:
        raise CheckpointMismatch(f"{os.fspath(checkpoint)}: no epoch has completed yet.")
    last = max(end.completion.epoch, -1 if end.manifest is None else end.manifest.epoch)
    _check(end.claim, then.claim, since=then.completion.epoch, last=last, accept=accept)
    epoch, base, files = _placed(checkpoint, place, then.completion, last + 1)
    maps, ids = _new_maps(end.claim, end.completion, then.claim, then.completion)
    generation = end.claim.generation + 1
    # First of all that it is not whole: a start would go on where the other history ended.
    fence = replace(end.claim, generation=generation, ids=ids, copying=True)
    number = end.last + 1
    if not state.epochs.append(number, encode_entry(fence)):
        raise ZombieWriter(
            f"{os.fspath(checkpoint)}: a run has gone on with it meanwhile. Stop it, and restore "
            "again."
        )
    if state.journals.last():
        # What live tasks have noted since is of the other history, and is not to be heard.
        seal_left(state.journals)
        state.journals.remove(state.journals.names())
    whole = replace(
        then.completion,
        epoch=epoch,
        generation=generation,
        since=None,
        live=None,
        base=base,
        restored=Restoration(then.completion.epoch, epoch),
        wall_time_us=max(then.completion.wall_time_us, end.completion.wall_time_us),
    )
    for name, after in maps.items():
        read = rows_of_intervals(kept, name)
        whole = carried(whole, name, after, read, state.snapshots, whole=True)
    copy_files(files)
    forget_letters(state, then.completion)
    state.epochs.append(number + 1, encode_entry(whole))
    claim = replace(then.claim, generation=generation, base=base, ids=ids)
    state.epochs.append(number + 2, encode_entry(claim))
    return then.completion.epoch


def _check(now: Claim, then: Claim, *, since: int, last: int, accept: bool) -> None:
    """Refuse what cannot be restored."""
    if now.final_sinks and last > since and not accept:
        raise CheckpointMismatch(
            f"these sinks cannot take back what epochs {since + 1} to {last} have written: "
            f"{', '.join(now.final_sinks)}. Their readers get the records again that come again. "
            "Where that may be, restore with accept=True, or on the command line with --yes."
        )
    dropped = set(now.registry.dropped)
    if gone := sorted(dropped & then.topology["computations"].keys()):
        raise CheckpointMismatch(
            f"computations {gone} of the savepoint were removed since, and what they were called "
            "is used up in this checkpoint. Copy the savepoint, and go on from the copy."
        )


def _new_maps(
    claim: Claim, completion: Completion, then: Claim, kept: Completion
) -> tuple[Mapping[str, IntervalMap], dict[str, int]]:
    """Return the savepoint's maps with ids that were never given, and the first free ones."""
    maps, ids = {}, {**then.ids, **claim.ids}
    for name in kept.intervals:
        if name not in then.topology["computations"]:
            continue
        before = interval_map(kept.intervals[name])
        first = first_id(then.ids, name, before)
        if name in completion.intervals:
            now = interval_map(completion.intervals[name])
            first = max(first, first_id(claim.ids, name, now))
        made = [
            KeyInterval(first + n, one.start, one.end) for n, one in enumerate(before.intervals)
        ]
        ids[name] = first + len(made)
        if ids[name] > IDS:
            raise PipelineError(
                f"computation {name!r} has had {first:,} key intervals, and there are no ids for "
                f"{len(made):,} more. Copy the savepoint, and go on from the copy."
            )
        maps[name] = IntervalMap(made, before.cuts)
    return maps, ids


def _placed(
    checkpoint: Location, place: str, kept: Completion, epoch: int
) -> tuple[int, int, list[tuple[Path, Path]]]:
    """Return the restored epoch's number, its base, and the files of Spark's offsets to copy."""
    batches = kept.epoch - kept.base

    def taken(base: int) -> bool:
        if is_object_store(checkpoint):
            return False
        return (local_path(checkpoint) / f"spark-from-{base}").exists()

    while taken(epoch - batches):
        epoch += 1
    files = offset_files(place, checkpoint, kept, to_base=epoch - batches)
    return (epoch, epoch - batches, files) if files else (epoch, epoch + 1, files)
