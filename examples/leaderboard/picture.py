"""The picture: the panes of one team, and how the teams of one hour overtook each other."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure

import millrace as mr

from . import report

FILE = "leaderboard.png"

_MARKS = {"EARLY": "o", "ON_TIME": "D", "LATE": "s"}


def draw(totals: pd.DataFrame, scores: pd.DataFrame, out: Path) -> None:
    """Write the picture.

    Args:
        totals: Panes of the teams' totals, as of `results.read`.
        scores: All of them, with the columns of `game.SCHEMA`.
        out: Directory of the run: the picture goes there, and the checkpoint is in it.
    """
    figure = Figure(figsize=(15, 6.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    refined = report.most_refined(totals)
    team, hour = refined["_key"].iloc[0], refined["_window_start"].iloc[0]
    own = scores[scores["team"] == team]
    mr.plot.panes(
        totals.drop(columns="team").rename(columns={"points": "value"}),
        records=list(own[["arrived", "at"]].itertuples(index=False, name=None)),
        key=team,
        watermark=out / "checkpoint",
        computation="team_totals",
        mode=mr.ACCUMULATING_AND_RETRACTING,
        axes=left,
        title=f"The totals of the {team}: panes, and the scores in them",
    )
    _race(right, totals[totals["_window_start"] == hour])
    figure.savefig(out / FILE, dpi=110)


def _race(axes: Axes, totals: pd.DataFrame) -> None:
    """Draw the totals of an hour as they were known, over processing time."""
    kept = totals[~totals["_retraction"]]
    until = kept["_production_time"].max()
    for team, panes in kept.groupby("_key"):
        times = [*panes["_production_time"], until]
        points = [*panes["points"], panes["points"].iloc[-1]]
        (line,) = axes.plot(times, points, drawstyle="steps-post", label=team)
        for timing, mark in _MARKS.items():
            some = panes[panes["_pane_timing"] == timing]
            axes.plot(
                some["_production_time"], some["points"], mark, color=line.get_color(), markersize=5
            )
    start, end = kept["_window_start"].iloc[0], kept["_window_end"].iloc[0]
    axes.axvspan(start, end, color="0.95", zorder=0)
    axes.set_title(
        f"The teams from {start:%H:%M} to {end:%H:%M}, as known by then: "
        "● early, ◆ on time, ■ late panes",
        fontsize=11,
    )
    axes.set_xlabel("processing time (UTC)")
    axes.set_ylabel("points of the hour")
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.grid(visible=True, color="0.92")
    axes.legend(loc="lower right", fontsize="small")
