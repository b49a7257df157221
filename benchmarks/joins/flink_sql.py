"""Flink SQL: an interval join, and a join for ever; RocksDB, exactly-once checkpoints every second.

Flink has no batches. It reads the same records in the same order from one file a core and side, and
how far it is, is read off the pairs, each of which carries the time at which it was made. Measured
is from when the share of the pairs had been made that the first batch is of the input, to the last
pair. Nothing holds the left side back until the table has been read, so some of that is measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from benchmarks.flink_session import open_session
from benchmarks.joins.job import Job, Outcome
from benchmarks.joins.workload import (
    BATCH_MS,
    END_MS,
    FIRST_MS,
    INTERVAL,
    WHOLE,
    read_totals,
)


def run(job: Job) -> Outcome:
    """Join both sides."""
    # As much heap as the JVM of Spark gets.
    os.environ["JVM_ARGS"] = "-Xmx4g"
    table = open_session(job.jars, job.cores, Path(job.folder) / "checkpoint")
    files = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
    for side in ("left", "right"):
        path = f"{job.folder}/input/{WHOLE}/{side}"
        table.execute_sql(
            f"""
            CREATE TABLE {side}_side (
                key BIGINT,
                `value` BIGINT,
                time_ms BIGINT,
                happened AS TO_TIMESTAMP_LTZ(time_ms, 3),
                WATERMARK FOR happened AS happened - INTERVAL '{BATCH_MS // 1_000}' SECOND
            ) WITH ({files}, 'path' = '{path}')"""
        )
    results = Path(job.folder) / "pairs"
    table.execute_sql(
        f"""
        CREATE TABLE pairs (`left` BIGINT, `right` BIGINT, made TIMESTAMP_LTZ(3))
        WITH ({files}, 'path' = '{results}')"""
    )
    on = "l.key = r.key"
    if job.shape == INTERVAL:
        on += f" AND r.happened >= l.happened - INTERVAL '{-FIRST_MS // 1_000}' SECOND"
        on += f" AND r.happened < l.happened + INTERVAL '{END_MS // 1_000}' SECOND"
    table.execute_sql(
        f"""
        INSERT INTO pairs
        SELECT l.`value`, r.`value`, CURRENT_ROW_TIMESTAMP()
        FROM left_side l JOIN right_side r ON {on}"""
    ).wait()
    return Outcome(_marks_s(job, results), read_totals(results))


def _marks_s(job: Job, results: Path) -> list[float]:
    written = ds.dataset(results, format="parquet").to_table(["made"])
    made = np.sort(written["made"].to_numpy().astype("datetime64[ms]").astype(np.int64))
    # The first batch of a table is the table, of which nothing comes.
    first = len(made) // job.batches if job.shape == INTERVAL else 0
    return [made[first] / 1_000, made[-1] / 1_000]
