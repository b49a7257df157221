"""The picture: how long each report took, with the kill and what came of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import millrace as mr

from .kill import Kill
from .reports import Reports

FILE = "latency.png"


def draw(reports: Reports, begin_us: int, kill: Kill, out: Path) -> None:
    """Write the picture.

    Args:
        reports: All of them.
        begin_us: When the game began, microseconds since 1970.
        kill: Of a worker, and what came of it.
        out: Directory for it.
    """
    timed = [one for one in reports.arrived if one.latency_us is not None]
    at_s = np.array([one.at_us - begin_us for one in timed]) / mr.SECOND
    ms = np.array([one.latency_us for one in timed]) / 1000
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    late = np.array([one.columns["_pane_timing"] == "LATE" for one in timed])
    for which, size, colour, label in (
        (~late, 4, "tab:blue", "early: its window was open"),
        (late, 16, "tab:orange", "late: its window was over"),
    ):
        axes.scatter(
            at_s[which],
            ms[which],
            s=size,
            c=colour,
            alpha=size / 16,
            lw=0,
            label=label,
            zorder=size,
        )
    quantiles = pd.Series(ms).groupby(at_s.astype(int)).quantile([0.5, 0.95]).unstack()
    quantiles = quantiles.reindex(range(int(at_s.max(initial=0)) + 1))  # a second without any
    for quantile, style, label in ((0.5, "-", "median"), (0.95, ":", "95th percentile")):
        seconds = quantiles.index + 0.5
        axes.plot(seconds, quantiles[quantile], style, c="black", lw=1.2, label=label)
    if kill.killed_us is not None and kill.resumed_us is not None:
        span = [(us - begin_us) / mr.SECOND for us in (kill.killed_us, kill.resumed_us)]
        axes.axvspan(*span, color="tab:red", alpha=0.15, lw=0)
        axes.axvline(span[0], c="tab:red", lw=1)
        axes.annotate(
            f"kill -9 of a worker: reports again after {span[1] - span[0]:.1f} s",
            (span[0], 1), (4, -4), xycoords=("data", "axes fraction"),
            textcoords="offset points", va="top", c="tab:red",
        )  # fmt: skip
    axes.set(
        yscale="log",
        xlabel="seconds of the game",
        ylabel="from a score to its report, ms",
        title="From the player, through Kafka, two stages of Millrace and Kafka, to the reader",
    )
    figure.legend(loc="outside lower center", ncols=4, markerscale=2, frameon=False)
    figure.savefig(out / FILE, dpi=120)
