"""Flink SQL: windowing table-valued functions, state in RocksDB, exactly-once checkpoints.

Flink has no batches. It reads the same records in the same order from one file a core, so that each
of its two readers sees event time go on as everyone else does, and nothing is late. How far it is,
is read off the results, in steps of ten seconds of event time: each result carries the time at
which it was made, and a step is over when the last window is out that ends ten seconds before it.
That is where everyone's low watermark stands then.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks.batches import Job, Outcome
from benchmarks.flink_session import open_session
from benchmarks.windows.workload import (
    DISORDER_MS,
    FIRST_MS,
    FLUSH_KEY,
    GAP_MS,
    SIZE_MS,
    WHOLE,
    Totals,
    Workload,
)

_WINDOWS = {
    "windows": f"TUMBLE(TABLE events, DESCRIPTOR(happened), INTERVAL '{SIZE_MS // 1_000}' SECOND)",
    "sessions": (
        "SESSION(TABLE events PARTITION BY key, DESCRIPTOR(happened), "
        f"INTERVAL '{GAP_MS // 1_000}' SECOND)"
    ),
}


def run(job: Job[Workload]) -> Outcome:
    """Sum per key and window."""
    # As much heap as the JVM of Spark gets.
    os.environ["JVM_ARGS"] = "-Xmx4g"
    table = open_session(job.jars, job.cores, job.scratch_dir / "checkpoint")
    files = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
    delay = f"INTERVAL '{DISORDER_MS // 1_000}' SECOND"
    table.execute_sql(
        f"""
        CREATE TABLE events (
            key BIGINT,
            `value` BIGINT,
            time_ms BIGINT,
            happened AS TO_TIMESTAMP_LTZ(time_ms, 3),
            WATERMARK FOR happened AS happened - {delay}
        ) WITH ({files}, 'path' = '{job.input_dir / WHOLE}')"""
    )
    table.execute_sql(
        f"""
        CREATE TABLE sums (
            key BIGINT, ended TIMESTAMP(3), total BIGINT, made TIMESTAMP_LTZ(3)
        ) WITH ({files}, 'path' = '{job.results_dir}')"""
    )
    table.execute_sql(
        f"""
        INSERT INTO sums
        SELECT key, window_end, SUM(`value`), CURRENT_ROW_TIMESTAMP()
        FROM TABLE({_WINDOWS[job.workload.shape]})
        GROUP BY key, window_start, window_end"""
    ).wait()
    results = ds.dataset(_files(job.results_dir), format="parquet").to_table(
        filter=ds.field("key") != FLUSH_KEY
    )
    notes = {"apache-flink": importlib.metadata.version("apache-flink")}
    marks_s = _marks_s(job, results)
    step = SIZE_MS * job.workload.rate
    return Outcome(marks_s, step, Totals.of(results["total"].to_numpy()), notes)


def _files(folder: Path) -> list[str]:
    """Return the files of finished checkpoints; others begin with a dot."""
    return [str(path) for path in folder.rglob("part-*") if path.is_file()]


def _marks_s(job: Job[Workload], results: pa.Table) -> list[float]:
    ended, made = results["ended"].to_numpy(), results["made"].to_numpy()
    order = np.argsort(ended)
    made_so_far = np.maximum.accumulate(made[order])
    workload = job.workload
    start_ms = FIRST_MS + workload.warmup // workload.rate - DISORDER_MS
    steps = workload.records // (workload.rate * SIZE_MS)
    passed = (start_ms + SIZE_MS * np.arange(steps + 1)).astype("datetime64[ms]")
    last = np.searchsorted(ended[order], passed, side="right") - 1
    return (made_so_far[last].astype("datetime64[ms]").astype(np.int64) / 1_000).tolist()
