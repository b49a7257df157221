"""The tables that a run prints and the files that it leaves.

``python -m benchmarks.nexmark.report RESULTS.json…`` prints such files as Markdown tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.nexmark.rivals import CANNOT
from benchmarks.nexmark.runner import Measurement
from millrace_examples.nexmark import suite


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of a result file."""
    measurements = [Measurement(**each) for each in results["measurements"]]
    machine, settings = results["machine"], results["settings"]
    return "\n".join(
        [
            f"Of {machine['at'][:10]}, on {machine['cores']} cores ({machine['cpu']}), load "
            f"average {machine['load_average'][0]} at the beginning, commit "
            f"`{machine['commit']}`, batches of {int(settings['batch']):,} events, skew "
            f"{settings['skew']}.",
            "",
            *_figures(measurements),
            "",
            *_beside(measurements),
            "",
            *_not_there(measurements, results["failures"]),
            *_killed(results["killed"]),
        ]
    )


def _figures(measurements: Sequence[Measurement]) -> Iterator[str]:
    yield (
        "| query | contender | events | records/s | CPU s / million | start, s | peak MiB "
        "| the oracle |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for each in measurements:
        figures = ["", "", "", ""]
        if each.agrees:
            figures = [
                rate(each),
                _cpu(each),
                f"{each.start_s:.1f}",
                f"{each.peak_mib:,.0f}",
            ]
        yield (
            f"| {each.query} | {each.rival} | {each.events:,} | {' | '.join(figures)} "
            f"| {each.verdict} |"
        )


def rate(measurement: Measurement) -> str:
    """Return records a second in words."""
    found = measurement.records_per_s
    return "too short to tell" if found is None else f"{found:,.0f}"


def _cpu(measurement: Measurement) -> str:
    found = measurement.cpu_s_per_million
    return "" if found is None else f"{found:.1f}"


def _beside(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield records a second and CPU seconds a million, a column each contender."""
    rivals = list(dict.fromkeys(each.rival for each in measurements))
    found = {(each.query, each.rival): each for each in measurements if each.agrees}
    yield f"| records/s; CPU s / million | {' | '.join(rivals)} |"
    yield f"|---|{'---:|' * len(rivals)}"
    for query in suite.QUERIES:
        cells = []
        for rival in rivals:
            each = found.get((query, rival))
            cannot = query in CANNOT[rival]
            cells.append(f"{rate(each)}; {_cpu(each)}" if each else "cannot" if cannot else "")
        if any(cells):
            yield f"| {query} | {' | '.join(cells)} |"


def _not_there(measurements: Sequence[Measurement], failures: Mapping[str, str]) -> Iterator[str]:
    for rival in dict.fromkeys(each.rival for each in measurements):
        for query, why in CANNOT[rival].items():
            yield f"- {rival} cannot {query}: {why}."
    for which, why in failures.items():
        yield f"- FAILED: {which}: {why}"


def _killed(killed: Mapping[str, str]) -> Iterator[str]:
    if killed:
        wrong = {query: said for query, said in killed.items() if not said.startswith("agrees")}
        yield (
            f"- Killed in the middle and started again, all {len(killed)} queries as one pipeline: "
            f"{len(killed) - len(wrong)} agree with the oracle."
        )
        for query, said in wrong.items():
            yield f"- KILLED, then wrong: {query}: {said}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(markdown(json.loads(Path(name).read_text())))
