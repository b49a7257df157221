"""The tables that a run prints and the JSON file that it leaves.

``python -m benchmarks.windows.report RESULTS.json…`` prints such files as Markdown tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import batches
from benchmarks.result import read_measurements

_Case = tuple[str, int, bool, int, int]


@dataclass(frozen=True, kw_only=True)
class Measurement(batches.Measurement):
    """What is measured of windows.

    ``records_per_s_of_batches`` are of the slowest, the median and the fastest batch.
    """

    shape: str
    zipf: bool
    rate: int
    records_per_s_of_batches: tuple[float, float, float]
    load_average: float


@dataclass(frozen=True)
class Expectation:
    """Millrace must be ``at_least`` times ``rival`` with such windows and so many keys."""

    rival: str
    shape: str
    keys: int
    at_least: float


#: What windows were promised to reach, whatever the law of the keys and the size of the batches.
EXPECTATIONS = (
    Expectation("spark", "windows", 1_000, 1.5),
    Expectation("spark", "windows", 200_000, 3),
    Expectation("spark", "sessions", 1_000, 1.5),
    Expectation("spark", "sessions", 200_000, 2.5),
    *(
        Expectation("flink", shape, keys, 1)
        for shape in ("windows", "sessions")
        for keys in (1_000, 200_000)
    ),
)


def markdown(measurements: list[Measurement]) -> str:
    """Return the tables of all cases, of how figures grow with the keys, and what was expected."""
    return "\n".join(
        [*_figures(measurements), "", *_growth(measurements), "", *_judge(measurements)]
    )


def _figures(measurements: list[Measurement]) -> Iterator[str]:
    yield (
        "| shape | keys | law | a ms | batch | contender | records/s | min–median–max of batches "
        "| Millrace is | CPU s / million | peak MiB |"
    )
    yield "|---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|"
    for each in measurements:
        ours = _ours(measurements, each)
        ratio = f"{ours.records_per_s / each.records_per_s:.2f} x" if ours else ""
        spread = "–".join(f"{rate / 1_000:,.0f}" for rate in each.records_per_s_of_batches)
        yield (
            f"| {each.shape} | {each.keys:,} | {'Zipf' if each.zipf else 'uniform'} "
            f"| {each.rate} | {each.batch_records:,} | {each.rival} | {each.records_per_s:,.0f} "
            f"| {spread} k | {ratio} | {each.cpu_s_per_million:.1f} | {each.peak_mib:,.0f} |"
        )


def _growth(measurements: list[Measurement]) -> Iterator[str]:
    """Yield a table of CPU time and memory by the number of keys, for those measured at several."""
    lines: dict[tuple[str, bool, int, int, str], list[Measurement]] = {}
    for each in measurements:
        case = each.shape, each.zipf, each.rate, each.batch_records, each.rival
        lines.setdefault(case, []).append(each)
    keys = sorted({each.keys for each in measurements})
    if len(keys) == 1:
        return
    titles = [f"{count:,} keys" for count in keys]
    yield f"| CPU s / million, peak MiB | law | a ms | batch | contender | {' | '.join(titles)} |"
    yield f"|---|---|---:|---:|---|{'---:|' * len(keys)}"
    for (shape, zipf, rate, batch, rival), found in lines.items():
        by_keys = {
            each.keys: f"{each.cpu_s_per_million:.1f}, {each.peak_mib:,.0f}" for each in found
        }
        cells = " | ".join(by_keys.get(count, "") for count in keys)
        law = "Zipf" if zipf else "uniform"
        yield f"| {shape} | {law} | {rate} | {batch:,} | {rival} | {cells} |"


def _judge(measurements: list[Measurement]) -> Iterator[str]:
    for expected in EXPECTATIONS:
        for each in measurements:
            if (each.rival, each.shape, each.keys) != (
                expected.rival,
                expected.shape,
                expected.keys,
            ):
                continue
            if (ours := _ours(measurements, each)) is None:
                continue
            ratio = ours.records_per_s / each.records_per_s
            verdict = "met" if ratio >= expected.at_least else "NOT MET"
            law = "Zipf" if each.zipf else "uniform"
            yield (
                f"{verdict}: {ratio:.2f} x {each.rival}, {each.shape}, {each.keys:,} {law} keys, "
                f"{each.rate} a ms, batches of {ours.batch_records:,}; expected at least "
                f"{expected.at_least:g} x"
            )


def _ours(measurements: list[Measurement], rival: Measurement) -> Measurement | None:
    case = _case(rival)
    return next(
        (one for one in measurements if one.rival == "millrace" and _case(one) == case), None
    )


def _case(measurement: Measurement) -> _Case:
    one = measurement
    return one.shape, one.keys, one.zipf, one.rate, one.batch_records


if __name__ == "__main__":
    print(
        markdown(
            [one for name in sys.argv[1:] for one in read_measurements(Path(name), Measurement)]
        )
    )
