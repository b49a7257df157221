"""The picture of the year: traffic against the model for each airport, dips and spikes marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MultipleLocator

from . import events
from .flights import LOCAL_ZONE

AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}

INK, MUTED, FAINT = "#1f2933", "#616e7c", "#e4e7eb"
MODEL, DIP, SPIKE = "#9fb3c8", "#d64545", "#27864b"

BAND_DEVIATIONS = 2.0
"""Half the width of the model's band, in Poisson standard deviations of a day's departures."""

PREDICTED_SHARE = 0.5
"""A day with predictions for a smaller share of its hours belongs to the warm-up."""

LABELS = 12
"""Anomalies with a label in each row, the strongest: more would not be read."""

LABEL_SLOTS = (0.30, 0.155, 0.01)
"""Lower edges of the labels of dips, as shares of the row's height: below the line it is free."""

SPIKE_SLOT = 0.86
"""Lower edge of the labels of spikes, above the line."""

LABEL_HEIGHT = 0.13
"""Share of the row's height."""

CHARACTER_DAYS = 2.05
"""Width of a character in a label, with a share of the room between two labels."""

LABEL_SHIFTS_DAYS = (0, 9, -9, 18, -18, 27, -27)
"""How far a label may stand from its anomaly, nearest first."""

LABEL_MARGIN = pd.Timedelta(days=16)
"""Room to the right of the last day."""


def draw(traffic: pd.DataFrame, anomalies: pd.DataFrame, file: Path) -> None:
    """Write the report as a PNG of 1600 x 1000 pixels.

    Args:
        traffic: One row for each airport and hour, with the columns ``key``, ``bucket`` (UTC),
            ``actual`` and ``expected``, which is null while the model warms up.
        anomalies: Rows of ``anomalies.parquet``; those of routes are left out.
        file: Where to write.
    """
    figure, rows = plt.subplots(len(AIRPORTS), 1, figsize=(16, 10), dpi=100, sharex=True)
    for axes, (airport, name) in zip(rows, AIRPORTS.items(), strict=True):
        days = _daily(traffic[traffic["key"] == airport])
        found = _local(anomalies[anomalies["key"] == airport])
        _draw_traffic(axes, days)
        _draw_anomalies(axes, days, found)
        _style(axes, days)
        axes.set_title(f"{airport}  {name}", loc="left", fontsize=14, weight="bold", color=INK)
        axes.set_title(_summary(found), loc="right", fontsize=12, color=MUTED)
    _style_figure(figure, rows[-1])
    figure.savefig(file)
    plt.close(figure)


def _daily(traffic: pd.DataFrame) -> pd.DataFrame:
    """Return departures by local day: ``actual``, and ``expected``, NaN in the warm-up."""
    day = traffic["bucket"].dt.tz_convert(LOCAL_ZONE).dt.tz_localize(None).dt.floor("D")
    hours = traffic.assign(predicted=traffic["expected"].notna()).groupby(day)
    days = hours.agg({"actual": "sum", "expected": "sum", "predicted": "mean"})
    days["expected"] = days["expected"].where(days["predicted"] >= PREDICTED_SHARE)
    return days


def _local(anomalies: pd.DataFrame) -> pd.DataFrame:
    """Return anomalies with local times and their ``excess``, strongest first."""
    local = {
        bound: anomalies[bound].dt.tz_convert(LOCAL_ZONE).dt.tz_localize(None)
        for bound in ("start", "end")
    }
    excess = anomalies["actual"] - anomalies["expected"]
    found = anomalies.assign(**local, excess=excess)
    return found.sort_values("excess", key=abs, ascending=False)


def _draw_traffic(axes: Axes, days: pd.DataFrame) -> None:
    spread = BAND_DEVIATIONS * np.sqrt(days["expected"])
    axes.fill_between(
        days.index,
        days["expected"] - spread,
        days["expected"] + spread,
        color=MODEL,
        alpha=0.55,
        linewidth=0,
    )
    axes.plot(days.index, days["actual"], color=INK, linewidth=1.0)
    modelled = days["expected"].first_valid_index()
    if modelled is not None and modelled > days.index[0]:
        axes.axvspan(days.index[0], modelled, color=FAINT, linewidth=0, zorder=0)
        middle = days.index[0] + (modelled - days.index[0]) / 2
        axes.text(middle, 20, "the model\nwarms up", ha="center", fontsize=9.5, color=MUTED)


def _draw_anomalies(axes: Axes, days: pd.DataFrame, found: pd.DataFrame) -> None:
    for anomaly in found.itertuples():
        # A day to either side, so that the coloured area is closed by the two lines.
        around = days.loc[anomaly.start.floor("D") - pd.Timedelta(days=1) : anomaly.end.ceil("D")]
        axes.fill_between(
            around.index,
            around["actual"],
            around["expected"],
            where=(around["actual"] < around["expected"]) == (anomaly.kind == "dip"),
            interpolate=True,
            color=_colour(anomaly.kind),
            linewidth=0,
            zorder=3,
        )
    _draw_labels(axes, days, found.head(LABELS).sort_values("start"))


