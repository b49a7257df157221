"""``millrace checkpoint``: where a checkpoint stands, and whether it is whole.

``millrace checkpoint copy`` and ``savepoint``: a checkpoint as it was after an epoch, kept.

``millrace checkpoint verify``: every byte of a checkpoint read, every checksum checked.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from millrace import inspect
from millrace.epochlog.entries import decode_entry, interval_map
from millrace.injectors.dead_letters import LetterLog
from millrace.inspect import Checkpoint, ComputationInspection, StreamOverview, sizes, state_at
from millrace.inspect.overview import Ended, ended, run_end
from millrace.model.errors import InputLost, StoreError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND, format_timestamp
from millrace.runtime.commit_writer import check_consumed
from millrace.spark.asks import ask
from millrace.spark.plain_text import PlainTable, in_words, size, text_of
from millrace.store import (
    Finding,
    HardState,
    Incarnations,
    LocalHardState,
    ObjectHardState,
    Verified,
    is_object_store,
    local_path,
    verify_epochs,
    verify_incarnations,
    verify_interval,
    verify_segments,
)


def verify_checkpoint(location: str) -> Verified:
    """Read and verify everything in the checkpoint at a path or URL; write nothing.

    Beside a run, objects that it collects during the check may be reported as lost: check again.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        DamagedStore: ``FORMAT`` is damaged, so that nothing else can be trusted.
    """
    state = state_at(location)
    verified = Verified()
    verify_epochs(state.epochs, _check_entry, verified)
    verify_incarnations(state.incarnations, verified)
    if not any(finding.lost for finding in verified.findings):
        _verify_consumed(state, verified)
    _verify_letters(state, verified)
    try:
        _verify_intervals(state, verified)
    except (StoreError, msgspec.MsgspecError) as error:
        if not any(finding.lost for finding in verified.findings):
            verified.findings.append(Finding("the end of the epoch log", str(error), lost=True))
    return verified


def _check_entry(data: bytes) -> None:
    decode_entry(data)


def _verify_consumed(state: HardState, verified: Verified) -> None:
    """Check that segments have what deeper levels have consumed, as the next incarnation would."""
    last = ended(state.epochs)
    while True:
        try:
            _check_consumed(last, state.incarnations)
        except StoreError as error:
            before, last = last, ended(state.epochs)
            if last.completion != before.completion:
                continue  # a run has completed a mark, and collected what was before it
            verified.findings.append(Finding("the grown segments", str(error), lost=True))
        return


def _check_consumed(last: Ended, incarnations: Incarnations) -> None:
    claim, completion, unfinished = last
    if claim is None or claim.registry is None:
        return
    names = {number: name for name, number in claim.registry.checked().computations.items()}
    numbers = {} if completion is None else completion.numbers
    entries = [entry for entry in (completion, unfinished) if entry is not None]
    maps = {
        name: interval_map(intervals)
        for entry in entries
        for name, intervals in entry.intervals.items()
    }
    there = {name: numbers.get(name, {}) for name in names.values()}
    check_consumed(incarnations.under_way(), there, maps, names)


def _verify_letters(state: HardState, verified: Verified) -> None:
    """Read the dead letters that are sent again: without them nobody knows which were."""
    log = LetterLog(state.mailbox)
    for number in range(1, log.last() + 1):
        verified.letters += 1
        try:
            log.read(number)
        except (StoreError, InputLost) as error:
            subject = f"message {number} of the dead letters that are sent again"
            verified.findings.append(Finding(subject, str(error), lost=True))


def _verify_intervals(state: HardState, verified: Verified) -> None:
    checkpoint = Checkpoint(state)
    state = checkpoint.state
    if checkpoint.overview.generation == 0 and state.epochs.last():
        raise StoreError("it has no claim, so what the checkpoint holds is not known")
    for name in checkpoint.computations:
        known = {interval.id: interval for interval in checkpoint.intervals(name)}
        logged = checkpoint.known_name(name)
        there = {*known, *state.commits.numbers(logged), *state.snapshots.numbers(logged)}
        verify_segments(state.commits, logged, name, verified)
        for id in sorted(there):
            number, chain = (known[id].commit, known[id].chain) if id in known else (0, 0)
            verify_interval(state, logged, name, id, number, chain, verified)


@click.command("copy", short_help="Make an independent checkpoint of one.")
@click.argument("source")
@click.argument("target")
@click.option("--epoch", type=int, help="As it was after this epoch; by default after the last.")
@click.option("--segments", help="Directory for grown segments, of a TARGET in an object store.")
@click.option("--intervals", type=int, help="Key intervals of each computation; a power of two.")
def copy(
    source: str, target: str, epoch: int | None, segments: str | None, intervals: int | None
) -> None:
    """Copy the checkpoint at SOURCE, as it was after an epoch, to a new checkpoint at TARGET.

    Needs no Spark, does not change SOURCE, and works beside a run by epochs; stop one in real time
    first. A run started with TARGET begins with the next epoch; give it other sinks. --intervals
    divides the state into other key intervals.
    """
    copied = inspect.copy_checkpoint(
        source, target, epoch=epoch, segments=segments, intervals=intervals
    )
    click.echo(f"{target} is {source} after epoch {copied}")


@click.command("restore", short_help="Go back to a savepoint, in place.")
@click.argument("checkpoint")
@click.option("--savepoint", "name", required=True, help="Which one; it stays.")
@click.option("--yes", is_flag=True, help="Go back though a sink keeps what it has.")
@click.option(
    "--timeout", type=click.FloatRange(0), default=3, show_default=True,
    help="Seconds to wait for the answer of a run that goes on.",
)  # fmt: skip
def restore(checkpoint: str, name: str, yes: bool, timeout: float) -> None:
    """Go back to the savepoint NAME of CHECKPOINT.

    Stop its run first. The next start continues from the savepoint and reads later input again.
    Tables by key are left as they are; Parquet, Delta and Iceberg without a key remove the rows of
    later epochs. Records sent to Kafka, functions and PostgreSQL without a key cannot be taken
    back: the command names those sinks, and --yes accepts it.
    """
    state = inspect.state_at(checkpoint)
    generation = inspect.Checkpoint(state).overview.generation
    gone = run_end(state.mailbox, generation) is not None
    if not gone and ask(state.mailbox, "status", generation, timeout_s=timeout) is not None:
        raise click.ClickException(
            f"the run of {checkpoint} goes on. Stop it first: millrace stop {checkpoint}"
        )
    epoch = inspect.restore_checkpoint(checkpoint, name, accept=yes)
    click.echo(
        f"{checkpoint} is as savepoint {name} was, after epoch {epoch}. Sinks take back what came "
        "after it when the pipeline is started."
    )


@click.group("savepoint")
def savepoint() -> None:
    """Keep a checkpoint as it was after an epoch, under a name."""


@savepoint.command(short_help="Keep what is there now.")
@click.argument("checkpoint")
@click.argument("name")
@click.option("--epoch", type=int, help="As it was after this epoch; by default after the last.")
def add(checkpoint: str, name: str, epoch: int | None) -> None:
    """Keep CHECKPOINT as it was after an epoch in CHECKPOINT/savepoints/NAME.

    No collection touches it. `millrace checkpoint restore CHECKPOINT --savepoint NAME` goes back to
    it; `millrace checkpoint copy CHECKPOINT/savepoints/NAME TARGET` makes a checkpoint of it.
    """
    pinned = inspect.add_savepoint(checkpoint, name, epoch=epoch)
    click.echo(f"savepoint {name} is {checkpoint} after epoch {pinned}")


@savepoint.command("list", short_help="Show which there are.")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(checkpoint: str, as_json: bool) -> None:
    """Show the savepoints of CHECKPOINT, and the epoch of each."""
    epochs = inspect.savepoints(checkpoint)
    if as_json:
        click.echo(msgspec.json.encode(epochs).decode())
        return
    for name, epoch in epochs.items():
        click.echo(f"{name}  epoch {epoch}")


@savepoint.command(short_help="Remove one.")
@click.argument("checkpoint")
@click.argument("name")
def remove(checkpoint: str, name: str) -> None:
    """Remove the savepoint NAME of CHECKPOINT."""
    inspect.remove_savepoint(checkpoint, name)
    click.echo(f"savepoint {name} is gone")


#: Columns that are left out where they say nothing of any row.
_RARE = (
    "behind", "worst lateness", "dead letters", "duplicates", "next timer",
    "next wall timer", "held at", "pending timers", "pending wall timers",
)  # fmt: skip


@click.group()
def checkpoint() -> None:
    """Look into a checkpoint, copy it, keep it."""


checkpoint.add_command(copy)
checkpoint.add_command(savepoint)
checkpoint.add_command(restore)


@checkpoint.command(short_help="Show where it stands.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in microseconds.")
def show(path: str, as_json: bool) -> None:
    """Show where the checkpoint at PATH stands, as of its last completed epoch.

    Needs no Spark, writes nothing, and may be used while a run goes on.
    """
    state = state_at(path)
    opened = Checkpoint(state)
    computations = [opened[name] for name in opened.computations]
    streams = list(opened.overview.streams.values())
    head = _head(path, state, opened)
    if as_json:
        plain = {
            **head,
            "computations": [_plain(computation) for computation in computations],
            "streams": [msgspec.to_builtins(stream) for stream in streams],
            "sizes": sizes(state),
        }
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        return
    tables = [
        _streams(streams),
        *(columns_of(computations) for columns_of in (_work, _times, _stored, _counted)),
    ]
    shown = [part for table in tables for part in table.without_noughts(_RARE).parts()]
    click.echo(text_of(_status_rows(head, sizes(state)), shown))


@checkpoint.command(short_help="Check every checksum.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(context: click.Context, path: str, as_json: bool) -> None:
    """Read all of the checkpoint at PATH and check every checksum.

    Writes nothing and needs no Spark. Exit code 0: all is whole. 3: something is damaged, and can
    be recovered from what is left. 4: something is lost. 1: it could not be read at all.
    """
    verified = verify_checkpoint(path)
    lost = [finding for finding in verified.findings if finding.lost]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(verified), indent=2))
    else:
        segments = f", {verified.segments:,} grown segments" if verified.segments else ""
        letters = f", {verified.letters:,} messages of letters" if verified.letters else ""
        for finding in verified.findings:
            state = "LOST" if finding.lost else "damaged"
            click.echo(f"{state}: {finding.what}: {finding.problem}")
        click.echo(
            f"read {verified.entries:,} epoch log entries, {verified.commits:,} commits, "
            f"{verified.snapshots:,} snapshots{segments}{letters}: "
            + (
                f"{len(verified.findings):,} damaged, {len(lost):,} lost"
                if verified.findings
                else "all whole"
            )
        )
        if verified.findings and not lost:
            click.echo("Nothing is lost: a run recovers from what is whole.")
        if lost:
            click.echo("Restore the checkpoint from a copy.")
    context.exit(4 if lost else 3 if verified.findings else 0)


def _head(
    path: str, state: LocalHardState | ObjectHardState, checkpoint: Checkpoint
) -> dict[str, Any]:
    """Return what is of the whole checkpoint."""
    overview = checkpoint.overview
    return {
        "location": path if is_object_store(path) else str(local_path(path)),
        "format": state.format.format,
        "created_by": state.format.created_by,
        "pipeline": state.format.pipeline,
        "uuid": state.uuid,
        "generation": overview.generation,
        "epoch": overview.epoch,
        "wall_time": overview.wall_time,
        "state": "drained" if overview.drained else "open",
        "unfinished": overview.unfinished,
    }


def _plain(inspection: ComputationInspection) -> dict[str, Any]:
    counters = inspection.overview.counters
    late = counters.first_late
    return {
        "name": inspection.name,
        "low_watermark": inspection.overview.low_watermark,
        "output_low_watermark": inspection.overview.output_low_watermark,
        # Counters travel as arrays in the log; here a person or a script wants their names.
        "counters": msgspec.structs.asdict(counters)
        | {"first_late": None if late is None else msgspec.structs.asdict(late)},
        "intervals": len(inspection.intervals),
        "commits": inspection.commits,
        "commits_in_log": inspection.commits_kept,
        "snapshots": inspection.snapshots_kept,
        "next_timer": inspection.next_timer,
        "next_wall_timer": inspection.next_wall_timer,
        "pending_timers": inspection.overview.pending_timers,
        "pending_wall_timers": inspection.overview.pending_wall_timers,
        "hold": inspection.hold,
    }


def _status_rows(head: dict[str, Any], sizes: dict[str, int]) -> list[tuple[str, str]]:
    state = {
        "open": "open: a run can go on from here, or is under way",
        "drained": "drained: the input has ended, and all results are out",
    }
    rows = [
        ("checkpoint", head["location"]),
        ("format", f"{head['format']}, made by millrace {head['created_by']}"),
        ("pipeline", head["pipeline"]),
        ("uuid", head["uuid"]),
        ("generation", str(head["generation"])),
        ("state", state[head["state"]]),
        ("last epoch", _epoch(head)),
    ]
    if head["unfinished"] is not None:
        unfinished = f"{head['unfinished']}: a run is in it, or the next run finishes it"
        rows.append(("unfinished epoch", unfinished))
    return [*rows, ("on disk", ", ".join(f"{name} {size(n)}" for name, n in sizes.items()))]


def _epoch(head: dict[str, Any]) -> str:
    if head["wall_time"] is None:
        return "none has completed yet"
    return f"{head['epoch']}, at {format_timestamp(head['wall_time'] // SECOND * SECOND)}"


def _streams(streams: list[StreamOverview]) -> PlainTable:
    return PlainTable(
        (
            "injected stream", "records", "dead letters", "dropped", "newest record",
            "low watermark", "behind",
        ),
        [
            (
                stream.name, f"{stream.injected:,}", f"{stream.dead_letters:,}",
                f"{stream.dropped:,}", _instant(stream.newest),
                format_timestamp(stream.low_watermark), _behind(stream),
            )
            for stream in streams
        ],
    ).without_noughts(("dropped",))  # fmt: skip


def _behind(stream: StreamOverview) -> str:
    """Return how far an injector's low watermark is behind its newest record."""
    if stream.newest is None or not MIN_TIMESTAMP < stream.low_watermark < MAX_TIMESTAMP:
        return "-"
    return in_words(max(0, stream.newest - stream.low_watermark))


