"""Command line of the latency benchmark; the package's docstring says what it measures."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import latency
from benchmarks.arguments import among, integers
from benchmarks.broker import broker_in
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.latency.cell import Measurement, measure
from benchmarks.latency.contender import CONTENDERS
from benchmarks.latency.course import CODE, KAFKA, POSTGRES, Cell
from benchmarks.latency.report import in_brief, markdown
from benchmarks.machine import describe
from benchmarks.postgres import postgres
from benchmarks.result import path_of, write_measurements

_QUICK = {"rates": [200], "seconds": 5, "warm_up": 5}


def main() -> None:
    """Measure every contender in every cell, print the table, write the results."""
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
    path = path_of("latency", machine, arguments.out)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    measurements: list[Measurement] = []
    failures: list[str] = []
    with broker_in(work_dir) as broker, ExitStack() as stack:
        conninfo = stack.enter_context(postgres()) if POSTGRES in arguments.to else ""
        for cell in _cells(arguments):
            try:
                found = measure(cell, broker, conninfo, work_dir, patience_s=arguments.patience)
            except ContenderFailed as failure:
                print(f"{cell.rate:,}/s: {failure}", flush=True)
                failures.append(f"{cell}: {failure}")
                continue
            measurements.append(found)
            print(f"{cell.rate:,}/s: {cell.rival}: {in_brief(found)}", flush=True)
            write_measurements(path, "latency", machine, settings, measurements, failures=failures)
    print(markdown(measurements))


def _cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    for rate, to, stages, keys, partitions, every_ms, rival in itertools.product(
        arguments.rates,
        arguments.to,
        arguments.stages,
        arguments.keys,
        arguments.partitions,
        arguments.every,
        arguments.rivals,
    ):
        ours = rival.startswith("millrace")
        # The others have no such source, and their way to PostgreSQL is the user's own code.
        if ours or not (arguments.synthetic or to == POSTGRES):
            yield Cell(
                rival,
                to,
                rate,
                keys,
                # A second aggregation cannot follow it in update mode.
                1 if rival == "spark-aggregation" else stages,
                partitions,
                arguments.warm_up,
                arguments.seconds,
                arguments.synthetic,
                every_ms=every_ms,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency",
        description=latency.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", type=integers, default=[200, 2_000, 10_000], help="records/s")
    parser.add_argument("--to", type=among(CODE, KAFKA, POSTGRES), default=[KAFKA])
    parser.add_argument("--stages", type=integers, default=[2])
    parser.add_argument("--keys", type=integers, default=[1_000])
    parser.add_argument(
        "--every", type=integers, default=[1], help="ms between two batches of the load, at least"
    )
    parser.add_argument("--partitions", type=integers, default=[2])
    parser.add_argument(
        "--rivals",
        type=among(*CONTENDERS),
        default=list(CONTENDERS),
        help=f"some of {','.join(CONTENDERS)} (default: all)",
    )
    parser.add_argument("--seconds", type=int, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=120)
    parser.add_argument(
        "--synthetic",
        action="store_true",
        help="an injector of Millrace's makes the records; only Millrace runs",
    )
    parser.add_argument("--patience", type=float, default=60.0, help="seconds, see above")
    parser.add_argument("--work-dir", type=Path, help="the broker's data, checkpoints")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--quick", action="store_true", help=f"a check, not a result: {_QUICK}")
    return parser


if __name__ == "__main__":
    main()
