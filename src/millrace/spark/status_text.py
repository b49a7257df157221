"""A status for people: a line, aligned text, or tables of a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.model.time import (
    MAX_TIMESTAMP,
    MILLISECOND,
    MIN_TIMESTAMP,
    SECOND,
    format_duration,
    format_timestamp,
)

if TYPE_CHECKING:
    from millrace.spark.status import Status

#: Wider than any table: lines are the reader's to wrap, and a cell that was cut would lie.
_WIDTH = 10_000

_KIB = 1024

#: An epoch that is under way for so many seconds is worth a word.
_LONG_S = 5.0

#: Columns that are left out where they say nothing of any computation.
_RARE = ("duplicates", "dead letters", "behind", "oldest work", "next wall timer")


class _Table(NamedTuple):
    """Cells as text. Columns but the first are numbers or times, to the right."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def as_line(status: Status, *, under_way: float = 0.0) -> str:
    """Return a status in one line: what is most worth knowing first.

    Args:
        status: The status.
        under_way: For how long the next epoch has been under way, in seconds.
    """
    records = sum(status.injected.values())
    dead = sum(counters.dead_letters for counters in status.counters.values())
    refused = sum(status.refused.values())
    behind = _behind(status, status.low_watermark)
    running = status.state == "running"
    parts = [
        (f"epoch {status.epoch}" if status.epoch >= 0 else "no epoch yet", True),
        (_count(records, "record"), True),
        (f"{_rate(status.records_per_second)}/s", running and status.records_per_second),
        (f"{behind} behind", behind),
        (f"{status.late:,} late", status.late),
        (f"{refused:,} refused", refused),
        (_count(dead, "dead letter"), dead),
        # Of one that takes its usual time there is nothing to say.
        (f"epoch {status.epoch + 1} for {under_way:,.0f} s", running and under_way >= _LONG_S),
        (_time(status.low_watermark), True),
    ]
    said = ", ".join(part for part, there in parts if there)
    return f"{status.pipeline}: {status.state}, {said}"


def as_text(status: Status) -> str:
    """Return a status as aligned text, without a newline at its end."""
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, color_system=None, force_terminal=False)
    head = Table.grid(padding=(0, 2))
    for name, value in _head(status):
        head.add_row(Text(name), Text(value))
    console.print(head)
    for table in _tables(status):
        # Plain spaces: it may go into a log, or to a terminal that knows only ASCII.
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for number, name in enumerate(table.columns):
            drawn.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for row in table.rows:
            # Text, not str: names of a user's may look like rich's markup.
            drawn.add_row(*map(Text, row))
        console.print()
        console.print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def as_html(status: Status) -> str:
    """Return a status as HTML tables, for a notebook."""
    head = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _head(status)
    )
    return "\n".join([f"<table>{head}</table>", *map(_html, _tables(status))])


def _html(table: _Table) -> str:
    def row(tag: str, cells: Iterable[str]) -> str:
        drawn = (
            f"<{tag} style='text-align:{'right' if number else 'left'}'>{escape(cell)}</{tag}>"
            for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(drawn)}</tr>"

    rows = "".join(row("td", cells) for cells in table.rows)
    return f"<table><thead>{row('th', table.columns)}</thead><tbody>{rows}</tbody></table>"


# -- what is said ----------------------------------------------------------------------------------


def _head(status: Status) -> list[tuple[str, str]]:
    """Return name and value of what is of the whole run; what is nought is left out."""
    epoch = "none has completed yet"
    if status.epoch >= 0:
        took = (
            f", in {_rough(round(status.epoch_seconds * SECOND))}" if status.epoch_seconds else ""
        )
        epoch = f"{status.epoch} was the last to complete{took}"
    records = f"{sum(status.injected.values()):,}"
    if status.records_per_second:
        records += f", {_rate(status.records_per_second)} a second in the last epochs"
    rows = [
        ("pipeline", status.pipeline),
        ("state", status.state),
        ("epoch", epoch),
        ("generation", str(status.generation)),
        ("records", records),
        ("low watermark", _low_watermark(status)),
    ]
    if status.late:
        worst_us = max(counters.worst_lateness_us for counters in status.counters.values())
        rows.append(("late", f"{status.late:,}, the worst by {_rough(worst_us)}"))
    for name, processes in (("idle", status.idle), ("never heard of", status.missing)):
        said = "; ".join(f"{stream}: {', '.join(names)}" for stream, names in processes.items())
        if said:
            rows.append((name, said))
    found = [
        (status.replayed, f"{_count(status.replayed, 'commit')} of earlier attempts replayed"),
        (status.repaired, f"{_count(status.repaired, 'commit')} applied to caches"),
        (status.rebuilt, f"{_count(status.rebuilt, 'cache')} built again"),
        (status.recovered_bytes, f"{_size(status.recovered_bytes)} read for that"),
        (status.damaged, f"{status.damaged:,} damaged or missing"),
    ]
    kept = [
        (
            status.snapshots,
            f"{_count(status.snapshots, 'snapshot')} of {_size(status.snapshot_bytes)}",
        ),
        (status.collected, f"{status.collected:,} files collected"),
        (
            status.housekeeping_failures,
            f"{_count(status.housekeeping_failures, 'failure')}, see the log",
        ),
    ]
    for name, facts in (("recovery", found), ("housekeeping", kept)):
        said = ", ".join(words for n, words in facts if n)
        if said:
            rows.append((name, said))
    return rows


