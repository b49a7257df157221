"""Copies of a checkpoint after one of its epochs: a fork, a way back, a savepoint.

A copy is a checkpoint of its own: a snapshot of each key interval, and an epoch log of three
entries. It shares no file with the original, has no commits, and another uuid, so that
no cache and no sink takes it for the original.

A copy may have another number of key intervals (``balance/transfer.py``).

Source: MillWheel 6.1 (hard state outlives its processes), 7.1 (key intervals split and merge);
docs/how-to/savepoints-and-copies.md.

Remapping: splitting and merging key intervals of a checkpoint that no run has.

Source: MillWheel, "Architecture" (7.1); docs/how-to/savepoints-and-copies.md.

Restoring a checkpoint: it goes on from one of its savepoints, in its place.

The epoch log goes forward: a claim of the next generation, which fences off who still runs, and a
completion with a number above all epochs that were begun, in which everything stands as in the
savepoint. Key intervals get new ids, so that nothing of what came after the savepoint has their
names. What sinks have of the epochs in between is taken back when a run claims them.

Source: docs/how-to/savepoints-and-copies.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from millrace.balance.transfer import (
    Pair,
    Read,
    all_carried,
    carried,
    check_between,
    first_id,
    maps_after,
    resized,
)
from millrace.epochlog.claims import ids_after
from millrace.epochlog.entries import Claim, Completion, Restoration, encode_entry, interval_map
from millrace.epochlog.fence import seal_left
from millrace.epochlog.reader import LogTail, claim_before, end_of
from millrace.epochlog.run_log import LogWriter
from millrace.injectors.signal_injector import forget_calls, reserve_numbers
from millrace.inspect.checkpoint import Checkpoint, open_checkpoint, state_at
from millrace.inspect.dead_letters import copy_letters, forget_letters
from millrace.inspect.overview import ended
from millrace.model.errors import CheckpointMismatch, NotKept, PipelineError, ZombieWriter
from millrace.store import (
    HardState,
    LocalHardState,
    is_object_store,
    local_path,
    open_location,
)
from millrace.store.durable_files import sync_directory
from millrace.watermark.intervals import IDS, IntervalMap, KeyInterval
from millrace.watermark.map_change import Merge, Split

Location = str | os.PathLike[str]

_FOLDER: Final = "savepoints"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def copy_checkpoint(
    source: Location,
    target: Location,
    *,
    epoch: int | None = None,
    segments: Location | None = None,
    intervals: int | None = None,
) -> int:
    """Make an independent checkpoint of one as it was after an epoch; return the epoch.

    It may be done beside a run that goes on by epochs. A run goes on from the copy with the epoch
    after; give it other sinks than the original's run, where both go on.

    Args:
        source: The checkpoint: a path or a URL.
        target: Where there is none yet: a path or a URL.
        epoch: Which; by default the last that has completed. The epoch log has the last hundred or
            so, and the state of some of them.
        segments: Of a target in an object store: a directory for what a run in real time commits.
        intervals: Key intervals of each computation, a power of two; by default as many as there
            are. State, timers, holds, ids and panes stay with their keys; an interval that is made
            anew has an id that was never used.

    Raises:
        PipelineError: ``intervals`` is no power of two; nothing was written.
        CheckpointMismatch: There is no checkpoint, or there is one at the target; or live tasks
            have not been stopped; or intervals that would be one keep for all keys what differs.
        NotKept: The epoch, or what its state was, is not kept any more.
        CheckpointUnwritable: The target cannot be written. What was written there is no checkpoint.

    Source: docs/how-to/savepoints-and-copies.md.
    """
    if intervals is not None and (intervals < 1 or intervals & (intervals - 1)):
        raise PipelineError(f"intervals={intervals}: expected a power of two, such as 64.")
    found = open_checkpoint(source, epoch=epoch)
    state = state_at(source)
    if _is_partial(found.ended.claim):
        raise CheckpointMismatch(
            f"{os.fspath(source)}: this is a copy of another checkpoint, and it was cut off before "
            "it was whole. Remove it, and copy again."
        )
    completion = ended(state.epochs, found.epoch if found.epoch >= 0 else None).completion
    if completion is None:
        raise NotKept(f"{os.fspath(source)}: no epoch has completed yet: there is nothing to copy.")
    claim = _claim(state, found, completion)
    _check_live(completion)
    files = offset_files(source, target, completion)
    made = open_location(target, pipeline=state.format.pipeline, segments=segments, copied=True)
    # First of all that it is not whole yet: a start would take it for new.
    if made.epochs.last() or not made.epochs.append(1, encode_entry(replace(claim, copying=True))):
        there = end_of(made.epochs).claim
        what = "a copy that was cut off, or is under way" if _is_partial(there) else "a checkpoint"
        raise CheckpointMismatch(
            f"{os.fspath(target)}: there is {what}. Remove it, or choose another place."
        )
    whole = replace(completion, since=None, live=None, restored=None)
    names = [name for name in completion.intervals if name in claim.topology["computations"]]
    ids = dict(claim.ids)
    for name in names:
        after = before = interval_map(completion.intervals[name])
        if intervals not in (None, len(before)):
            first = first_id(ids, name, before)
            after = resized(before, intervals, first_id=first)
            ids[name] = first_id({name: first}, name, after)
        whole = carried(
            whole, name, after, rows_of_intervals(found, name), made.snapshots, whole=True
        )
    base = completion.base if files else completion.epoch + 1
    copy_files(files)
    copy_letters(state, made, completion)
    reserve_numbers(made.mailbox, completion.source_offsets)
    made.epochs.append(2, encode_entry(replace(whole, base=base)))
    made.epochs.append(3, encode_entry(replace(claim, base=base, ids=ids)))
    return completion.epoch


def add_savepoint(checkpoint: Location, name: str, *, epoch: int | None = None) -> int:
    """Keep a checkpoint as it was after an epoch under a name; return the epoch.

    It is a copy in ``savepoints/`` of the checkpoint, which no collection touches. To go back to
    it in place: :func:`restore_checkpoint`. Or copy it to a place of its own:
    ``mr.ops.copy_checkpoint("ckpt/savepoints/before", "ckpt-2")``.

    Args:
        checkpoint: A path or a URL.
        name: Letters, digits, ``_``, ``-`` and ``.``.
        epoch: See :func:`copy_checkpoint`, as for errors.

    Raises:
        PipelineError: That cannot be a name.
    """
    return copy_checkpoint(checkpoint, place_of_savepoint(checkpoint, name), epoch=epoch)


def check_savepoint(checkpoint: Location, name: str) -> None:
    """Refuse a name that no savepoint can be given.

    Raises:
        PipelineError: That cannot be a name.
        CheckpointMismatch: There is one of that name.
    """
    place_of_savepoint(checkpoint, name)
    if name in savepoints(checkpoint):
        raise CheckpointMismatch(
            f"{os.fspath(checkpoint)}: there is a savepoint {name!r}. Remove it, or choose another "
            "name."
        )


def savepoints(checkpoint: Location) -> dict[str, int]:
    """Return the names of a checkpoint's savepoints, and the epoch of each.

    One whose making was cut off is not among them.
    """
    state = state_at(checkpoint)
    if isinstance(state, LocalHardState):
        folder = state.path / _FOLDER
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    else:
        there = sorted({name.split("/")[1] for name in state.names(_FOLDER)})
    opened = ((name, place_of_savepoint(checkpoint, name)) for name in there)
    found = ((name, ended(state_at(at).epochs)) for name, at in opened if _is_checkpoint(at))
    return {
        name: one.completion.epoch
        for name, one in found
        if one.completion is not None and not _is_partial(one.claim)
    }


def remove_savepoint(checkpoint: Location, name: str) -> None:
    """Remove a savepoint, or what is left of one whose making was cut off.

    Raises:
        CheckpointMismatch: There is none of that name.
    """
    place, state = place_of_savepoint(checkpoint, name), state_at(checkpoint)
    if isinstance(state, LocalHardState):
        path = local_path(place)
        if path.is_dir():
            # First, as by its name in a bucket: without it the rest is no savepoint.
            (path / "FORMAT").unlink(missing_ok=True)
            shutil.rmtree(path)
            return
    elif names := state.names(f"{_FOLDER}/{name}"):
        state.remove(names)
        return
    known = ", ".join(savepoints(checkpoint)) or "none"
    raise CheckpointMismatch(
        f"{os.fspath(checkpoint)}: there is no savepoint {name!r}; there are {known}."
    )


def place_of_savepoint(checkpoint: Location, name: str) -> str:
    """Return where a savepoint of a checkpoint is, or would be.

    Raises:
        PipelineError: That cannot be a name.
    """
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot name a savepoint. Expected letters, digits, '_', '-' and '.'."
        )
    at = os.fspath(checkpoint) if is_object_store(checkpoint) else str(local_path(checkpoint))
    return f"{at.rstrip('/')}/{_FOLDER}/{name}"


def _is_checkpoint(location: str) -> bool:
    """Return whether there is one, and be it a copy that was cut off after its first entry."""
    try:
        state_at(location)
    except CheckpointMismatch:
        return False
    return True


def _is_partial(claim: Claim | None) -> bool:
    """Return whether a checkpoint with this claim is a copy that is not whole."""
    return claim is not None and claim.copying


def _claim(state: HardState, found: Checkpoint, completion: Completion) -> Claim:
    """Return the claim that a completion stands under: of the last one, that of the last start."""
    is_last = found.latest().epoch == completion.epoch
    claim = found.ended.claim if is_last else claim_before(state.epochs, completion.epoch)
    if claim is None:
        raise NotKept(
            f"of epoch {completion.epoch} the claim of its run is not kept any more. Copy a later "
            "one."
        )
    return claim


def _check_live(completion: Completion) -> None:
    """Refuse what live tasks left at a mark that was not the last: more of the input is done."""
    if completion.begins is not None:
        raise CheckpointMismatch(
            f"epoch {completion.epoch} is a mark of live tasks, which continue beyond it: their "
            "later commits are in segments that are not copied. End the run with run.stop(), then "
            "copy the checkpoint."
        )


def rows_of_intervals(found: Checkpoint, name: str) -> Read:
    """Return what reads all rows of a computation's key intervals."""
    intervals = {interval.id: interval for interval in found.intervals(name)}

    def read(interval: KeyInterval, _number: int, _chain: int) -> Sequence[Pair]:
        with found.rows(name, intervals[interval.id]) as view:
            return list(chain.from_iterable(view.everything()))

    return read


