"""The contenders by name, and the process that runs one of them.

``python -m benchmarks.joins.contender JOB.json OUTCOME.json``: the parent starts it, so that each
contender has a fresh interpreter and a fresh JVM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.joins.job import Job, Outcome

#: Where each contender's ``(Job) -> Outcome`` is. A name, not the function: Flink's environment has
#: no Spark, and Spark's no Flink.
CONTENDERS = {
    "millrace": "on_spark:millrace",
    "millrace-enrich": "on_spark:millrace_enrich",
    "spark": "on_spark:spark_native",
    "flink": "flink_sql:run",
}


def main(job_path: Path, outcome_path: Path) -> None:
    """Run the job and write its outcome."""
    job = Job.load(job_path)
    module, function = CONTENDERS[job.rival].split(":")
    run: Callable[[Job], Outcome] = getattr(
        importlib.import_module(f"benchmarks.joins.{module}"), function
    )
    run(job).dump(outcome_path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
