"""The contenders by name.

``python -m benchmarks.latency.contender JOB.json OUTCOME.json`` runs one.
"""

from __future__ import annotations

from benchmarks.contender import play
from benchmarks.latency.job import Job

#: Name -> where its ``(Job) -> Outcome`` is.
CONTENDERS = {
    "millrace-realtime": "millrace_flow:run",
    "millrace-realtime-weak": "millrace_flow:run_weak",
    "millrace-realtime-at-least-once": "millrace_flow:run_at_least_once",
    "millrace-realtime-weak-at-least-once": "millrace_flow:run_weak_at_least_once",
    "millrace-epochs": "millrace_flow:run_epochs",
    "spark-aggregation": "spark_native:run_aggregation",
    "spark-tws": "spark_native:run_tws",
    "bytewax-0s": "bytewax_flow:run_shortest_epochs",
    "bytewax-1s": "bytewax_flow:run_second_epochs",
    "flink": "flink_sql:run",
    "flink-at-least-once": "flink_sql:run_at_least_once",
}

#: What is so once a row can be seen, and what its reader may see twice.
PROMISES = {
    "millrace-realtime": (
        "state exactly once; each record is committed, with fsync, in every stage before its row "
        "leaves. Kafka: a row may come again after a failure, with the id that it had; PostgreSQL: "
        "once"
    ),
    "millrace-realtime-weak": (
        "as millrace-realtime, but productions leave before their commit, which is durable with "
        "the next mark: consumers drop by id what comes again. Where rows go to Kafka or "
        "PostgreSQL, the last stage is strong"
    ),
    "millrace-realtime-at-least-once": (
        "as millrace-realtime: strong. There are no source ids here that would be looked up"
    ),
    "millrace-realtime-weak-at-least-once": (
        "as millrace-realtime-weak, but what comes again after a failure counts again"
    ),
    "millrace-epochs": (
        "as millrace-realtime, by the epoch: rows leave when all stages have committed"
    ),
    "spark-aggregation": (
        "one stage, a row a key and batch. State exactly once; Spark's Kafka sink: a row may come "
        "again, without an id. Spark does not fsync a local checkpoint"
    ),
    "spark-tws": "two stages of Python code; else as spark-aggregation",
    "bytewax-0s": (
        "state exactly once, from the snapshots of its epochs (SQLite), which it closes as fast as "
        "it can. Its Kafka sink does not wait for them: rows come again after a failure, and may "
        "come otherwise"
    ),
    "bytewax-1s": "as bytewax-0s, with an epoch a second",
    "flink": (
        "state and rows exactly once: a row is visible when the Kafka transaction of its "
        "checkpoint (every second) is committed. RocksDB, incremental"
    ),
    "flink-at-least-once": (
        "as flink; rows are visible at once, and come again after a failure, perhaps otherwise"
    ),
}


if __name__ == "__main__":
    play("latency", CONTENDERS, Job.load)