def offset_files(
    source: Location, target: Location, completion: Completion, *, to_base: int | None = None
) -> list[tuple[Path, Path]]:
    """Return the files of Spark's offsets that a copy needs, and where they go.

    Only where a source of Spark's own was read: how far injectors were is in the completion.

    Args:
        source: A checkpoint.
        target: Another.
        completion: As far as the source was read.
        to_base: The base that the target is to have; by default the same.
    """
    read = {stream for stream, stats in completion.sources.items() if stats.records}
    unknown = sorted(read - completion.source_offsets.keys())
    if not unknown:
        return []
    name = f"spark-from-{completion.base}" if completion.base else "spark"
    batch = completion.epoch - completion.base
    what = f"streams {unknown} are read by Spark's own sources, and how far is in Spark's offsets"
    if is_object_store(source) or is_object_store(target):
        raise CheckpointMismatch(
            f"{what}, which are copied between local paths only. Copy to and from those, or inject "
            "an mr.sources.Injector in their place."
        )
    there = name if to_base is None else f"spark-from-{to_base}"
    folder, to = local_path(source) / name, local_path(target) / there
    if not (folder / "offsets" / str(batch)).is_file():
        raise NotKept(
            f"{what}, and {folder / 'offsets' / str(batch)} is not there: Spark has removed it, or "
            "the run was given spark_checkpoint=. Copy a later epoch."
        )
    return [
        (file, to / file.relative_to(folder))
        for file in (*_until(folder / "offsets", batch), *_until(folder / "commits", batch),
                     folder / "metadata", *(folder / "sources").rglob("[!.]*"))
        if file.is_file()
    ]  # fmt: skip


