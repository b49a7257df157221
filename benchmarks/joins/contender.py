"""The contenders by name.

``python -m benchmarks.joins.contender JOB.json OUTCOME.json`` runs one.
"""

from __future__ import annotations

from benchmarks.contender import play
from benchmarks.joins.job import Job

#: Name -> where its ``(Job) -> Outcome`` is.
CONTENDERS = {
    "millrace": "on_spark:millrace",
    "millrace-enrich": "on_spark:millrace_enrich",
    "spark": "on_spark:spark_native",
    "flink": "flink_sql:run",
}


if __name__ == "__main__":
    play("joins", CONTENDERS, Job.load)
