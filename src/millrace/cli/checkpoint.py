"""``millrace checkpoint``: where a checkpoint stands, and whether it is whole."""

from __future__ import annotations

import click
import msgspec

from millrace.cli.summary import ComputationSummary, StreamSummary, Summary, read
from millrace.cli.verify import verify as verify_checkpoint
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND, format_timestamp
from millrace.spark.plain_text import PlainTable, in_words, size, text_of

#: Columns that are left out where they say nothing of any row.
_RARE = (
    "refused", "behind", "worst lateness", "dead letters", "duplicates", "next timer",
    "next wall timer", "held at",
)  # fmt: skip


@click.group()
def checkpoint() -> None:
    """Look into a checkpoint."""


@checkpoint.command(short_help="Show where it stands.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in microseconds.")
def show(path: str, as_json: bool) -> None:
    """Show where the checkpoint at PATH stands, as of its last completed epoch.

    Needs no Spark, writes nothing, and may be used while a run goes on.
    """
    summary = read(path)
    if as_json:
        click.echo(msgspec.json.format(_as_json(summary), indent=2))
        return
    made_of = (_work, _times, _stored, _counted)
    tables = [_streams(summary.streams), *(make(summary.computations) for make in made_of)]
    shown = [table.without_noughts(_RARE) for table in tables]
    click.echo(text_of(_head(summary), shown))


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
        for finding in verified.findings:
            state = "LOST" if finding.lost else "damaged"
            click.echo(f"{state}: {finding.what}: {finding.problem}")
        click.echo(
            f"read {verified.entries:,} epoch log entries, {verified.commits:,} commits, "
            f"{verified.snapshots:,} snapshots: "
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


def _as_json(summary: Summary) -> bytes:
    plain = msgspec.to_builtins(summary)
    # Counters travel as arrays in the log; here a person or a script wants their names.
    for one, entry in zip(summary.computations, plain["computations"], strict=True):
        counters = entry["counters"] = msgspec.structs.asdict(one.counters)
        if one.counters.first_late is not None:
            counters["first_late"] = msgspec.structs.asdict(one.counters.first_late)
    return msgspec.json.encode(plain)


def _head(summary: Summary) -> list[tuple[str, str]]:
    state = {
        "open": "open: a run can go on from here, or is under way",
        "drained": "drained: the input has ended, and all results are out",
    }
    rows = [
        ("checkpoint", summary.location),
        ("format", f"{summary.format}, made by millrace {summary.created_by}"),
        ("pipeline", summary.pipeline),
        ("uuid", summary.uuid),
        ("generation", str(summary.generation)),
        ("state", state[summary.state]),
        ("last epoch", _epoch(summary)),
    ]
    if summary.unfinished is not None:
        unfinished = f"{summary.unfinished}: a run is in it, or the next run finishes it"
        rows.append(("unfinished epoch", unfinished))
    sizes = ", ".join(f"{name} {size(n)}" for name, n in summary.sizes.items())
    return [*rows, ("on disk", sizes)]


def _epoch(summary: Summary) -> str:
    if summary.wall_time is None:
        return "none has completed yet"
    return f"{summary.epoch}, at {format_timestamp(summary.wall_time // SECOND * SECOND)}"


def _streams(streams: list[StreamSummary]) -> PlainTable:
    return PlainTable(
        ("injected stream", "records", "refused", "newest record", "low watermark", "behind"),
        [
            (
                one.name, f"{one.injected:,}", f"{one.refused:,}", _instant(one.newest),
                format_timestamp(one.low_watermark), _behind(one),
            )
            for one in streams
        ],
    )  # fmt: skip


def _behind(stream: StreamSummary) -> str:
    """Return how far an injector's low watermark is behind its newest record."""
    if stream.newest is None or not MIN_TIMESTAMP < stream.low_watermark < MAX_TIMESTAMP:
        return "-"
    return in_words(max(0, stream.newest - stream.low_watermark))


def _work(computations: list[ComputationSummary]) -> PlainTable:
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
            for counters in [one.counters]
        ],
    )  # fmt: skip


def _times(computations: list[ComputationSummary]) -> PlainTable:
    """Return where computations stand in event time, and what they wait for."""
    return PlainTable(
        (
            "computation", "low watermark", "shown to consumers", "next timer", "next wall timer",
            "held at",
        ),
        [
            (
                one.name,
                format_timestamp(one.low_watermark),
                format_timestamp(one.output_low_watermark),
                _instant(one.next_timer),
                _instant(one.next_wall_timer),
                _instant(one.hold),
            )
            for one in computations
        ],
    )  # fmt: skip


def _stored(computations: list[ComputationSummary]) -> PlainTable:
    return PlainTable(
        ("computation", "key intervals", "commits made", "commits kept", "snapshots kept"),
        [
            (
                one.name, f"{one.intervals:,}", f"{one.commits:,}", f"{one.commits_in_log:,}",
                f"{one.snapshots:,}",
            )
            for one in computations
        ],
    )  # fmt: skip


def _counted(computations: list[ComputationSummary]) -> PlainTable:
    """Return what computations counted themselves, such as elements that came too late."""
    return PlainTable(
        ("computation", "counted itself", "count"),
        [
            (one.name, name, f"{n:,}")
            for one in computations
            for name, n in sorted(one.counters.counted.items())
        ],
    )


def _instant(us: int | None) -> str:
    return "-" if us is None else format_timestamp(us)
