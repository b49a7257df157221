"""Command line of the Nexmark benchmark; the package's docstring says what it measures."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import nexmark
from benchmarks.arguments import among
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.machine import describe
from benchmarks.nexmark.report import markdown, rate
from benchmarks.nexmark.rivals import CANNOT, CONTENDERS
from benchmarks.nexmark.runner import Measurement, Referee
from benchmarks.nexmark.workload import Workload
from benchmarks.page import PAGE, page
from benchmarks.result import path_of, write_measurements
from millrace_examples.nexmark import suite

_QUICK = {"events": 40_000, "batch": 20_000}


def main() -> None:
    """Run every query on every contender, print the tables, write the results."""
    arguments = _parser().parse_args()
    if arguments.quick:
        vars(arguments).update(_QUICK)
    clean_up_when_terminated()
    machine = describe()
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load average {machine['load_average'][0]}"
    )
    work_dir = arguments.work_dir or Path(tempfile.gettempdir()) / "millrace-benchmarks"
    work_dir.mkdir(parents=True, exist_ok=True)
    path = path_of("nexmark", machine, arguments.out)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    workload = Workload(arguments.events, arguments.batch, arguments.cores, arguments.skew)
    referee = Referee(workload, work_dir, arguments.cores, arguments.timeout)
    measurements: list[Measurement] = []
    failures: dict[str, str] = {}
    killed: dict[str, str] = {}

    def keep() -> None:
        write_measurements(
            path, "nexmark", machine, settings, measurements, failures=failures, killed=killed
        )

    for query in arguments.queries:
        for rival in arguments.rivals:
            if query in CANNOT[rival]:
                continue
            try:
                found = referee.measure(rival, query)
            except ContenderFailed as failure:
                failures[f"{query}, {rival}"] = str(failure)
                print(f"{query}: {rival} FAILED: {failure}", flush=True)
            else:
                measurements.append(found)
                print(
                    f"{query}: {rival}, records/s: {rate(found)}; {found.verdict}",
                    flush=True,
                )
            keep()
    if arguments.kill:
        try:
            for query, verdict in referee.kill():
                killed[query] = str(verdict)
        except ContenderFailed as failure:
            failures["killed"] = str(failure)
        keep()
    text = markdown(json.loads(path.read_text()))
    print(text)
    print(f"written to {path}")
    if arguments.document:
        PAGE.write_text(page())
    if failures or not all(each.agrees for each in measurements):
        sys.exit(1)
    if not all(said.startswith("agrees") for said in killed.values()):
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nexmark",
        description=nexmark.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--queries", type=among(*suite.QUERIES), default=suite.QUERIES)
    parser.add_argument("--rivals", type=among(*CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="events a batch")
    parser.add_argument("--skew", type=float, default=0.5, help="share of bids for the newest")
    parser.add_argument(
        "--kill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also all queries as one pipeline, killed in the middle",
    )
    parser.add_argument("--document", action="store_true", help="also write docs/benchmarks.md")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a contender")
    parser.add_argument("--work-dir", type=Path, help="events, checkpoints, results")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--quick", action="store_true", help=f"a check, not a result: {_QUICK}")
    return parser


if __name__ == "__main__":
    main()
