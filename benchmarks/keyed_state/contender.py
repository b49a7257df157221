"""The contenders by name, and the process that runs one of them.

``python -m benchmarks.keyed_state.contender JOB.json OUTCOME.json``: the parent starts it, so that
each contender has a fresh interpreter and a fresh JVM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.keyed_state.job import Job, Outcome

#: Where each contender's ``(Job) -> Outcome`` is. A name, not the function: a contender must not
#: load, and count as its memory, the libraries of the others.
CONTENDERS = {
    "millrace": "millrace_count:run",
    "millrace-files": "millrace_count:run_files",
    "millrace-realtime": "millrace_live:run",
    "millrace-realtime-kafka": "millrace_live:run_kafka",
    "millrace-realtime-memory": "millrace_live:run_memory",
    "tws": "spark_tws:run_per_key",
    "tws-per-record": "spark_tws:run_per_record",
    "bytewax": "bytewax_flow:run",
    "bytewax-single": "bytewax_flow:run_single",
    "bytewax-recovery": "bytewax_flow:run_with_recovery",
    "bytewax-single-recovery": "bytewax_flow:run_single_with_recovery",
}


def main(job_path: Path, outcome_path: Path) -> None:
    """Run the job and write its outcome."""
    job = Job.load(job_path)
    module, function = CONTENDERS[job.rival].split(":")
    run: Callable[[Job], Outcome] = getattr(
        importlib.import_module(f"benchmarks.keyed_state.{module}"), function
    )
    run(job).dump(outcome_path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
