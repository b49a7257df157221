"""The contenders by name, and the process that runs one of them.

``python -m benchmarks.windows.contender JOB.json OUTCOME.json``: the parent starts it, so that each
contender has a fresh interpreter and a fresh JVM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.windows.job import Job, Outcome

#: Where each contender's ``(Job) -> Outcome`` is. A name, not the function: a contender must not
#: load, and count as its memory, the libraries of the others.
CONTENDERS = {
    "millrace": "millrace_sum:run",
    "millrace-files": "millrace_sum:run_files",
    "millrace-unlifted": "millrace_sum:run_unlifted",
    "millrace-per-record": "millrace_sum:run_per_record",
    "millrace-realtime": "millrace_live:run",
    "millrace-realtime-kafka": "millrace_live:run_kafka",
    "spark": "spark_native:run",
    "flink": "flink_sql:run",
}


def main(job_path: Path, outcome_path: Path) -> None:
    """Run the job and write its outcome."""
    job = Job.load(job_path)
    module, function = CONTENDERS[job.rival].split(":")
    run: Callable[[Job], Outcome] = getattr(
        importlib.import_module(f"benchmarks.windows.{module}"), function
    )
    run(job).dump(outcome_path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
