"""``millrace checkpoint``: where a checkpoint stands, and whether it is whole."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.cli.summary import ComputationSummary, StreamSummary, Summary, read
from millrace.cli.verify import verify as verify_checkpoint
from millrace.model.time import SECOND, format_timestamp

#: Wide enough for every column. Into a pipe or a file, rich would assume 80 columns and cut cells.
_PIPE_WIDTH = 200


@click.group()
def checkpoint() -> None:
    """Look into a checkpoint."""


@checkpoint.command()
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
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    console.print(_head(summary))
    if summary.streams:
        console.print(_streams(summary.streams))
    if summary.computations:
        console.print(_computations(summary.computations))
        console.print(_pending(summary.computations))
        if any(one.counters.counted for one in summary.computations):
            console.print(_counted(summary.computations))


@checkpoint.command()
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


def _head(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    if summary.unfinished is not None:
        unfinished = f"{summary.unfinished} (a run is in it, or the next run finishes it)"
    else:
        unfinished = "none"
    for name, value in (
        ("checkpoint", summary.location),
        ("format", f"{summary.format} (made by millrace {summary.created_by})"),
        ("pipeline", summary.pipeline),
        ("uuid", summary.uuid),
        ("generation", str(summary.generation)),
        ("state", summary.state),
        ("last epoch", _epoch(summary)),
        ("unfinished epoch", unfinished),
        ("on disk", ", ".join(f"{name} {size:,} bytes" for name, size in summary.sizes.items())),
    ):
        # Text, not a str: names of a user's may look like rich's markup.
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _epoch(summary: Summary) -> str:
    if summary.wall_time is None:
        return "none"
    return f"{summary.epoch} (at {format_timestamp(summary.wall_time)})"


def _streams(streams: list[StreamSummary]) -> Table:
    table = _table("injected stream", "records", "refused", "newest", "low watermark")
    for one in streams:
        newest = "-" if one.newest is None else format_timestamp(one.newest)
        low_watermark = format_timestamp(one.low_watermark)
        _add(table, one.name, one.injected, one.refused, newest, low_watermark)
    return table


def _computations(computations: list[ComputationSummary]) -> Table:
    table = _table(
        "computation", "records", "late", "worst lateness", "timers", "productions",
        "dead letters", "duplicates", "intervals", "commits", "in log", "snapshots",
    )  # fmt: skip
    for one in computations:
        counters = one.counters
        worst = f"{counters.worst_lateness_us / SECOND:,.6g} s" if counters.late else "-"
        _add(
            table, one.name, counters.records, counters.late, worst, counters.timers,
            counters.productions, counters.dead_letters, counters.duplicates_filtered,
            one.intervals, one.commits, one.commits_in_log, one.snapshots,
        )  # fmt: skip
    return table


def _pending(computations: list[ComputationSummary]) -> Table:
    table = _table(
        "computation", "low watermark", "shown to consumers", "next timer", "next wall-clock timer",
        "held at",
    )  # fmt: skip
    for one in computations:
        pending = [
            "-" if at_us is None else format_timestamp(at_us)
            for at_us in (one.next_timer, one.next_wall_timer, one.hold)
        ]
        low_watermark = format_timestamp(one.low_watermark)
        _add(table, one.name, low_watermark, format_timestamp(one.output_low_watermark), *pending)
    return table


def _counted(computations: list[ComputationSummary]) -> Table:
    """Return what computations counted themselves, such as elements that came too late."""
    table = _table("computation", "counter", "count")
    for one in computations:
        for name, n in sorted(one.counters.counted.items()):
            _add(table, one.name, name, n)
    return table


def _table(first: str, *rest: str) -> Table:
    table = Table()
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right")
    return table


def _add(table: Table, *cells: str | int) -> None:
    table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in cells))
