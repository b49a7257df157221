"""Runs every contender on every shape, and prints the table; see the package's docstring."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import environments, result
from benchmarks.arguments import among
from benchmarks.contest import ContenderFailed, clean_up_when_terminated, run_process
from benchmarks.joins import __doc__ as about
from benchmarks.joins.contender import CONTENDERS
from benchmarks.joins.job import Job, Outcome
from benchmarks.joins.workload import INTERVAL, TABLE, Workload

_ROUNDS = [(INTERVAL, "millrace"), (INTERVAL, "spark"), (INTERVAL, "flink"), (TABLE, "millrace"),
           (TABLE, "millrace-enrich"), (TABLE, "spark"), (TABLE, "flink")]  # fmt: skip


def measure(workload: Workload, rival: str, cores: int, timeout_s: float) -> tuple[float, float]:
    """Run one contender; return seconds and CPU seconds for a million records."""
    folder = Path(tempfile.mkdtemp(prefix=f"joins-{rival}-"))
    try:
        expected = workload.write(folder / "input")
        python, jars = environments.flink() if rival == "flink" else (sys.executable, [])
        Job(rival, workload.shape, workload.batches, cores, str(folder), jars).dump(
            folder / "job.json"
        )
        sampler = run_process(rival, "benchmarks.joins.contender", folder, timeout_s, python)
        outcome = Outcome.load(folder / "outcome.json")
        if outcome.totals != expected:
            raise ContenderFailed(f"{rival} found {outcome.totals}, expected {expected}.")
        start_s, end_s = outcome.marks_s[0], outcome.marks_s[-1]
        # Of the table only the left side is measured: the right one is in the batch before.
        of_a_batch = workload.records * (1 if workload.shape == TABLE else 2)
        millions = of_a_batch * (workload.batches - 1) / 1e6
        cpu_s = sum(sampler.cpu_s_between(start_s, end_s).values())
        return (end_s - start_s) / millions, cpu_s / millions
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run and print."""
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.joins",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--records", type=int, default=100_000, help="a batch of a side")
    parser.add_argument("--batches", type=int, default=11, help="the first warms up")
    parser.add_argument("--only", type=among(*CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--cores", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for a contender")
    parser.add_argument("--out", type=Path, help="results file (default: below results/)")
    arguments = parser.parse_args()
    table, measurements = Table(), []
    for name in ("shape", "keys", "contender", "records/s", "CPU s a million"):
        table.add_column(name, justify="right")
    for shape, rival in _ROUNDS:
        if rival in arguments.only:
            workload = Workload(
                shape, arguments.keys, arguments.records, arguments.batches, arguments.cores
            )
            seconds, cpu_s = measure(workload, rival, arguments.cores, arguments.timeout)
            row = (shape, f"{arguments.keys:,}", rival, f"{1e6 / seconds:,.0f}", f"{cpu_s:.1f}")
            table.add_row(*row)
            measurements.append(
                {"shape": shape, "contender": rival, "s_per_million": seconds,
                 "cpu_s_per_million": cpu_s}
            )  # fmt: skip
            print(*row, flush=True)
    Console().print(table)
    result.write("joins", out=arguments.out, measurements=measurements)


if __name__ == "__main__":
    main()
