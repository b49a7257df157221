"""The tables: what the paper says, and what was found, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: What the paper says, in its section 8: milliseconds.
PAPER_LATENCY = {
    "weak, not exactly once": {"p50": 3.6, "p95": 30.0},
    "strong, exactly once": {"p50": 33.7, "p95": 93.8},
}
#: Mean and standard deviation of each stage's lag.
PAPER_LAG = ((1795, 159), (1954, 127), (2081, 140))

COMBINATIONS = {
    "millrace-realtime": "strong, exactly once",
    "millrace-realtime-at-least-once": "strong, not exactly once",
    "millrace-realtime-weak": "weak, exactly once",
    "millrace-realtime-weak-at-least-once": "weak, not exactly once",
}

_Found = Mapping[str, Any]


def latencies(found: _Found) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the cells of a latency benchmark, each with its latencies at user code."""
    for each in found["measurements"]:
        yield each["cell"], each["latencies_ms"]["code"]


def _latency(found: _Found) -> Iterator[str]:
    yield "| productions, delivery | stages | p50, ms | p95 | p99 | the paper: p50, p95 |"
    yield "|---|---:|---:|---:|---:|---:|"
    for cell, ms in latencies(found["latency"]):
        combination = COMBINATIONS[cell["rival"]]
        paper = PAPER_LATENCY.get(combination, {}) if cell["stages"] == 2 else {}
        said = f"{paper['p50']}, {paper['p95']}" if paper else ""
        yield (
            f"| {combination} | {cell['stages']} | {ms['p50']:.1f} | {ms['p95']:.1f} "
            f"| {ms['p99']:.1f} | {said} |"
        )
    yield from (f"\nFailed: {why}" for why in found["latency"]["failures"])


def _scale(found: _Found) -> Iterator[str]:
    yield "| tasks a level | records/s | p50, ms | p95 | p99 |"
    yield "|---:|---:|---:|---:|---:|"
    for each in found.values():
        for cell, ms in latencies(each):
            yield (
                f"| {cell['partitions']} | {cell['rate']} | {ms['p50']:.1f} | {ms['p95']:.1f} "
                f"| {ms['p99']:.1f} |"
            )


def _lag(found: _Found) -> Iterator[str]:
    yield "| stage | the paper: mean, stdev ms | epochs | real time |"
    yield "|---:|---:|---:|---:|"
    for number, (mean, stdev) in enumerate(PAPER_LAG):
        ours = [found[plane]["stages"][number] for plane in ("epochs", "real time")]
        cells = " | ".join(f"{one['mean_ms']:,.0f}, {one['stdev_ms']:,.0f}" for one in ours)
        yield f"| {number + 1} | {mean:,}, {stdev} | {cells} |"


def _cache(found: _Found) -> Iterator[str]:
    yield "| cached | MB | hits | CPU us a record | of the least | bytes read a record |"
    yield "|---:|---:|---:|---:|---:|---:|"
    cases = found["cache"]["cases"]
    least = min(case["cpu_us"] for case in cases)
    for case in cases:
        yield (
            f"| {case['share']:.1%} | {case['cache_mb']:,.0f} | {case['hits']:.0%} "
            f"| {case['cpu_us']:.1f} | {case['cpu_us'] / least:.2f} x | {case['read_bytes']:,.0f} |"
        )


def _two_phase(found: _Found) -> Iterator[str]:
    yield "| nine tenths of one key | records/s | CPU s / million | cores in use |"
    yield "|---|---:|---:|---:|"
    for case in found["hot key"]["cases"]:
        yield (
            f"| {case['how']} | {case['records_per_s']:,.0f} | {case['cpu_s_per_million']:.1f} "
            f"| {case['cores']:.2f} |"
        )


def _skew(found: _Found) -> Iterator[str]:
    yield "| limit on skew | buffered at most, records | cache, MB | seconds |"
    yield "|---|---:|---:|---:|"
    for case in found["skew"]["cases"]:
        yield (
            f"| {case['skew'] or 'none'} | {case['buffered_max']:,} | {case['cache_mb_max']:.0f} "
            f"| {case['seconds']:.0f} |"
        )


_TABLES: dict[str, tuple[str, Callable[[_Found], Iterator[str]]]] = {
    "latency": ("Latency (figure 13)", _latency),
    "scale": ("Latency by size (figure 14)", _scale),
    "lag": ("Low-watermark lag (figure 15)", _lag),
    "cache": ("The cache (figure 16)", _cache),
    "two-phase": ("A key with nine tenths of the traffic (8.4)", _two_phase),
    "skew": ("A limit on skew (8.4)", _skew),
}


def markdown(results: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """Return a section for each part, with its picture.

    Args:
        results: What ``__main__`` writes.
        pictures: Part -> path of its picture, from the document.
    """
    machine = results["machine"]
    lines = [
        f"Of {machine['at'][:10]}, on {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB, load average {machine['load_average'][0]} at the beginning, "
        f"commit `{machine['commit']}`, by `{results['command']}`."
    ]
    for name, found in results["parts"].items():
        title, table = _TABLES[name]
        lines += ["", f"### {title}", "", *table(found)]
        if name in pictures:
            lines += ["", f"![{title}]({pictures[name]})"]
    lines += [f"\n**Failed**: {name}: {why}" for name, why in results["failures"].items()]
    return "\n".join(lines)
