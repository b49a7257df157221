"""Flink SQL: running counts as OVER aggregations, a row for each record, state in RocksDB.

``COUNT(*) OVER (PARTITION BY key ORDER BY proctime)`` has a row for each it gets, so a second one
can follow it, and nothing is retracted; ``GROUP BY`` would send a retraction and a new count. The
first count has to be asked for, or the planner leaves it out.
"""

from __future__ import annotations

import importlib.metadata
import os
import time

from benchmarks.flink_session import open_session
from benchmarks.latency.job import REKEY, Job, Outcome

_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_SETTLE_S = 0.2
_SETTINGS: dict[str, object] = {
    # By default rows wait up to 100 ms for others on their way to the next stage.
    "execution.buffer-timeout.interval": "1 ms",
    "taskmanager.memory.managed.size": "512 mb",
}


def run(job: Job) -> Outcome:
    """Write in Kafka transactions, which end with the checkpoints."""
    return _run(job, "exactly-once")


def run_at_least_once(job: Job) -> Outcome:
    """Write at once."""
    return _run(job, "at-least-once")


def _run(job: Job, guarantee: str) -> Outcome:
    os.environ["JVM_ARGS"] = "-Xmx2g"
    table = open_session(job.jars, job.partitions, job.scratch_dir / "checkpoint", _SETTINGS)
    kafka = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{job.servers}'"
    table.execute_sql(
        f"""
        CREATE TABLE events (sent BIGINT, `key` BIGINT, `at` AS PROCTIME()) WITH (
            {kafka}, 'topic' = '{job.source}', 'format' = 'csv',
            'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset'
        )"""
    )
    sink = "'connector' = 'blackhole'"
    if job.sink:
        sink = f"""
            {kafka}, 'topic' = '{job.sink}', 'format' = 'csv',
            'sink.delivery-guarantee' = '{guarantee}',
            'sink.transactional-id-prefix' = '{job.sink}',
            'properties.linger.ms' = '0',
            'properties.transaction.timeout.ms' = '600000'"""
    table.execute_sql(
        f"""
        CREATE TABLE counted (sent BIGINT, `key` BIGINT, `count` BIGINT, made TIMESTAMP_LTZ(3))
        WITH ({sink})"""
    )
    found = table.execute_sql(
        f"""
        INSERT INTO counted
        SELECT sent, `key`, `count`, CURRENT_ROW_TIMESTAMP() FROM {_stages(job)}"""
    )
    client = found.get_job_client()
    assert client is not None
    while (status := client.get_job_status().result().name) != "RUNNING":
        if status in ("FAILED", "CANCELED", "FINISHED"):
            raise RuntimeError(f"the Flink job has {status}")
        time.sleep(_SETTLE_S)
    job.wait_for_stop()
    client.cancel().result()
    return Outcome({"apache-flink": importlib.metadata.version("apache-flink")})


def _stages(job: Job) -> str:
    found = "events"
    for stage in range(1, job.stages + 1):
        key = "`key`" if stage == 1 else f"MOD(`key` * {REKEY}, {job.keys})"
        # Whether a count is above zero cannot be known without counting.
        counted = "" if stage == 1 else "WHERE `count` > 0"
        found = f"""(
            SELECT sent, `key`, `at`,
                COUNT(*) OVER (PARTITION BY `key` ORDER BY `at` {_ROWS}) AS `count`
            FROM (SELECT sent, {key} AS `key`, `at` FROM {found} {counted}))"""
    return found
