"""The contenders by name.

``python -m benchmarks.keyed_state.contender JOB.json OUTCOME.json`` runs one.
"""

from __future__ import annotations

from functools import partial

from benchmarks.batches import Job
from benchmarks.contender import play
from benchmarks.keyed_state.workload import Workload

#: Name -> where its ``(Job) -> Outcome`` is.
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


if __name__ == "__main__":
    play("keyed_state", CONTENDERS, partial(Job.load, kind=Workload))
