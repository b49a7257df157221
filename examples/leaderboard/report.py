"""What a run has found, as tables for people."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

import millrace as mr

from . import results

PANES_MAX = 12
"""Panes of one window that are shown: what fits on a screen."""

_WHEN = {
    "EARLY": "[cyan]early[/]",
    "ON_TIME": "[green]on time[/]",
    "LATE": "[yellow]late[/]",
}


def clock(us: int) -> str:
    """Return the time of day of an instant in microseconds, UTC.

    >>> clock(90 * mr.MINUTE)
    '01:30'
    """
    return f"{dt.datetime.fromtimestamp(us / mr.SECOND, dt.UTC):%H:%M}"


def show(panes: dict[str, pd.DataFrame], answers: dict[str, list[tuple]], console: Console) -> None:
    """Print the tables.

    Args:
        panes: As of `results.read`.
        answers: As of `batch.answers`.
        console: Where to.
    """
    for title, table in (
        one_window(panes["team_totals"]),
        standings(panes["leaderboard"]),
        play_time(panes["session_lengths"]),
        suspects(panes["robots"]),
        counts(panes, answers),
    ):
        console.print(f"\n[bold]{title}[/]")
        console.print(table)


def most_refined(totals: pd.DataFrame) -> pd.DataFrame:
    """Return the panes of the team and hour that late scores changed most."""

    def changed(panes: pd.DataFrame) -> int:
        kept = panes[~panes["_retraction"]]
        late = kept.loc[kept["_pane_timing"] == "LATE", "points"]
        before = kept.loc[kept["_pane_timing"] != "LATE", "points"]
        return int(late.iloc[-1] - before.iloc[-1]) if len(late) and len(before) else 0

    windows = totals.groupby(["_key", "_window_start"])
    return max((panes for _, panes in windows), key=changed)


def one_window(totals: pd.DataFrame) -> tuple[str, Table]:
    """Return how the total of one team and hour came about, pane by pane."""
    panes = most_refined(totals).to_dict("records")
    table = _table("at", "pane", "total>", "")
    if len(panes) > PANES_MAX:
        table.add_row("...", "", "", f"{len(panes) - PANES_MAX} panes before these")
    for pane in panes[-PANES_MAX:]:
        at, points = f"{pane['_production_time']:%H:%M}", f"{pane['points']:,}"
        if pane["_retraction"]:
            table.add_row(at, "", f"[dim]−{points}[/]", "[dim]taken back[/]")
        else:
            table.add_row(at, _WHEN[pane["_pane_timing"]], points, "")
    return f"How the total of the {panes[0]['_key']}, {_hour(panes[0])}, came about", table


def standings(boards: pd.DataFrame) -> tuple[str, Table]:
    """Return the best teams of each hour: when the hour was complete, and in the end."""
    table = _table("hour", "", "when it was complete", ">", "in the end", ">")
    kept = boards[~boards["_retraction"]]
    for _, panes in kept.groupby("_window_start"):
        complete, final = _when_complete(panes), panes.iloc[-1]
        hour = _hour(final)
        for place, (then, now) in enumerate(zip(complete["value"], final["value"], strict=True), 1):
            colour = "yellow" if then["team"] != now["team"] else "default"
            table.add_row(
                hour if place == 1 else "", f"{place}.",
                then["team"], f"{then['points']:,}",
                f"[{colour}]{now['team']}[/]", f"{now['points']:,}",
            )  # fmt: skip
    return "The three best teams", table


def play_time(lengths: pd.DataFrame) -> tuple[str, Table]:
    """Return how long people play, by the hour in which their sessions end."""
    table = _table("ending", "when it was complete>", "in the end>")
    kept = lengths[~lengths["_retraction"]]
    for _, panes in kept.groupby("_window_start"):
        complete, final = _when_complete(panes), panes.iloc[-1]
        table.add_row(_hour(final), _minutes(complete["value"]), _minutes(final["value"]))
    return "How long a session lasts, on average", table


def suspects(robots: pd.DataFrame) -> tuple[str, Table]:
    """Return who has played for too long, when it was noticed, and for how long in the end."""
    table = _table("player", "noticed at", "played in the end>", "scores>")
    kept = robots[~robots["_retraction"]] if len(robots) else robots
    for player, panes in kept.groupby("_key") if len(kept) else ():
        first, final = panes.iloc[0], panes.iloc[-1]
        table.add_row(
            player,
            f"{first['_production_time']:%H:%M}",
            _minutes((final["last"] - final["first"]) / mr.SECOND),
            f"{final['scores']:,}",
        )
    return "Robots?", table


def counts(panes: dict[str, pd.DataFrame], answers: dict[str, list[tuple]]) -> tuple[str, Table]:
    """Return how many panes of each kind there were, and whether they come to a batch's answer."""
    kinds = [f"{words}>" for words in _WHEN.values()]
    table = _table("", *kinds, "taken back>", "net>", "Spark SQL>", "")
    for stream, rows in panes.items():
        cells = [0] * (len(_WHEN) + 1)
        if not rows.empty:
            kept = rows[~rows["_retraction"]]
            cells = [(kept["_pane_timing"] == timing).sum() for timing in _WHEN]
            cells.append(rows["_retraction"].sum())
        net, answer = results.net(stream, rows), answers[stream]
        agrees = "[green]agrees[/]" if net == answer else "[red]DISAGREES[/]"
        numbers = (f"{number:,}" for number in (*cells, len(net), len(answer)))
        table.add_row(stream, *numbers, agrees)
    return "All panes, and what Spark SQL says to the same scores", table


def _table(*columns: str) -> Table:
    """Return an empty table; a column whose name ends in > is one of numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in columns:
        right = name.endswith(">")
        table.add_column(name.removesuffix(">"), justify="right" if right else "left", no_wrap=True)
    return table


def _when_complete(panes: pd.DataFrame) -> pd.Series:
    """Return the pane of a window that held when the low watermark reached its end."""
    in_time = panes[panes["_pane_timing"] != "LATE"]
    return (in_time if len(in_time) else panes).iloc[-1]


def _hour(pane: Any) -> str:
    return f"{pane['_window_start']:%H:%M} to {pane['_window_end']:%H:%M}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
