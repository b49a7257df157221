"""Spark's own stateful micro-batches, each as soon as the one before it is over.

``spark-aggregation`` is SQL alone: ``groupBy(key).count``, in update mode, which writes a key's new
count once a batch. A second aggregation after it is only to be had in append mode, behind a
watermark, so there is one stage. ``spark-tws`` has two, as Python code: ``transformWithState``
(Row) after ``transformWithState``, a row for each record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

# Spark's workers need it for transformWithState and, without it, crash with no word of why.
import google.protobuf  # noqa: F401
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from benchmarks.latency.job import REKEY, Job, Outcome
from benchmarks.latency.probe import Probe
from benchmarks.spark_session import build_session

_STATE_SCHEMA = StructType([StructField("count", LongType())])
_OUTPUT_DDL = "sent BIGINT, key BIGINT, count BIGINT"
_SETTLE_S = 0.2


class Count(StatefulProcessor):
    """Counts the records of a key and hands each on, with the count.

    Args:
        probe: Is told of each record; or nobody is.
    """

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the value state."""
        self._count = handle.getValueState("count", _STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Read and write the state once for all the rows of a key."""
        stored = self._count.get()
        count = stored[0] if stored else 0
        for row in rows:
            if self._probe is not None:
                self._probe.saw(row.sent)
            count += 1
            yield Row(sent=row.sent, key=key[0], count=count)
        self._count.update((count,))

    def close(self) -> None:
        """Nothing is held open."""


def run_aggregation(job: Job) -> Outcome:
    """Count by SQL, in one stage."""
    spark = _session(job)
    counts = _events(spark, job).groupBy("key").count()
    rows = counts.select(F.lit(0).alias("sent"), "key", "count")
    return _run(spark, job, rows, "update")


def run_tws(job: Job) -> Outcome:
    """Count in Python, in as many stages as there are to be."""
    spark = _session(job)
    rows = _events(spark, job)
    for number in range(1, job.stages + 1):
        if number > 1:
            rows = rows.withColumn("key", F.col("key") * REKEY % job.keys)
        processor = Count(Probe(job.probes_dir) if number == job.stages else None)
        rows = rows.groupBy("key").transformWithState(processor, _OUTPUT_DDL, "Append", "None")
    return _run(spark, job, rows, "append")


def _session(job: Job) -> SparkSession:
    return build_session(job.rival, job.partitions, heap="2g", jars=job.jars)


def _events(spark: SparkSession, job: Job) -> DataFrame:
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    return source.select(_number(1).alias("sent"), _number(9).alias("key"))


def _number(position: int) -> Column:
    """Return eight bytes of the value as a number."""
    return F.conv(F.hex(F.substring("value", position, 8)), 16, 10).cast("bigint")


def _run(spark: SparkSession, job: Job, rows: DataFrame, mode: str) -> Outcome:
    values = rows.select(F.concat_ws(",", "sent", "key", "count").alias("value"))
    writer = values.writeStream.outputMode(mode).option(
        "checkpointLocation", str(job.scratch_dir / "checkpoint")
    )
    if job.sink:
        writer = (
            writer.format("kafka")
            .option("kafka.bootstrap.servers", job.servers)
            .option("topic", job.sink)
        )
    else:
        writer = writer.format("noop")
    query = writer.trigger(processingTime="0 seconds").start()
    while query.status["message"] != "Waiting for data to arrive" and query.isActive:
        time.sleep(_SETTLE_S)
    job.wait_for_stop()
    batches = (query.lastProgress or {"batchId": -1})["batchId"] + 1
    query.stop()
    spark.stop()
    return Outcome({"batches": batches})