def _tables(status: Status) -> list[_Table]:
    return [table for table in (_streams(status), _work(status), _counted(status)) if table.rows]


def _streams(status: Status) -> _Table:
    return _Table(
        ("injected stream", "records", "refused", "newest record"),
        [
            (
                name,
                f"{status.injected.get(name, 0):,}",
                f"{status.refused.get(name, 0):,}",
                format_timestamp(status.newest[name]) if name in status.newest else "-",
            )
            for name in sorted({*status.injected, *status.refused, *status.newest})
        ],
    )


def _work(status: Status) -> _Table:
    """Return what computations did and wait for; of the rarer columns those that say something."""

    def counts(field: str) -> dict[str, str]:
        return {name: f"{getattr(known, field):,}" for name, known in status.counters.items()}

    def instants(times: dict[str, int]) -> dict[str, str]:
        return {name: format_timestamp(us) for name, us in times.items()}

    lags = {name: _behind(status, us) for name, us in status.low_watermarks.items()}
    columns = {
        "records": counts("records"),
        "late": counts("late"),
        "duplicates": counts("duplicates_filtered"),
        "timers fired": counts("timers"),
        "productions": counts("productions"),
        "dead letters": counts("dead_letters"),
        "low watermark": instants(status.low_watermarks),
        "behind": {name: lag for name, lag in lags.items() if lag},
        "oldest work": instants(status.oldest_work),
        "next wall timer": instants(status.wall_timers),
    }
    for name in _RARE:
        if set(columns[name].values()) <= {"0"}:
            del columns[name]
    return _Table(
        ("computation", *columns),
        [(name, *(cells.get(name, "-") for cells in columns.values())) for name in status.counters],
    )


def _counted(status: Status) -> _Table:
    return _Table(
        ("computation", "counted itself", "count"),
        [
            (name, counter, f"{n:,}")
            for name, counters in status.counters.items()
            for counter, n in sorted(counters.counted.items())
        ],
    )


def _low_watermark(status: Status) -> str:
    said = format_timestamp(status.low_watermark)
    behind = _behind(status, status.low_watermark)
    return f"{said}, {behind} behind the newest record" if behind else said


def _time(low_watermark_us: int) -> str:
    """Return where event time is, for a line."""
    if low_watermark_us >= MAX_TIMESTAMP:
        return "low watermark at the end of time"
    if low_watermark_us <= MIN_TIMESTAMP:
        return "no low watermark yet"
    return f"low watermark {format_timestamp(low_watermark_us)}"


def _behind(status: Status, low_watermark_us: int) -> str:
    """Return how far a low watermark is behind; nothing if it cannot be said, or has no end."""
    seconds = status.behind(low_watermark_us)
    if seconds is None or low_watermark_us >= MAX_TIMESTAMP:
        return ""
    return _rough(round(seconds * SECOND))


def _rough(us: int) -> str:
    """Return a duration without digits that nobody reads."""
    digit_us = 100 * MILLISECOND if us >= SECOND else MILLISECOND if us >= MILLISECOND else 1
    return format_duration(round(us / digit_us) * digit_us)


def _rate(per_second: float) -> str:
    """Return a rate for a person.

    >>> _rate(12_345.6), _rate(3.21), _rate(0.04)
    ('12,346', '3.2', '0.04')
    """
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def _size(size: int) -> str:
    """Return a number of bytes for a person.

    >>> _size(512), _size(2_048), _size(5_000_000)
    ('512 bytes', '2.0 KiB', '4.8 MiB')
    """
    if size < _KIB:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= _KIB
        if value < _KIB:
            return f"{value:.1f} {unit}"
    return f"{value / _KIB:,.1f} TiB"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
