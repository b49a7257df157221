"""The table that a run prints and the JSON file that it leaves.

``python -m benchmarks.latency.report RESULTS.json…`` prints such files as Markdown tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency.cell import Measurement
from benchmarks.latency.contender import PROMISES
from benchmarks.latency.course import CODE, Cell
from benchmarks.latency.figures import Latency


@dataclass(frozen=True)
class Expectation:
    """Millrace's latency at user code of the second stage must be below so many milliseconds."""

    rival: str
    rate: int
    p50: float
    p99: float


#: What the real-time plane was promised to reach with two stages and 1,000 keys.
EXPECTATIONS = (
    Expectation("millrace-realtime", 200, 5, 25),
    Expectation("millrace-realtime", 2_000, 5, 25),
    Expectation("millrace-realtime", 10_000, 15, 60),
    Expectation("millrace-realtime-weak-at-least-once", 2_000, 3.6, 25),
)


def read_results(path: Path) -> list[Measurement]:
    """Return the measurements in a file that ``write_measurements`` made."""
    return [
        Measurement(
            **{
                **each,
                "cell": Cell(**each["cell"]),
                "latencies_ms": {at: Latency(**one) for at, one in each["latencies_ms"].items()},
            }
        )
        for each in json.loads(path.read_text())["measurements"]
    ]


def in_brief(measurement: Measurement) -> str:
    """Return a line for who waits."""
    found = measurement.latencies_ms.items()
    return ", ".join(f"{at} p50 {_ms(one.p50)} ms, p99 {_ms(one.p99)} ms" for at, one in found)


def markdown(measurements: Sequence[Measurement]) -> str:
    """Return the table of all cells, what each promises, and what was expected."""
    return "\n".join(
        [
            *_figures(measurements),
            "",
            *_steps(measurements),
            *_promises(measurements),
            "",
            *_judge(measurements),
        ]
    )


def _figures(measurements: Sequence[Measurement]) -> Iterator[str]:
    yield (
        "| records/s | contender | stages | keys | partitions | seen by | p50 | p95 | p99 | max "
        "| CPU s / million | cores: engine | broker | load | consumer |"
    )
    yield "|---:|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for each in measurements:
        cell = each.cell
        source = ", synthetic" if cell.synthetic else ""
        source += f", every {cell.every_ms} ms" if cell.every_ms > 1 else ""
        for at, found in each.latencies_ms.items():
            cores = " | ".join(
                f"{each.cores[who]:.2f}" if who in each.cores else ""
                for who in ("engine", "broker", "load", "consumer")
            )
            yield (
                f"| {cell.rate:,}{source} | {cell.rival} | {cell.stages} | {cell.keys:,} "
                f"| {cell.partitions} | {at} | {_ms(found.p50)} | {_ms(found.p95)} "
                f"| {_ms(found.p99)} | {_ms(found.max)} "
                f"| {each.cpu_s_per_million['engine']:,.0f} | {cores} |"
            )


def _steps(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield where the time goes in real time, by what tasks said in the last half minute."""
    told = [each for each in measurements if each.notes.get("steps")]
    if not told:
        return
    yield "| records/s | contender | partitions | step | p50 | p95 | p99 |"
    yield "|---:|---|---:|---|---:|---:|---:|"
    for each in told:
        cell = each.cell
        for step, times in each.notes["steps"].items():
            yield (
                f"| {cell.rate:,} | {cell.rival} | {cell.partitions} | {step} | "
                f"{' | '.join(map(_ms, times))} |"
            )
    yield ""


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _promises(measurements: Sequence[Measurement]) -> Iterator[str]:
    yield "| contender | what is so when a row can be seen |"
    yield "|---|---|"
    for rival in dict.fromkeys(each.cell.rival for each in measurements):
        yield f"| `{rival}` | {PROMISES[rival]} |"


def _judge(measurements: Sequence[Measurement]) -> Iterator[str]:
    for expected in EXPECTATIONS:
        for each in measurements:
            cell = each.cell
            if (cell.rival, cell.rate, cell.stages) != (expected.rival, expected.rate, 2):
                continue
            if (found := each.latencies_ms.get(CODE)) is None:
                continue
            met = found.p50 < expected.p50 and found.p99 < expected.p99
            yield (
                f"{'met' if met else 'NOT MET'}: {cell.rival} at {cell.rate:,}/s, rows to "
                f"{cell.to}: p50 {_ms(found.p50)} ms, p99 {_ms(found.p99)} ms; expected below "
                f"{expected.p50:g} and {expected.p99:g}"
            )


if __name__ == "__main__":
    print(markdown([one for name in sys.argv[1:] for one in read_results(Path(name))]))
