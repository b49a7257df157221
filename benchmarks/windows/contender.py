"""The contenders by name.

``python -m benchmarks.windows.contender JOB.json OUTCOME.json`` runs one.
"""

from __future__ import annotations

from functools import partial

from benchmarks.batches import Job
from benchmarks.contender import play
from benchmarks.windows.workload import Workload

#: Name -> where its ``(Job) -> Outcome`` is.
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


if __name__ == "__main__":
    play("windows", CONTENDERS, partial(Job.load, kind=Workload))
