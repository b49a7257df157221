"""Checkpoints by path or URL: opened to be read, and refused in words where there is none."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec

from millrace.compile.change import REFUSED, Change, ChangePlan, planned
from millrace.compile.topology import Topology
from millrace.inspect.checkpoint import Checkpoint
from millrace.model.errors import CheckpointMismatch, StoreError
from millrace.store import (
    LocalHardState,
    ObjectHardState,
    is_object_store,
    local_path,
    open_location,
)
from millrace.windmill import claims
from millrace.windmill.epoch_log import end_of


def open_checkpoint(location: str | os.PathLike[str], *, epoch: int | None = None) -> Checkpoint:
    """Open a checkpoint to look into it: the state of keys by the names of cells, timers, holds.

    Needs neither Spark nor the pipeline's code, writes nothing, and may be used while a run goes
    on. What it says is of one epoch; ``latest()`` of it has the checkpoint as it is by then.

    Args:
        location: What the run got as ``p.start(spark, checkpoint=...)``: a path or a URL.
        epoch: The epoch after which it is looked at; by default the last that has completed. The
            epoch log has the last hundred or so, and the state of some of them.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        NotKept: The epoch is not in the epoch log.
        StoreError: The directory or the bucket cannot be read.

    >>> open_checkpoint("nowhere")
    Traceback (most recent call last):
    ...
    millrace.model.errors.CheckpointMismatch: nowhere: no checkpoint, there is nothing at that...
    """
    return Checkpoint(state_at(location), epoch=epoch)


def state_at(location: str | os.PathLike[str]) -> LocalHardState | ObjectHardState:
    """Return the state of the checkpoint at a path or URL; writes nothing.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        StoreError: The directory or the bucket cannot be read.
    """
    if is_object_store(location):
        return open_location(location)
    path = local_path(location)
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise StoreError(
            f"{os.fspath(location)}: permission denied. Run as the user that runs the pipeline."
        )
    if not (path / "FORMAT").is_file():
        what = "there is nothing at that path"
        if path.exists():
            what = "it has no FORMAT file" if path.is_dir() else "it is a file"
        raise CheckpointMismatch(
            f"{os.fspath(location)}: no checkpoint, {what}. Give the directory that the run got as "
            'p.start(spark, checkpoint="...").'
        )
    return open_location(location)


def plan_of(topology: Topology, location: str | os.PathLike[str]) -> ChangePlan:
    """Return what a start of a pipeline would do with the checkpoint at a path or URL.

    It is of the last epoch that has completed; what an epoch under way adds is told apart.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        StoreError: The directory or the bucket cannot be read.
    """
    state = state_at(location)
    end = end_of(state.epochs)
    # A run may be in the middle of an epoch: what a start can do does not depend on when one asks.
    found = claims.plan_of(replace(end, manifest=None), topology)
    if end.manifest is not None:
        now = claims.plan_of(end, topology)
        refused = {change.where for change in found.refused}
        waiting = [change for change in now.refused if change.where not in refused]
        found = msgspec.structs.replace(found, under_way=end.manifest.epoch, waiting=tuple(waiting))
    owner = state.form.pipeline
    if owner == topology.name:
        return found
    whose = Change(
        REFUSED,
        f"pipeline {topology.name!r}",
        f"this checkpoint belongs to pipeline {owner!r}",
        f"give the checkpoint of {topology.name!r}; or, if it was renamed, keep the old name: "
        f"mr.Pipeline({owner!r})",
    )
    together = planned(topology.name, found.epoch, [whose, *found.changes])
    return msgspec.structs.replace(together, under_way=found.under_way, waiting=found.waiting)


def sizes(state: LocalHardState | ObjectHardState) -> dict[str, int]:
    """Return what the epoch log, commits, journals and snapshots take, in bytes."""
    return {
        name: _size(state.path / name) if isinstance(state, LocalHardState) else state.size(name)
        for name in ("epochs", "commits", "journals", "snapshots")
    }


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; one with several names counts once."""
    found: dict[int, int] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # collected since it was listed
        if path.is_file():
            found[stat.st_ino] = stat.st_size
    return sum(found.values())
