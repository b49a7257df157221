"""``millrace state``: what a checkpoint keeps of keys, without the pipeline's code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from millrace.inspect import (
    WHAT,
    Checkpoint,
    ComputationInspection,
    StateDifference,
    as_json,
    key_text,
    key_value,
    keys_of,
    read_latest,
    rows_of,
    shortened,
    state_at,
    windows_in,
)
from millrace.model.errors import PipelineError
from millrace.model.time import format_timestamp
from millrace.spark.plain_text import PlainTable, text_of

#: Fields of what is pending that are instants.
_INSTANTS = ("at", "held at", "hold", "start", "end", "expires")

#: A cell of a table is cut there: lines that wrap five times show less than ones that are cut.
_CELL_MAX = 60

_CHUNKS = (
    "keeps windows as columns, of all keys together, so none can be shown of one key: "
    "`millrace state scan ... --what chunks` lists what is pending, and when."
)

_epoch = click.option(
    "--epoch", type=click.IntRange(0), help="After that epoch; by default the last completed."
)
_json = click.option("--json", "as_json_", is_flag=True, help="JSON lines, times in microseconds.")


@click.group()
def state() -> None:
    """Read the state of keys in a checkpoint.

    Cells are listed by name, with values decoded by the schemas in the checkpoint. Needs no Spark
    and none of the pipeline's code, writes nothing, and works beside a run.

    A KEY is plain text (ann), JSON (7, true, '["ann",7]', '"7"' for the text), or hexadecimal bytes
    (0x6162).
    """


@state.command(short_help="Show the state of a key.")
@click.argument("path")
@click.argument("computation")
@click.argument("key")
@_epoch
@_json
def get(path: str, computation: str, key: str, epoch: int | None, as_json_: bool) -> None:
    """Show what COMPUTATION keeps of KEY in the checkpoint at PATH: cells, timers and holds.

    Exit code 1: nothing is kept of it.
    """

    def read(checkpoint: Checkpoint) -> tuple[int, dict[str, Any] | None]:
        inspection = checkpoint[computation]
        if inspection.as_columns:
            raise click.ClickException(f"{computation!r} {_CHUNKS}")
        states = (_kept(inspection, each) for each in keys_of(key))
        return checkpoint.epoch, next((state for state in states if state is not None), None)

    at, key_state = _read(path, epoch, read)
    if key_state is None:
        meant = " or ".join(
            f"{type(each).__name__} {shortened(repr(each), each)}" for each in keys_of(key)
        )
        raise click.ClickException(
            f"nothing is kept of key {meant} in {computation!r}, as of epoch {at}. "
            f"`millrace state scan {path} {computation}` lists the keys of which something is."
        )
    if as_json_:
        click.echo(as_json({**_json_row(key_state), "epoch": at}))
        return
    said = shortened(key_text(key_state["key"]), key_state["key"])
    head = [("computation", computation), ("key", said), ("as of epoch", str(at))]
    windows = windows_in(key_state["cells"])
    cells = PlainTable(
        ("cell", "value"),
        # Of a grouping there are only windows, and what finds them.
        [] if windows else list(_cells(key_state["cells"])),
    )
    timers = [_unkeyed(timer) for timer in key_state["timers"]]
    holds = [{"held at": timer["at"], "timer": timer["timer"]} for timer in key_state["holds"]]
    open_windows = [msgspec.structs.asdict(window) for window in windows]
    pending = [_table(list(map(_texts, rows))) for rows in (open_windows, timers, holds)]
    click.echo(text_of(head, [cells, *pending]))


@state.command(short_help="List all keys, or what is pending.")
@click.argument("path")
@click.argument("computation")
@click.option(
    "--what", type=click.Choice(list(WHAT)), default="cells", show_default=True,
    help="Of which to list: windows of a grouping kept key by key, chunks of one kept as columns.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(0), help="At most so many; 0: all. A table has 100 by default."
)
@_epoch
@_json
def scan(
    path: str, computation: str, what: str, limit: int | None, epoch: int | None, as_json_: bool
) -> None:
    """List the state of COMPUTATION in the checkpoint at PATH, in the order of the keys' hashes."""
    if as_json_:
        # Line by line, however many there are, and so of one epoch or of none.
        selected = rows_of(Checkpoint(state_at(path), epoch=epoch)[computation], what)
        for row in itertools.islice(selected, limit or None):
            click.echo(as_json(_json_row(row)))
        return
    most = 100 if limit is None else limit

    def read(checkpoint: Checkpoint) -> tuple[int, list[dict[str, Any]], bool]:
        inspection = checkpoint[computation]
        rows = itertools.islice(rows_of(inspection, what), most + 1 if most else None)
        return checkpoint.epoch, list(rows), inspection.as_columns

    at, rows, as_columns = _read(path, epoch, read)
    more = bool(most) and len(rows) > most
    rows = rows[:most] if more else rows
    head = [("computation", computation), ("as of epoch", str(at))]
    texts = [{name: _cut(text) for name, text in _row_texts(row).items()} for row in rows]
    click.echo(text_of(head, [_table(texts)]))
    if not rows:
        of_keys = as_columns and what in ("cells", "windows")
        click.echo(f"\nIt {_CHUNKS}" if of_keys else f"\nIt keeps no {what}.")
    if more:
        click.echo(f"\nThese are the first {most:,}; --limit 0 shows all, --json line by line.")