def copy_files(files: Iterable[tuple[Path, Path]]) -> None:
    """Copy files of Spark's, each to its place, for good."""
    for file, to in files:
        to.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(file, to)


def _until(log: Path, batch: int) -> Iterator[Path]:
    for path in sorted(log.glob("[0-9]*")):
        if path.name.isdigit() and int(path.name) <= batch:
            yield path


def _copy_file(file: Path, to: Path) -> None:
    """Copy a file of Spark's; the copy's query is another, which may run beside the original's."""
    if file.name == "metadata":
        to.write_text(json.dumps(json.loads(file.read_text()) | {"id": str(uuid.uuid4())}))
    else:
        shutil.copyfile(file, to)
    _sync(to)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(path.parent)


def remap_checkpoint(
    checkpoint: str | os.PathLike[str], computation: str, remaps: Sequence[Split | Merge]
) -> int:
    """Split and merge key intervals of a computation; return how many it has then.

    For a checkpoint that no run has; one that goes on with it is superseded by this, and ends with
    an error. A crash leaves the intervals as they were, or as they are to be.

    Args:
        checkpoint: A path or a URL.
        computation: As the pipeline called it in its last run.
        remaps: No interval is in two of them.

    Raises:
        PipelineError: That cannot be; nothing was written.
        CheckpointMismatch: There is no checkpoint, or it is a copy that was cut off; or intervals
            that are to be one differ in what they keep for all keys.
        ZombieWriter: A run took the checkpoint meanwhile.
    """
    state = state_at(checkpoint)
    end = end_of(state.epochs)
    claim, completion = end.claim, end.completion
    if claim is None or claim.copying:
        raise CheckpointMismatch(f"{checkpoint}: no run has had it, so there is nothing to remap.")
    if completion is None:
        check_between(-1, end.manifest, drained=False)
        raise AssertionError("that no epoch has completed is refused")
    check_between(completion.epoch, end.manifest, drained=completion.drained)
    known = claim.registry.checked().called
    name = next((name for name, title in known.items() if title == computation), computation)
    there = claim.topology["computations"]
    maps = {one: interval_map(of) for one, of in completion.intervals.items() if one in there}
    if name not in maps:
        raise PipelineError(f"no computation {computation!r}; there are {', '.join(maps)}.")
    made = maps_after(maps, claim.ids, {name: remaps})
    generation = claim.generation + 1
    log = LogWriter(state.epochs, end.last, generation)
    # First the claim: from here on no other driver writes an entry, or uses these ids.
    ids = ids_after(claim.ids, made)
    taken = replace(claim, generation=generation, ids=ids, owner=uuid.uuid4().hex)
    log.append(taken, lambda: None)
    if completion.live is not None:
        seal_left(state.incarnations)
    whole = replace(completion, generation=generation, since=None)
    log.append(log.ours(lambda: all_carried(whole, made, state)), lambda: None)
    return len(made[name].intervals)


