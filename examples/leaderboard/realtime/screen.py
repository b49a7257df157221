"""What is shown while the game goes on: the board, what arrives, and how long it took."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import millrace as mr

from .kill import Kill
from .reports import Report, Reports

_LATELY_US = 5 * mr.SECOND
_SHOWN = 8


class Moment(NamedTuple):
    """What is known of the last seconds.

    Attributes:
        second: Of the game.
        scores: Sent, a second.
        reports: Arrived, a second.
        latencies_ms: From a score to its report: the median and the 95th percentile.
        board: The newest leaderboard.
        latest: The last reports.
        note: What else there is to say.
    """

    second: float
    scores: float
    reports: float
    latencies_ms: tuple[float, float] | None
    board: Report | None
    latest: list[Report]
    note: str


def look(reports: Reports, sent_us: np.ndarray, begin_us: int, now_us: int, note: str) -> Moment:
    """Return how things are now.

    Args:
        reports: So far.
        sent_us: When each score of the game is sent, in order.
        begin_us: When the game began.
        now_us: The time.
        note: To be shown.
    """
    since_us = max(begin_us, now_us - _LATELY_US)
    seconds = max(1, now_us - since_us) / mr.SECOND
    lately = reports.since(since_us)
    sent = np.searchsorted(sent_us, [since_us, now_us])
    boards = [one for one in lately if one.stream == "leaderboard"]
    return Moment(
        (now_us - begin_us) / mr.SECOND,
        float(sent[1] - sent[0]) / seconds,
        len(lately) / seconds,
        percentiles(lately),
        max(boards, key=lambda one: (one.columns["_window_start"], one.at_us), default=None),
        lately[-_SHOWN:],
        note,
    )


def percentiles(reports: list[Report]) -> tuple[float, float] | None:
    """Return the median and the 95th percentile of latency, in ms, of those that have one."""
    latencies = [one.latency_us / 1000 for one in reports if one.latency_us is not None]
    if not latencies:
        return None
    p50, p95 = np.percentile(latencies, [50, 95])
    return float(p50), float(p95)


def view(moment: Moment) -> RenderableType:
    """Return a picture of it for a terminal, always of the same height."""
    board = Table(box=None, pad_edge=False, header_style="dim")
    board.add_column(_window(moment.board), width=30)
    board.add_column("points", justify="right")
    for place, total in enumerate(_best(moment.board), 1):
        board.add_row(f"{place}. {total['team']}", f"{total['points']:,}")
    latest = Table(box=None, pad_edge=False, header_style="dim")
    latest.add_column("arrived")
    latest.add_column("report", width=42)
    latest.add_column("pane", width=7)
    latest.add_column("latency", justify="right", width=12)
    for one in moment.latest:
        latency = "" if one.latency_us is None else f"{one.latency_us / 1000:.1f} ms"
        latest.add_row(_clock(one.at_us), *_said(one), latency)
    for table, rows in ((board, 3), (latest, _SHOWN)):
        for _ in range(rows - table.row_count):
            table.add_row()
    return Group(Text(_rates(moment), "bold"), "", board, "", latest, "", Text(moment.note, "red"))


def line(moment: Moment) -> str:
    """Return it in a line."""
    best = ", ".join(f"{total['team']} {total['points']:,}" for total in _best(moment.board))
    return f"{_rates(moment)}; {_window(moment.board)} {best}; {moment.note}".rstrip("; ")


def _rates(moment: Moment) -> str:
    return (
        f"{moment.second:3.0f} s: {moment.scores:4.0f} scores/s, {moment.reports:4.0f} reports/s, "
        f"{_latency(moment.latencies_ms)}"
    )


def _latency(percentiles_ms: tuple[float, float] | None) -> str:
    if percentiles_ms is None:
        return "no latency"
    return "latency p50 {:.1f} ms, p95 {:.1f} ms".format(*percentiles_ms)


def _best(board: Report | None) -> list[dict[str, Any]]:
    return [] if board is None else board.columns["value"]


def _window(report: Report | None) -> str:
    if report is None:
        return ""
    begin, end = (report.columns[f"_window_{side}"] for side in ("start", "end"))
    return f"{begin[11:19]} to {end[11:19]}"


def _said(report: Report) -> tuple[str, str]:
    """Return a report in words, and which pane of its window it is."""
    columns = report.columns
    match report.stream:
        case "team_totals":
            what = f"{columns['team']} {columns['points']:,}"
        case "leaderboard":
            what = " > ".join(total["team"] for total in columns["value"])
        case _:
            return f"{columns['user']} made {columns['scores']} scores without a pause", ""
    timing = columns["_pane_timing"].lower().replace("_", " ")
    return f"{_window(report)[:8]} {what}", timing


def _clock(us: int) -> str:
    return f"{dt.datetime.fromtimestamp(us / mr.SECOND, dt.UTC):%H:%M:%S.%f}"[:-3]


def summary(reports: Reports, played: pd.DataFrame, kill: Kill) -> list[str]:
    """Return what came of it, in the end.

    Args:
        reports: All of them.
        played: The scores.
        kill: Of a worker.
    """
    timed = [one for one in reports.arrived if one.latency_us is not None]
    late = sum(one.columns["_pane_timing"] == "LATE" for one in timed)
    undisturbed = [one for one in timed if kill.killed_us is None or one.at_us < kill.killed_us]
    said = [
        f"{len(played):,} scores of {played['user'].nunique()} players; {len(timed):,} totals "
        f"reported for them, {late:,} of windows that were over"
    ]
    if undisturbed:
        said.append(f"{_latency(percentiles(undisturbed))} until the kill, from score to report")
    if kill.killed_us is not None and timed:
        said.append(kill.words(timed[-1].at_us))
        said.append(f"{reports.again:,} reports came twice, and were dropped by their ids")
    return said