@state.command(short_help="Say what changed between two epochs.")
@click.argument("path")
@click.argument("computation")
@click.option("--from-epoch", type=click.IntRange(0), required=True, help="The earlier epoch.")
@click.option("--to-epoch", type=click.IntRange(0), help="The later; by default the last.")
@_json
def diff(
    path: str, computation: str, from_epoch: int, to_epoch: int | None, as_json_: bool
) -> None:
    """Say which keys of COMPUTATION have another state after one epoch than after an earlier one.

    The epoch log keeps the last hundred epochs or so, and the state of those since the last
    snapshots.
    """
    opened = state_at(path)
    before, after = Checkpoint(opened, epoch=from_epoch), Checkpoint(opened, epoch=to_epoch)
    if after.epoch < before.epoch:
        raise PipelineError(
            f"--from-epoch {before.epoch} is later than epoch {after.epoch}. Give the earlier one "
            "first."
        )
    changes = after[computation].changes_since(before[computation])
    if as_json_:
        for change in changes:
            click.echo(as_json(_json_row(msgspec.structs.asdict(change))))
        return
    rows = [row for change in changes for row in _changed(change)]
    head = [("computation", computation), ("epochs", f"{before.epoch} to {after.epoch}")]
    click.echo(text_of(head, [PlainTable(("key", "cell", "before", "after"), rows)]))
    if not rows:
        click.echo("\nNothing has changed.")


def _read(path: str, epoch: int | None, read: Callable[[Checkpoint], Any]) -> Any:
    opened = state_at(path)
    return read_latest(opened, read) if epoch is None else read(Checkpoint(opened, epoch=epoch))


def _kept(inspection: ComputationInspection, key: Any) -> dict[str, Any] | None:
    """Return all that is kept of a key; None if nothing is."""
    cells = inspection.get(key)
    timers = [msgspec.structs.asdict(timer) for timer in inspection.timers(key)]
    holds = [msgspec.structs.asdict(hold) for hold in inspection.holds(key)]
    if not timers and not holds and all(each in (None, [], {}) for each in cells.values()):
        return None
    return {"key": key, "cells": cells, "timers": timers, "holds": holds}


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose key is such as ``get`` takes it."""
    return {**row, "key": key_value(row["key"])} if "key" in row else row


def _cells(cells: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the rows of a table say: a row an entry of a map, a row an item of a bag."""
    for name, value in cells.items():
        if isinstance(value, dict) and value:
            for entry, each in value.items():
                yield f"{name}[{key_text(entry)}]", _text(each)
        else:
            yield name, _text(value)


def _changed(change: StateDifference) -> Iterator[tuple[str, ...]]:
    """Yield what is different of a key: a row a cell, or an entry of a map."""
    before, after = (dict(_cells(cells or {})) for cells in (change.before, change.after))
    key = f"(hash {change.hash})" if change.key is None else key_text(change.key)
    for name in {**before, **after}:
        was, now = before.get(name, "-"), after.get(name, "-")
        if was != now:
            yield _cut(key), name, _cut(was), _cut(now)


def _table(rows: list[dict[str, str]]) -> PlainTable:
    columns = tuple(rows[0]) if rows else ()
    return PlainTable(columns, [tuple(row[name] for name in columns) for row in rows])


def _row_texts(row: dict[str, Any]) -> dict[str, str]:
    """Return a row as columns: of a key that rows have only a digest of, with its hash instead."""
    if "cells" not in row:
        return _texts(row)
    # A cell may have the name of a column of what is pending.
    cells = {name: _text(value) for name, value in row["cells"].items()}
    return {"key": f"(hash {row['hash']})" if row["key"] is None else key_text(row["key"]), **cells}


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {name: _value_text(name, value) for name, value in row.items()}


def _value_text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("key", "tag"):
        return key_text(value)
    if name == "domain":
        return str(value)
    if name in _INSTANTS and isinstance(value, int):
        return format_timestamp(value)
    if name == "timer":
        return f"{key_text(value.tag)} at {format_timestamp(value.at)}"
    return _text(value)


def _unkeyed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in row.items() if name != "key"}


def _text(value: Any) -> str:
    return "-" if value is None else as_json(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}..."