def restore_checkpoint(checkpoint: Location, savepoint: str, *, accept: bool = False) -> int:
    """Let a checkpoint go on from one of its savepoints; return the savepoint's epoch.

    No run may use the checkpoint; one that still does is fenced off, and ends. The next run starts
    with the savepoint's state, timers, low watermarks and source offsets, and reads all later input
    again. Sinks by key are left as they are: rows are replaced as their keys are written again.
    Other sinks, :class:`~millrace.sinks.Parquet`,
    :class:`~millrace.sinks.Delta` and :class:`~millrace.sinks.Iceberg` without a key take back what
    later epochs added, when that run starts. Dead letters that were sent again since are forgotten:
    what their sink has of them then can be sent.

    Args:
        checkpoint: A path or a URL.
        savepoint: The name of one of its savepoints, which stays.
        accept: Whether sinks that cannot take anything back (Kafka, functions, PostgreSQL without a
            key) may keep what they have, and get it again. Also whether others may lack what they
            took back after an earlier restore.

    Raises:
        CheckpointMismatch: There is no such savepoint, or a computation of it was removed since.
            Or a sink cannot take back what it has, or lacks what it took back, and that is not
            accepted. Nothing was written.
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
    state = open_location(checkpoint, pipeline=state_at(checkpoint).format.pipeline)
    end = end_of(state.epochs)
    assert then.claim is not None, "a savepoint has a claim"
    assert then.completion is not None, "a savepoint is of a completed epoch"
    if end.claim is None or end.completion is None:
        raise CheckpointMismatch(f"{os.fspath(checkpoint)}: no epoch has completed yet.")
    last = max(end.completion.epoch, -1 if end.manifest is None else end.manifest.epoch)
    _check(end.claim, then.claim, since=then.completion.epoch, last=last, accept=accept)
    epoch, base, files = _placed(checkpoint, place, then.completion, last + 1)
    maps, ids = _new_maps(end, then.claim, then.completion)
    generation = end.claim.generation + 1
    # First of all that it is not whole: a start would go on where the other history ended.
    owner = uuid.uuid4().hex
    fence = replace(end.claim, generation=generation, ids=ids, owner=owner, copying=True)
    number = end.last + 1
    if not state.epochs.append(number, encode_entry(fence)):
        raise ZombieWriter(
            f"{os.fspath(checkpoint)}: a run has continued it since. Stop that run, and restore "
            "again."
        )
    if state.incarnations.last():
        # What live tasks have noted since is of the other history, and is not to be heard.
        seal_left(state.incarnations)
        state.incarnations.remove(state.incarnations.names())
    whole = replace(
        then.completion,
        epoch=epoch,
        generation=generation,
        since=None,
        live=None,
        base=base,
        restored=Restoration(_sunk_until(end.completion.restored, then.completion.epoch), epoch),
        wall_time_us=max(then.completion.wall_time_us, end.completion.wall_time_us),
    )
    for name, after in maps.items():
        read = rows_of_intervals(kept, name)
        whole = carried(whole, name, after, read, state.snapshots, whole=True)
    copy_files(files)
    forget_letters(state, then.completion)
    forget_calls(state.mailbox, end.completion.source_offsets)
    state.epochs.append(number + 1, encode_entry(whole))
    claim = replace(
        then.claim,
        generation=generation,
        owner=owner,
        base=base,
        ids=ids,
        registry=then.claim.registry.with_numbers_of(end.claim.registry),
        taken_back=end.claim.taken_back,
    )
    state.epochs.append(number + 2, encode_entry(claim))
    return then.completion.epoch


def _sunk_until(pending: Restoration | None, epoch: int) -> int:
    """Return the last epoch of a savepoint's history that sinks have, and whose output stays.

    Args:
        pending: What they were to take back by an earlier restore, and have not, as no run started.
        epoch: Of the savepoint. One that was made after that restore is as it was before it.
    """
    return epoch if pending is None or epoch < pending.until else pending.after


def _check(now: Claim, then: Claim, *, since: int, last: int, accept: bool) -> None:
    """Refuse what cannot be restored."""
    if now.final_sinks and last > since and not accept:
        raise CheckpointMismatch(
            f"these sinks cannot take back what epochs {since + 1} to {last} have written: "
            f"{', '.join(now.final_sinks)}. Their readers get the records again that come again. "
            "Where that may be, restore with accept=True, or on the command line with --yes."
        )
    earlier = [span for span in now.taken_back if span.after < since < span.until]
    if earlier and not accept:
        raise CheckpointMismatch(
            "this savepoint is from before the checkpoint went back to an earlier one, and sinks "
            f"have taken back epochs {min(span.after for span in earlier) + 1} to {since} of it: "
            "they would lack them. Copy the savepoint, and start from the copy with sinks of its "
            "own. Where no sink needs them, restore with accept=True, or on the command line with "
            "--yes."
        )
    dropped = set(now.registry.dropped)
    if gone := sorted(dropped & then.topology["computations"].keys()):
        raise CheckpointMismatch(
            f"computations {gone} of the savepoint were removed since, and this checkpoint cannot "
            "use their names again. Copy the savepoint, and start from the copy."
        )


def _new_maps(
    end: LogTail, then: Claim, kept: Completion
) -> tuple[Mapping[str, IntervalMap], dict[str, int]]:
    """Return the savepoint's maps with ids that were never given, and the first free ones.

    Computations that were added since have free ids, too: if they are added again, they begin anew.
    """
    assert end.claim is not None, "the checkpoint has a claim"
    maps, ids = {}, {**then.ids, **end.claim.ids}
    for entry in (kept, end.completion, end.manifest):
        for name, partition in ({} if entry is None else entry.intervals).items():
            ids[name] = first_id(ids, name, interval_map(partition))
    for name in kept.intervals.keys() & then.topology["computations"].keys():
        maps[name] = interval_map(kept.intervals[name]).renumbered(ids[name])
        ids[name] += len(maps[name])
        if ids[name] > IDS:
            raise PipelineError(
                f"computation {name!r} has had {ids[name] - len(maps[name]):,} key intervals, and "
                f"there are no ids for {len(maps[name]):,} more. Copy the savepoint, and go on "
                "from the copy."
            )
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
