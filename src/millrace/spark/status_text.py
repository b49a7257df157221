"""A status for people: a line, aligned text, or tables of a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from millrace.injectors.advance import Backlog
from millrace.inspect.overview import origin_of
from millrace.kernel.results import CallStats
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND, format_timestamp
from millrace.spark.plain_text import PlainTable, count, in_words, size, text_of

if TYPE_CHECKING:
    from millrace.spark.status import Status

#: An epoch that is under way for so many seconds is worth a word.
_LONG_S = 5.0

#: Columns that are left out where they say nothing of any computation.
_RARE = (
    "duplicates", "dead letters", "low watermarks refused", "dropped", "behind", "oldest work",
    "next wall timer", "user code", "p50, p95, p99 of a call",
    "service calls", "p50, p95, p99 of a service", "state", "bytes", "backlog",
    "cache hits", "pending timers", "pending wall timers",
)  # fmt: skip

#: A key with less of a computation's records is none to name.
_HOT = 0.05
_HOT_KEYS = 3


def as_line(status: Status, *, under_way: float = 0.0) -> str:
    """Return a status in one line: what is most worth knowing first.

    Args:
        status: The status.
        under_way: For how long the next epoch has been under way, in seconds.
    """
    records = sum(status.injected.values())
    dead = sum(status.dead_letters.values())
    behind = _behind(status, status.low_watermark)
    running = status.state == "running"
    parts = [
        (f"epoch {status.epoch}" if status.epoch >= 0 else "no epoch yet", True),
        (count(records, "record"), True),
        (f"{_rate(status.records_per_second)}/s", running and status.records_per_second),
        (f"{behind} behind", behind),
        (f"{status.late:,} late", status.late),
        (count(dead, "dead letter"), dead),
        # Of one that takes its usual time there is nothing to say.
        (f"epoch {status.epoch + 1} for {under_way:,.0f} s", running and under_way >= _LONG_S),
        (_time(status.low_watermark), True),
    ]
    said = ", ".join(part for part, there in parts if there)
    return f"{status.pipeline}: {status.state}, {said}"


def as_text(status: Status) -> str:
    """Return a status as aligned text, without a newline at its end."""
    return text_of(_head(status), [part for table in _tables(status) for part in table.parts()])


def as_html(status: Status) -> str:
    """Return a status as HTML tables, for a notebook."""
    head = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _head(status)
    )
    return "\n".join([f"<table>{head}</table>", *map(_html, _tables(status))])


def _html(table: PlainTable) -> str:
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
            f", in {in_words(round(status.epoch_seconds * SECOND))}" if status.epoch_seconds else ""
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
        rows.append(("late", f"{status.late:,}, the worst by {in_words(worst_us)}"))
    for name, processes in (("idle", status.idle), ("never heard of", status.missing)):
        said = "; ".join(f"{stream}: {', '.join(names)}" for stream, names in processes.items())
        if said:
            rows.append((name, said))
    rows += [
        ("left unread", f"{stream}: {len(pieces):,} pieces")
        for stream, pieces in status.left.items()
    ]
    if status.standby:
        rows.append(("standby", status.standby))
    rows += [("held back", f"{stream}: {said}") for stream, said in status.held_back.items()]
    rows += [("stuck", str(stuck)) for stuck in status.stuck]
    pairs = [
        (status.replayed, f"{count(status.replayed, 'commit')} of earlier attempts replayed"),
        (status.repaired, f"{count(status.repaired, 'commit')} applied to caches"),
        (status.rebuilt, f"{count(status.rebuilt, 'cache')} built again"),
        (status.recovered_bytes, f"{size(status.recovered_bytes)} read for that"),
        (status.damaged, f"{status.damaged:,} damaged or missing"),
    ]
    shown_pairs = [
        (
            status.snapshots,
            f"{count(status.snapshots, 'snapshot')} of {size(status.snapshot_bytes)}",
        ),
        (status.collected, f"{status.collected:,} files collected"),
        (
            status.housekeeping_failures,
            f"{count(status.housekeeping_failures, 'failure')}, see the log",
        ),
    ]
    for name, facts in (("recovery", pairs), ("housekeeping", shown_pairs)):
        said = ", ".join(words for n, words in facts if n)
        if said:
            rows.append((name, said))
    return rows


def _tables(status: Status) -> list[PlainTable]:
    tables = (
        _streams(status),
        _work(status),
        _steps(status),
        _hottest(status),
        _counted(status),
    )
    return [table for table in tables if table.rows]


def _streams(status: Status) -> PlainTable:
    columns: dict[str, dict[str, str]] = {
        "records": {name: f"{n:,}" for name, n in status.injected.items()},
        "bytes": {name: size(n) for name, n in status.injected_bytes.items() if n},
        "dead letters": {name: f"{n:,}" for name, n in _refused(status).items()},
        "low watermarks refused": {
            name: f"{n:,}" for name, n in status.refused_low_watermarks.items()
        },
        "dropped": {name: f"{n:,}" for name, n in status.dropped.items()},
        "newest record": {name: format_timestamp(us) for name, us in status.newest.items()},
        "backlog": {name: waits(one) for name, one in status.backlog.items()},
    }
    letters = columns["dead letters"]
    known = status.injected, letters, status.dropped, status.newest, status.backlog
    names = sorted(set().union(*known))
    nothing = dict.fromkeys(("records", "dead letters", "low watermarks refused", "dropped"), "0")
    return PlainTable(
        ("injected stream", *columns),
        [
            (
                name,
                *(column.get(name, nothing.get(title, "-")) for title, column in columns.items()),
            )
            for name in names
        ],
    ).without_noughts(_RARE)


def _refused(status: Status) -> dict[str, int]:
    """Return injected stream -> its dead letters."""
    shared = {origin_of(name, status.counters): name for name in status.counters}
    return {
        shared.get(name, name): letters
        for name, letters in status.dead_letters.items()
        if name not in status.counters
    }


def waits(backlog: Backlog) -> str:
    """Return what waits in a source, for a person.

    >>> waits(Backlog(files=3, size=2_500_000)), waits(Backlog(records=0))
    ('3 files, 2.4 MiB', '0 records')
    """
    known = (
        (backlog.records, count(backlog.records or 0, "record")),
        (backlog.files, count(backlog.files or 0, "file")),
        (backlog.size, size(backlog.size or 0)),
    )
    return ", ".join(words for n, words in known if n is not None) or "-"


def _work(status: Status) -> PlainTable:
    """Return what computations did and wait for; of the rarer columns those that say something."""

    def counts(field: str) -> dict[str, str]:
        return {name: f"{getattr(known, field):,}" for name, known in status.counters.items()}

    def instants(times: dict[str, int]) -> dict[str, str]:
        return {name: format_timestamp(us) for name, us in times.items()}

    lags = {name: _behind(status, us) for name, us in status.low_watermarks.items()}
    columns = {
        "records": counts("records"),
        "bytes": {name: size(n) for name, n in status.received_bytes.items() if n},
        "late": counts("late"),
        "duplicates": counts("duplicates_filtered"),
        "timers fired": counts("timers"),
        "productions": counts("productions"),
        "dead letters": counts("dead_letters"),
        "low watermark": instants(status.low_watermarks),
        "behind": {name: lag for name, lag in lags.items() if lag},
        "oldest work": instants(status.oldest_work),
        "pending timers": {name: f"{n:,}" for name, n in status.pending_timers.items()},
        "pending wall timers": {name: f"{n:,}" for name, n in status.pending_wall_timers.items()},
        "next wall timer": instants(status.wall_timers),
        "user code": {
            name: in_words(round(load.seconds * SECOND))
            for name, load in status.load.items()
            if load.seconds
        },
        "p50, p95, p99 of a call": {
            name: ", ".join(in_words(round(s * SECOND)) for s in load.times.percentiles())
            for name, load in status.load.items()
            if load.times.calls
        },
        "service calls": {
            name: _service_calls(calls) for name, calls in status.calls.items() if calls.made
        },
        "p50, p95, p99 of a service": {
            name: ", ".join(in_words(round(s * SECOND)) for s in calls.times.percentiles())
            for name, calls in status.calls.items()
            if calls.times.calls
        },
        "cache hits": {
            name: f"{load.cache_hits / (load.cache_hits + load.cache_misses):.1%}"
            for name, load in status.load.items()
            if load.cache_misses
        },
        "state": {
            name: size(load.state_bytes) for name, load in status.load.items() if load.state_rows
        },
    }
    table = PlainTable(
        ("computation", *columns),
        [(name, *(cells.get(name, "-") for cells in columns.values())) for name in status.counters],
    )
    return table.without_noughts(_RARE)


def _service_calls(calls: CallStats) -> str:
    """Return how many calls were made, and what is unusual about them.

    >>> _service_calls(CallStats(made=1200, retried=3, failed=1)), _service_calls(CallStats(made=7))
    ('1,200 (3 retried, 1 failed)', '7')
    """
    unusual = [
        f"{n:,} {what}"
        for what, n in (
            ("retried", calls.retried),
            ("failed", calls.failed),
            ("in flight", calls.in_flight),
            ("waiting", calls.waiting),
        )
        if n
    ]
    if calls.breaker_open_us:
        unusual.append(f"paused for {in_words(calls.breaker_open_us)}: the service is down")
    return f"{calls.made:,}" + (f" ({', '.join(unusual)})" if unusual else "")


def _steps(status: Status) -> PlainTable:
    """Return where the time of a record goes in real time."""
    return PlainTable(
        ("step of a record, lately", "p50 ms", "p95 ms", "p99 ms"),
        [(name, *map(_milliseconds, times)) for name, times in status.steps.items()],
    )


def _milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, of three digits that count.

    >>> _milliseconds(1.76), _milliseconds(0.0123), _milliseconds(0.00012345)
    ('1,760', '12.3', '0.123')
    """
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _hottest(status: Status) -> PlainTable:
    """Return the keys that much of a computation's records are of, lately."""
    return PlainTable(
        ("computation", "hottest key", "of its records"),
        [
            (name, hot.key, f"about {hot.share:.0%}")
            for name, load in status.load.items()
            for hot in load.hottest[:_HOT_KEYS]
            if hot.share >= _HOT
        ],
    )


def _counted(status: Status) -> PlainTable:
    return PlainTable(
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
    return in_words(round(seconds * SECOND))


def _rate(per_second: float) -> str:
    """Return a rate for a person.

    >>> _rate(12_345.6), _rate(3.21), _rate(0.04)
    ('12,346', '3.2', '0.04')
    """
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"
