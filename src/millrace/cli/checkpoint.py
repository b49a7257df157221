"""``millrace checkpoint``: where a checkpoint stands, and whether it is whole."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from millrace.cli.copying import copy, restore, savepoint
from millrace.cli.verify import verify as verify_checkpoint
from millrace.inspect import Checkpoint, ComputationInspection, StreamOverview, sizes, state_at
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND, format_timestamp
from millrace.spark.plain_text import PlainTable, in_words, size, text_of
from millrace.store import LocalHardState, ObjectHardState, is_object_store, local_path

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
    found = Checkpoint(state)
    computations = [found[name] for name in found.computations]
    streams = list(found.overview.streams.values())
    head = _head(path, state, found)
    if as_json:
        plain = {
            **head,
            "computations": [_plain(one) for one in computations],
            "streams": [msgspec.to_builtins(stream) for stream in streams],
            "sizes": sizes(state),
        }
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        return
    tables = [
        _streams(streams),
        *(made(computations) for made in (_work, _times, _stored, _counted)),
    ]
    shown = [part for table in tables for part in table.without_noughts(_RARE).parts()]
    click.echo(text_of(_said(head, sizes(state)), shown))


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
        journals = f", {verified.journals:,} journals" if verified.journals else ""
        letters = f", {verified.letters:,} messages of letters" if verified.letters else ""
        for finding in verified.findings:
            state = "LOST" if finding.lost else "damaged"
            click.echo(f"{state}: {finding.what}: {finding.problem}")
        click.echo(
            f"read {verified.entries:,} epoch log entries, {verified.commits:,} commits, "
            f"{verified.snapshots:,} snapshots{journals}{letters}: "
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


def _head(path: str, state: LocalHardState | ObjectHardState, found: Checkpoint) -> dict[str, Any]:
    """Return what is of the whole checkpoint."""
    overview = found.overview
    return {
        "location": path if is_object_store(path) else str(local_path(path)),
        "format": state.form.format,
        "created_by": state.form.created_by,
        "pipeline": state.form.pipeline,
        "uuid": state.uuid,
        "generation": overview.generation,
        "epoch": overview.epoch,
        "wall_time": overview.wall_time,
        "state": "drained" if overview.drained else "open",
        "unfinished": overview.unfinished,
    }


def _plain(one: ComputationInspection) -> dict[str, Any]:
    counters = one.overview.counters
    late = counters.first_late
    return {
        "name": one.name,
        "low_watermark": one.overview.low_watermark,
        "output_low_watermark": one.overview.output_low_watermark,
        # Counters travel as arrays in the log; here a person or a script wants their names.
        "counters": msgspec.structs.asdict(counters)
        | {"first_late": None if late is None else msgspec.structs.asdict(late)},
        "intervals": len(one.intervals),
        "commits": one.commits,
        "commits_in_log": one.commits_kept,
        "snapshots": one.snapshots_kept,
        "next_timer": one.next_timer,
        "next_wall_timer": one.next_wall_timer,
        "pending_timers": one.overview.pending_timers,
        "pending_wall_timers": one.overview.pending_wall_timers,
        "hold": one.hold,
    }


def _said(head: dict[str, Any], sizes: dict[str, int]) -> list[tuple[str, str]]:
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
                one.name, f"{one.injected:,}", f"{one.dead_letters:,}", f"{one.dropped:,}",
                _instant(one.newest), format_timestamp(one.low_watermark), _behind(one),
            )
            for one in streams
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
                one.name,
                f"{counters.records:,}",
                f"{counters.late:,}",
                in_words(counters.worst_lateness_us) if counters.late else "-",
                f"{counters.timers:,}",
                f"{counters.productions:,}",
                f"{counters.dead_letters:,}",
                f"{counters.duplicates_filtered:,}",
            )
            for one in computations
            for counters in [one.overview.counters]
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
                one.name,
                format_timestamp(one.overview.low_watermark),
                format_timestamp(one.overview.output_low_watermark),
                _instant(one.next_timer),
                _instant(one.next_wall_timer),
                _instant(one.hold),
                f"{one.overview.pending_timers:,}",
                f"{one.overview.pending_wall_timers:,}",
            )
            for one in computations
        ],
    )  # fmt: skip


def _stored(computations: list[ComputationInspection]) -> PlainTable:
    return PlainTable(
        ("computation", "key intervals", "commits made", "commits kept", "snapshots kept"),
        [
            (
                one.name, f"{len(one.intervals):,}", f"{one.commits:,}", f"{one.commits_kept:,}",
                f"{one.snapshots_kept:,}",
            )
            for one in computations
        ],
    )  # fmt: skip


def _counted(computations: list[ComputationInspection]) -> PlainTable:
    """Return what computations counted themselves, such as elements that came too late."""
    return PlainTable(
        ("computation", "counted itself", "count"),
        [
            (one.name, name, f"{n:,}")
            for one in computations
            for name, n in sorted(one.overview.counters.counted.items())
        ],
    )


def _instant(us: int | None) -> str:
    return "-" if us is None else format_timestamp(us)
