"""Command line of the keyed-state benchmark; the package's docstring says what it measures."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import keyed_state
from benchmarks.arguments import among, integers
from benchmarks.batches import measure
from benchmarks.broker import servers_for
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.keyed_state.contender import CONTENDERS
from benchmarks.keyed_state.report import Measurement, print_report
from benchmarks.keyed_state.workload import Workload
from benchmarks.machine import describe
from benchmarks.result import path_of, write_measurements

#: The tables do not fit in the 80 columns that a pipe is taken to have.
_WIDTH = 120
_QUICK = {"records": 200_000, "keys": [1_000, 50_000], "batches": [50_000], "slow_records": 50_000}


def main() -> None:
    """Measure every contender on every case, print the tables, write the results."""
    arguments = _parser().parse_args()
    if arguments.quick:
        vars(arguments).update(_QUICK)
    console = Console(width=max(_WIDTH, Console().width))
    clean_up_when_terminated()
    machine = describe()
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load average {machine['load_average'][0]}"
    )
    work_dir = arguments.work_dir or Path(tempfile.gettempdir()) / "millrace-benchmarks"
    work_dir.mkdir(parents=True, exist_ok=True)
    measurements: list[Measurement] = []
    with servers_for(arguments.rivals, work_dir) as servers:
        for keys, batch, rival in itertools.product(
            arguments.keys, arguments.batches, arguments.rivals
        ):
            records = arguments.records
            if rival.startswith("tws") and arguments.slow_records:
                records = max(batch, min(records, arguments.slow_records) // batch * batch)
            workload = Workload(
                records,
                keys,
                batch,
                arguments.warmup_batches,
                arguments.warmup_records,
                arguments.cores,
            )
            try:
                found = measure(
                    "keyed_state",
                    Measurement,
                    rival,
                    workload,
                    work_dir,
                    arguments.cores,
                    arguments.timeout,
                    servers,
                )
            except ContenderFailed as failure:
                console.print(f"{keys:,} keys, batches of {batch:,}: {failure}", markup=False)
                continue
            measurements.append(found)
            console.print(
                f"{keys:,} keys, batches of {batch:,}: {rival} {found.records_per_s:,.0f} records/s"
            )
            settings = {name: str(value) for name, value in vars(arguments).items()}
            path = path_of("keyed_state", machine, arguments.out)
            write_measurements(path, "keyed_state", machine, settings, measurements)
    print_report(measurements, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keyed_state",
        description=keyed_state.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default_rivals = [name for name in CONTENDERS if name != "tws-per-record"]
    parser.add_argument("--records", type=int, default=2_000_000, help="measured records")
    parser.add_argument("--keys", type=integers, default=[1_000, 200_000, 2_000_000])
    parser.add_argument("--batches", type=integers, default=[100_000, 400_000])
    parser.add_argument(
        "--rivals",
        type=among(*CONTENDERS),
        default=default_rivals,
        help=f"some of {','.join(CONTENDERS)} (default: {','.join(default_rivals)})",
    )
    parser.add_argument(
        "--slow-records",
        type=int,
        help="cap on the measured records of tws and tws-per-record (default: none)",
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