def _work(computations: list[ComputationInspection]) -> PlainTable:
    """Return what computations did since the beginning."""
    return PlainTable(
        (
            "computation", "records", "late", "worst lateness", "timers fired", "productions",
            "dead letters", "duplicates",
        ),
        [
            (
                computation.name,
                f"{counters.records:,}",
                f"{counters.late:,}",
                in_words(counters.worst_lateness_us) if counters.late else "-",
                f"{counters.timers:,}",
                f"{counters.productions:,}",
                f"{counters.dead_letters:,}",
                f"{counters.duplicates_filtered:,}",
            )
            for computation in computations
            for counters in [computation.overview.counters]
        ],
    )  # fmt: skip


def _times(computations: list[ComputationInspection]) -> PlainTable:
    """Return where computations stand in event time, and what they wait for."""
    return PlainTable(
        (
            "computation", "low watermark", "shown to consumers", "next timer", "next wall timer",
            "held at", "pending timers", "pending wall timers",
        ),
        [
            (
                computation.name,
                format_timestamp(computation.overview.low_watermark),
                format_timestamp(computation.overview.output_low_watermark),
                _instant(computation.next_timer),
                _instant(computation.next_wall_timer),
                _instant(computation.hold),
                f"{computation.overview.pending_timers:,}",
                f"{computation.overview.pending_wall_timers:,}",
            )
            for computation in computations
        ],
    )  # fmt: skip


def _stored(computations: list[ComputationInspection]) -> PlainTable:
    return PlainTable(
        ("computation", "key intervals", "commits made", "commits kept", "snapshots kept"),
        [
            (
                computation.name, f"{len(computation.intervals):,}", f"{computation.commits:,}",
                f"{computation.commits_kept:,}", f"{computation.snapshots_kept:,}",
            )
            for computation in computations
        ],
    )  # fmt: skip


def _counted(computations: list[ComputationInspection]) -> PlainTable:
    """Return what computations counted themselves, such as elements that came too late."""
    return PlainTable(
        ("computation", "counted itself", "count"),
        [
            (computation.name, name, f"{n:,}")
            for computation in computations
            for name, n in sorted(computation.overview.counters.counted.items())
        ],
    )


def _instant(us: int | None) -> str:
    return "-" if us is None else format_timestamp(us)
