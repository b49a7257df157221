"""What a checkpoint says of its run, read from the epoch log alone: no Spark, and no writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from millrace.compile.topology import injector_name
from millrace.model.errors import CheckpointMismatch, StoreError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.store import (
    HardState,
    LocalHardState,
    ObjectHardState,
    is_object_store,
    local_path,
    open_location,
)
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill.counters import Counters
from millrace.windmill.journal import latest
from millrace.windmill.manifest import Claim, Completion


class ComputationSummary(msgspec.Struct, kw_only=True):
    """One computation as of the last completed epoch.

    Attributes:
        name: Its name.
        low_watermark: Of its input, in microseconds.
        output_low_watermark: What it shows its consumers, in microseconds.
        counters: What it did since the beginning.
        intervals: Number of its key intervals.
        commits: Number of its commits, over all intervals.
        commits_in_log: How many of them are still there; the others were collected.
        snapshots: Snapshots that are there, over all intervals.
        next_timer: Earliest pending low-watermark timer in microseconds; None if there is none.
        next_wall_timer: Earliest pending wall-clock timer in microseconds; None if there is none.
        hold: Earliest hold in microseconds; None if there is none.
    """

    name: str
    low_watermark: int
    output_low_watermark: int
    counters: Counters
    intervals: int
    commits: int
    commits_in_log: int
    snapshots: int
    next_timer: int | None
    next_wall_timer: int | None
    hold: int | None


class StreamSummary(msgspec.Struct, kw_only=True):
    """One injected stream as of the last completed epoch.

    Attributes:
        name: Its name.
        low_watermark: What its injector published last, in microseconds.
        newest: Latest timestamp read, in microseconds; None before the first record.
        injected: Records read since the beginning.
        refused: Records refused since the beginning.
    """

    name: str
    low_watermark: int
    newest: int | None
    injected: int
    refused: int


class Summary(msgspec.Struct, kw_only=True):
    """A checkpoint.

    Attributes:
        location: Where it is.
        format: Version of the stored format.
        created_by: The version of Millrace that made it.
        pipeline: Name of its pipeline.
        uuid: Made when the checkpoint was.
        generation: How many runs have claimed it.
        epoch: The last completed epoch; -1 before the first.
        wall_time: The clock of that epoch in microseconds; None before the first.
        state: ``open`` (a run goes on from here) or ``drained`` (its input has ended).
        unfinished: An epoch that was begun and is not completed: a run is in it now, or the next
            run finishes it.
        computations: In the order of their names.
        streams: The injected streams, in the order of their names.
        sizes: What the epoch log, the commit logs and the snapshots take, in bytes; empty where
            that is not known.
    """

    location: str
    format: int
    created_by: str
    pipeline: str
    uuid: str
    generation: int
    epoch: int
    wall_time: int | None
    state: str
    unfinished: int | None
    computations: list[ComputationSummary]
    streams: list[StreamSummary]
    sizes: dict[str, int]


def open_checkpoint(location: str) -> tuple[str, LocalHardState | ObjectHardState]:
    """Return the path or URL and the state of the checkpoint at a path or URL; writes nothing.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        StoreError: The directory or the bucket cannot be read.
    """
    if is_object_store(location):
        return location, open_location(location)
    path = local_path(location)
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise StoreError(f"{location}: permission denied. Run as the user that runs the pipeline.")
    if not (path / "FORMAT").is_file():
        what = "there is nothing at that path"
        if path.exists():
            what = "it has no FORMAT file" if path.is_dir() else "it is a file"
        raise CheckpointMismatch(
            f"{location}: no checkpoint, {what}. Give the directory that the run got as "
            'p.start(spark, checkpoint="...").'
        )
    return str(path), open_location(location)


def read(location: str) -> Summary:
    """Return the summary of the checkpoint at a path or URL; writes nothing.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        DamagedStore: An entry of its epoch log cannot be read.
        StoreError: The directory cannot be read.
    """
    path, state = open_checkpoint(location)
    form = state.form
    claim, completion, manifest = latest(state.epochs)
    return Summary(
        location=path,
        format=form.format,
        created_by=form.created_by,
        pipeline=form.pipeline,
        uuid=state.uuid,
        generation=claim.generation if claim is not None else 0,
        epoch=completion.epoch if completion is not None else -1,
        wall_time=completion.wall_time_us if completion is not None else None,
        state="drained" if completion is not None and completion.drained else "open",
        unfinished=manifest.epoch if manifest is not None else None,
        computations=_computations(claim, completion, state),
        streams=_streams(claim, completion),
        sizes={
            name: _size(state.path / name)
            if isinstance(state, LocalHardState)
            else state.size(name)
            for name in ("epochs", "commits", "snapshots")
        },
    )


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; one with several names counts once."""
    sizes: dict[int, int] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # collected since it was listed
        if path.is_file():
            sizes[stat.st_ino] = stat.st_size
    return sum(sizes.values())


def _computations(
    claim: Claim | None, completion: Completion | None, state: HardState
) -> list[ComputationSummary]:
    names = sorted(claim.topology["computations"]) if claim is not None else []
    return [_computation(name, completion, state) for name in names]


def _computation(name: str, completion: Completion | None, state: HardState) -> ComputationSummary:
    if completion is None:
        reports: list[Report] = []
        low_us = output_us = MIN_TIMESTAMP
        counters, numbers, intervals = Counters(), {}, 0
    else:
        reports = list(completion.reports.get(name, {}).values())
        low_us = completion.after.inputs.get(name, MIN_TIMESTAMP)
        output_us = completion.after.outputs.get(name, MIN_TIMESTAMP)
        counters = completion.counters.get(name, Counters())
        numbers = completion.numbers.get(name, {})
        intervals = len(completion.intervals.get(name, []))

    def earliest(of: str) -> int | None:
        at_us = min(getattr(report, of) for report in [NOTHING_PENDING, *reports])
        return None if at_us == MAX_TIMESTAMP else at_us

    return ComputationSummary(
        name=name,
        low_watermark=low_us,
        output_low_watermark=output_us,
        counters=counters,
        intervals=intervals,
        commits=sum(numbers.values()),
        commits_in_log=sum(map(len, state.commits.numbers(name).values())),
        snapshots=sum(map(len, state.snapshots.numbers(name).values())),
        next_timer=earliest("low_watermark_timer_us"),
        next_wall_timer=earliest("wall_timer_us"),
        hold=earliest("hold_us"),
    )


def _streams(claim: Claim | None, completion: Completion | None) -> list[StreamSummary]:
    names: list[Any] = claim.topology["injected"] if claim is not None else []
    if completion is None:
        return [
            StreamSummary(
                name=name, low_watermark=MIN_TIMESTAMP, newest=None, injected=0, refused=0
            )
            for name in names
        ]
    return [
        StreamSummary(
            name=name,
            low_watermark=completion.after.outputs.get(injector_name(name), MIN_TIMESTAMP),
            newest=completion.newest.get(name),
            injected=completion.injected.get(name, 0),
            refused=completion.refused.get(name, 0),
        )
        for name in names
    ]
