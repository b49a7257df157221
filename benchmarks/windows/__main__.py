"""Command line of the windows benchmark; the package's docstring says what it measures."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from benchmarks import windows
from benchmarks.arguments import among, integers
from benchmarks.batches import measure
from benchmarks.broker import servers_for
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.machine import describe
from benchmarks.result import path_of, write_measurements
from benchmarks.windows.contender import CONTENDERS
from benchmarks.windows.report import Measurement, markdown
from benchmarks.windows.workload import SESSIONS, WINDOWS, Workload

_DEFAULT_RIVALS = ["millrace", "spark", "flink"]
_QUICK = {
    "records": 200_000,
    "keys": [1_000, 50_000],
    "laws": ["uniform"],
    "batches": [100_000],
    "rivals": list(CONTENDERS),
}


def main() -> None:
    """Measure every contender on every case, print the tables, write the results."""
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
    measurements: list[Measurement] = []
    with servers_for(arguments.rivals, work_dir) as servers:
        for shape, keys, law, rate, batch, rival in itertools.product(
            arguments.shapes,
            arguments.keys,
            arguments.laws,
            arguments.rates,
            arguments.batches,
            arguments.rivals,
        ):
            workload = Workload(
                shape,
                arguments.records,
                keys,
                law == "zipf",
                rate,
                batch,
                arguments.warmup_batches,
                arguments.warmup_records,
                arguments.cores,
            )
            case = f"{shape}, {keys:,} {law} keys, {rate} a ms, batches of {batch:,}"
            try:
                found = measure(
                    "windows",
                    Measurement,
                    rival,
                    workload,
                    work_dir,
                    arguments.cores,
                    arguments.timeout,
                    servers,
                )
            except ContenderFailed as failure:
                print(f"{case}: {failure}")
                continue
            measurements.append(found)
            print(f"{case}: {rival} {found.records_per_s:,.0f} records/s", flush=True)
            settings = {name: str(value) for name, value in vars(arguments).items()}
            path = path_of("windows", machine, arguments.out)
            write_measurements(path, "windows", machine, settings, measurements)
    print(markdown(measurements))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.windows",
        description=windows.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", type=among(WINDOWS, SESSIONS), default=[WINDOWS, SESSIONS])
    parser.add_argument("--records", type=int, default=2_000_000, help="measured records")
    parser.add_argument("--keys", type=integers, default=[1_000, 200_000])
    parser.add_argument("--laws", type=among("uniform", "zipf"), default=["uniform", "zipf"])
    parser.add_argument(
        "--rates", type=integers, default=[10], help="records per millisecond of event time"
    )
    parser.add_argument("--batches", type=integers, default=[100_000, 400_000])
    parser.add_argument(
        "--rivals",
        type=among(*CONTENDERS),
        default=_DEFAULT_RIVALS,
        help=f"some of {','.join(CONTENDERS)} (default: {','.join(_DEFAULT_RIVALS)})",
    )
    parser.add_argument("--warmup-batches", type=int, default=10, help="batches not measured")
    parser.add_argument("--warmup-records", type=int, default=20_000, help="records in each")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a contender")
    parser.add_argument("--work-dir", type=Path, help="input files, checkpoints; tens of MB a case")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--quick", action="store_true", help=f"a check, not a result: {_QUICK}")
    return parser


if __name__ == "__main__":
    main()