def _draw_labels(axes: Axes, days: pd.DataFrame, found: pd.DataFrame) -> None:
    top = _top(days)
    taken: list[tuple[float, pd.Timestamp, pd.Timestamp]] = []
    for anomaly in found.itertuples():
        first = anomaly.start.floor("D")
        last = (anomaly.end - pd.Timedelta(1)).floor("D")
        inside = days.loc[first:last, "actual"]
        dip = anomaly.kind == "dip"
        peak = inside.idxmin() if dip else inside.idxmax()
        text = (
            f"{_dates(first, last)}  {anomaly.excess:+,.0f}\n"
            f"{events.name(anomaly.start, anomaly.end)}"
        ).replace("-", "−")
        below = [s for s in LABEL_SLOTS if (s + LABEL_HEIGHT) * top < inside[peak]]
        slots = (below or LABEL_SLOTS[-1:]) if dip else [SPIKE_SLOT]
        slot, middle = _place(text, peak, slots, taken, days.index)
        axes.annotate(
            text,
            xy=(peak, inside[peak]),
            xytext=(middle, slot * top),
            ha="center",
            va="bottom",
            fontsize=9.5,
            linespacing=1.1,
            path_effects=[withStroke(linewidth=3, foreground="white")],
            color=_colour(anomaly.kind),
            arrowprops={"arrowstyle": "-", "color": _colour(anomaly.kind), "shrinkA": 0},
            zorder=4,
        )


def _place(
    text: str,
    peak: pd.Timestamp,
    slots: Sequence[float],
    taken: list[tuple[float, pd.Timestamp, pd.Timestamp]],
    days: pd.DatetimeIndex,
) -> tuple[float, pd.Timestamp]:
    """Return a free slot and the middle of a label in it, and take it."""
    half = pd.Timedelta(days=max(map(len, text.splitlines())) * CHARACTER_DAYS / 2)
    for shift in LABEL_SHIFTS_DAYS:
        middle = peak + pd.Timedelta(days=shift)
        middle = min(max(middle, days[0] + half), days[-1] + LABEL_MARGIN - half)
        for slot in slots:
            if all(
                slot != other or middle + half < left or right < middle - half
                for other, left, right in taken
            ):
                taken.append((slot, middle - half, middle + half))
                return slot, middle
    return slots[-1], peak


def _colour(kind: str) -> str:
    return DIP if kind == "dip" else SPIKE


def _dates(first: pd.Timestamp, last: pd.Timestamp) -> str:
    if first == last:
        return f"{first:%b} {first.day}"
    if first.month == last.month:
        return f"{first:%b} {first.day}–{last.day}"
    return f"{first:%b} {first.day}–{last:%b} {last.day}"


def _summary(found: pd.DataFrame) -> str:
    dips, spikes = (found.loc[found["kind"] == kind, "excess"] for kind in ("dip", "spike"))
    text = f"{len(dips)} dips: {-dips.sum():,.0f} flights missing"
    if len(spikes):
        text += f"    {len(spikes)} spike{'s' * (len(spikes) > 1)}: {spikes.sum():,.0f} more"
    return text


def _top(days: pd.DataFrame) -> float:
    return 1.3 * float(days["actual"].max())


def _style(axes: Axes, days: pd.DataFrame) -> None:
    axes.set_ylim(0, _top(days))
    axes.set_xlim(days.index[0], days.index[-1] + LABEL_MARGIN)
    axes.set_xticks(days.index[days.index.day == 1])
    axes.yaxis.set_major_locator(MultipleLocator(100))
    axes.grid(axis="y", color=FAINT, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0, labelsize=11)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MODEL)


def _style_figure(figure: Figure, bottom: Axes) -> None:
    bottom.xaxis.set_major_formatter(mdates.DateFormatter("%B"))
    for label in bottom.get_xticklabels():
        label.set_horizontalalignment("left")
    figure.subplots_adjust(left=0.045, right=0.985, top=0.86, bottom=0.045, hspace=0.24)
    figure.text(
        0.045, 0.955, "Flights leaving New York, 2013", fontsize=21, weight="bold", color=INK
    )
    figure.text(
        0.045,
        0.922,
        "Departures a day against what the model expected a week before. "
        "Labels: when, flights more or less than expected, and what happened.",
        fontsize=12.5,
        color=MUTED,
    )
    figure.legend(
        handles=[
            Line2D([], [], color=INK, linewidth=1.5, label="departed"),
            Patch(color=MODEL, alpha=0.55, label="expected ± 2σ"),
            Patch(color=DIP, label="dip"),
            Patch(color=SPIKE, label="spike"),
        ],
        loc="upper right",
        bbox_to_anchor=(0.99, 0.99),
        ncols=4,
        frameon=False,
        fontsize=12,
        labelcolor=INK,
    )
