"""A picture for each figure of the paper, with the paper's numbers where it gives some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks.evaluation.report import COMBINATIONS, PAPER_LAG, PAPER_LATENCY, latencies

_Found = Mapping[str, Any]
_PERCENTILES = ("p50", "p95", "p99")
_TICKS_MS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)


def draw(part: str, found: _Found, folder: Path) -> Path:
    """Draw a part into a folder, and return the file."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panels = figure.subplots(ncols=_PANELS.get(part, 1), squeeze=False)[0]
    _DRAWN[part](*panels, found)
    for axes in panels:
        axes.grid(visible=True, color="0.92")
        axes.set_axisbelow(True)
    path = folder / f"evaluation-{part}.svg"
    # Of the same figures the same file, whenever it is drawn: names in it are drawn by lot, else.
    with rc_context({"svg.hashsalt": part}):
        figure.savefig(path, metadata={"Date": None})
    return path


def _latency(axes: Axes, found: _Found) -> None:
    for cell, ms in latencies(found["latency"]):
        if cell["stages"] != 2:
            continue
        starts, counts = zip(*ms["histogram"], strict=True)
        share = [100 * count / ms["records"] for count in counts]
        axes.plot(starts, share, label=f"{COMBINATIONS[cell['rival']]}: p50 {ms['p50']:.1f} ms")
    for (combination, said), colour in zip(PAPER_LATENCY.items(), ("0.6", "0.3"), strict=True):
        axes.axvline(said["p50"], color=colour, linestyle=":", label=f"paper, {combination}: p50")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS_MS))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("from the record's time to user code of the second stage (ms)")
    axes.set_ylabel("records (%)")
    axes.set_title("Latency between two differently-keyed stages")
    axes.legend(fontsize="small")


def _scale(axes: Axes, found: _Found) -> None:
    cells = [pair for each in found.values() for pair in latencies(each)]
    tasks = [cell["partitions"] for cell, _ in cells]
    for percentile in _PERCENTILES:
        axes.plot(tasks, [ms[percentile] for _, ms in cells], marker="o", label=percentile)
    axes.set_xticks(tasks)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tasks a level; input in proportion, all on the same cores")
    axes.set_ylabel("latency (ms)")
    axes.set_title("Latency by size")
    axes.legend()


def _lag(axes: Axes, near: Axes, found: _Found) -> None:
    """Draw all in one panel, and real time, which is a line there, by itself in the other."""
    series = {"the paper": PAPER_LAG}
    for plane in ("epochs", "real time"):
        stages = found[plane]["stages"]
        series[plane] = tuple((stage["mean_ms"], stage["stdev_ms"]) for stage in stages)
    for place, (name, stages) in enumerate(series.items()):
        _bars(axes, name, stages, beside=0.27 * (place - 1), width=0.25, colour=f"C{place}")
    _bars(near, "real time", series["real time"], beside=0, width=0.5, colour="C2")
    axes.set_ylabel("behind real time (ms)")
    axes.set_title("Low-watermark lag of three stages: mean, stdev", fontsize="medium")
    axes.margins(y=0.15)
    axes.legend(ncols=len(series), loc="upper center", fontsize="small")
    near.set_title("Real time alone", fontsize="medium")


def _bars(
    axes: Axes,
    name: str,
    stages: Sequence[tuple[float, float]],
    *,
    beside: float,
    width: float,
    colour: str,
) -> None:
    at = [number + beside for number in range(1, 1 + len(stages))]
    means, deviations = zip(*stages, strict=True)
    bars = axes.bar(at, means, width, yerr=deviations, capsize=3, label=name, color=colour)
    axes.bar_label(bars, fmt="{:,.0f}", fontsize="small", padding=2)
    axes.set_xticks(range(1, 1 + len(stages)))
    axes.set_xlabel("stage")


def _cache(axes: Axes, found: _Found) -> None:
    cases = sorted(found["cache"]["cases"], key=lambda case: float(case["cache_mb"]))
    least = min(case["cpu_us"] for case in cases)
    sizes = [case["cache_mb"] for case in cases]
    axes.plot(sizes, [case["cpu_us"] / least for case in cases], marker="o", label="CPU")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cached state (MB)")
    axes.set_ylabel("CPU, of the least")
    axes.set_title("CPU by the size of the cache")
    beside = axes.twinx()
    beside.plot(sizes, [case["read_bytes"] / 1e3 for case in cases], "o--", color="tab:orange")
    beside.set_ylim(bottom=0)
    beside.set_ylabel("read from the store, KB a record (dashed)")


def _two_phase(axes: Axes, found: _Found) -> None:
    cases = found["hot key"]["cases"]
    axes.barh([case["how"] for case in cases], [case["records_per_s"] for case in cases])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("records/s")
    axes.set_title("Nine tenths of all records have one key")


def _skew(axes: Axes, found: _Found) -> None:
    cases = found["skew"]["cases"]
    names = [case["skew"] or "no limit" for case in cases]
    axes.barh(names, [case["buffered_max"] for case in cases])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("records buffered, at most")
    axes.set_title("Two processes, one at a tenth of the other's speed")


#: Where it is not one.
_PANELS = {"lag": 2}

_DRAWN: dict[str, Callable[..., None]] = {
    "latency": _latency,
    "scale": _scale,
    "lag": _lag,
    "cache": _cache,
    "two-phase": _two_phase,
    "skew": _skew,
}
