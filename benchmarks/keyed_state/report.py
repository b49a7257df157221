"""The table that a run prints and the JSON file that it leaves.

``python -m benchmarks.keyed_state.report RESULTS.json`` prints such a file as a Markdown table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import batches
from benchmarks.result import read_measurements


@dataclass(frozen=True, kw_only=True)
class Measurement(batches.Measurement):
    """What is measured of keyed state."""

    records_per_s_median_batch: float


@dataclass(frozen=True)
class Expectation:
    """Millrace must be ``at_least`` times ``rival`` at ``keys`` keys."""

    rival: str
    keys: int
    at_least: float


#: What keyed state was promised to reach, whatever the size of the batches.
EXPECTATIONS = (
    Expectation("tws", 1_000, 4),
    Expectation("tws", 200_000, 20),
    Expectation("bytewax-recovery", 200_000, 4),
    Expectation("bytewax-single-recovery", 200_000, 4),
)


def print_report(measurements: list[Measurement], console: Console) -> None:
    """Print one table a case, then whether each expectation was met."""
    for case in dict.fromkeys(_case(each) for each in measurements):
        console.print(_table(case, [each for each in measurements if _case(each) == case]))
    for line in _judge(measurements):
        console.print(line)


def markdown(measurements: list[Measurement]) -> str:
    """Return one table of all cases, for a README."""
    lines = [
        "| keys | batch | contender | records/s | Millrace is | CPU s / million | peak MiB |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for each in measurements:
        ours = _ours([other for other in measurements if _case(other) == _case(each)])
        ratio = f"{ours.records_per_s / each.records_per_s:.1f} x" if ours else ""
        lines.append(
            f"| {each.keys:,} | {each.batch_records:,} | {each.rival} | {each.records_per_s:,.0f} "
            f"| {ratio} | {each.cpu_s_per_million:.1f} | {each.peak_mib:,.0f} |"
        )
    return "\n".join(lines)


def _case(measurement: Measurement) -> tuple[int, int]:
    return measurement.keys, measurement.batch_records


def _table(case: tuple[int, int], measurements: list[Measurement]) -> Table:
    keys, batch_records = case
    ours = _ours(measurements)
    kind = measurements[0].peak_kind.upper()
    table = Table(title=f"{keys:,} keys, batches of {batch_records:,} records")
    table.add_column("contender")
    for name in (
        "records",
        "records/s",
        "median batch, records/s",
        "CPU s / million",
        f"peak MiB ({kind})",
        "millrace is",
    ):
        table.add_column(name, justify="right")
    for each in measurements:
        table.add_row(
            each.rival,
            f"{each.records:,}",
            f"{each.records_per_s:,.0f}",
            f"{each.records_per_s_median_batch:,.0f}",
            f"{each.cpu_s_per_million:.2f}",
            f"{each.peak_mib:,.0f}",
            f"{ours.records_per_s / each.records_per_s:.2f} x" if ours else "",
        )
    return table


def _judge(measurements: list[Measurement]) -> Iterator[str]:
    for expected in EXPECTATIONS:
        for rival in measurements:
            if (rival.rival, rival.keys) != (expected.rival, expected.keys):
                continue
            ours = _ours([each for each in measurements if _case(each) == _case(rival)])
            if ours is None:
                continue
            ratio = ours.records_per_s / rival.records_per_s
            verdict = "met" if ratio >= expected.at_least else "NOT MET"
            yield (
                f"{verdict}: {ratio:.1f} x {rival.rival} at {rival.keys:,} keys, batches of "
                f"{rival.batch_records:,}; expected at least {expected.at_least:g} x"
            )


def _ours(measurements: list[Measurement]) -> Measurement | None:
    return next((each for each in measurements if each.rival == "millrace"), None)


if __name__ == "__main__":
    print(markdown(read_measurements(Path(sys.argv[1]), Measurement)))
