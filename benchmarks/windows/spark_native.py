"""Spark's own windowed aggregation: ``groupBy(window, key).sum``, without any Python.

In append mode: a window's sum is written once, when the watermark has passed its end, which is what
Millrace and Flink do here too. Update mode would write a window again in every batch that touches
it, and there is none for ``session_window``.
"""

from __future__ import annotations

import pyarrow.dataset as ds
from pyspark.sql import functions as F

from benchmarks.batches import Job, Outcome
from benchmarks.spark_session import BatchLog, build_session, read_batches
from benchmarks.windows.workload import (
    BATCHES,
    DISORDER_MS,
    FLUSH_KEY,
    GAP_MS,
    SCHEMA_DDL,
    SIZE_MS,
    Totals,
    Workload,
)


def run(job: Job[Workload]) -> Outcome:
    """Sum per key and window with state in RocksDB."""
    spark = build_session(job.rival, job.cores)
    log = BatchLog()
    spark.streams.addListener(log)
    window = F.window("time", f"{SIZE_MS} milliseconds")
    if job.workload.shape == "sessions":
        window = F.session_window("time", f"{GAP_MS} milliseconds")
    sums = (
        read_batches(spark, str(job.input_dir / BATCHES), SCHEMA_DDL, job.workload.parts)
        .withWatermark("time", f"{DISORDER_MS} milliseconds")
        .groupBy(window.alias("span"), "key")
        .agg(F.sum("value").alias("sum"))
        .select("key", "span.start", "span.end", "sum")
    )
    query = (
        sums.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(job.results_dir))
        .option("checkpointLocation", str(job.scratch_dir / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = log.wait_for(job.workload.batches)
    spark.stop()
    measured = batches[job.workload.warmup_batches : job.workload.batches]
    marks_s = [batch.started_s for batch in measured] + [measured[-1].ended_s]
    return Outcome(marks_s, job.workload.batch_records, _read_totals(job))


def _read_totals(job: Job[Workload]) -> Totals:
    written = ds.dataset(job.results_dir, format="parquet").to_table(
        ["sum"], ds.field("key") != FLUSH_KEY
    )
    return Totals.of(written["sum"].to_numpy())
