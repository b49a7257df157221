"""Millrace, and Spark's own stream-stream join: batches of the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from benchmarks.joins.job import Job, Outcome
from benchmarks.joins.workload import (
    BATCH_MS,
    END_MS,
    FIRST_MS,
    INTERVAL,
    SCHEMA_DDL,
    read_totals,
)
from benchmarks.spark_session import BatchLog, build_session, read_batches

_MS = mr.SECOND // 1_000


class Event(msgspec.Struct):
    """A record's value."""

    key: int
    value: int


class Pair(msgspec.Struct):
    """What is written of a pair."""

    left: int
    right: int


def _pair(both: Any) -> Pair:
    return Pair(both[0].value, both[1].value)


def _millrace(job: Job, spark: SparkSession, joined: Callable[[Any, Any], Any]) -> None:
    pipeline = mr.Pipeline("joins")
    left, right = (
        pipeline.inject(
            side,
            read_batches(spark, f"{job.folder}/input/{side}", SCHEMA_DDL, 1),
            timestamp="time",
            low_watermark=mr.BoundedDelay(BATCH_MS * _MS),
            format=Event,
        ).key_by("key")
        for side in ("left", "right")
    )
    joined(left, right).map(_pair).to("pairs", format=Pair)
    pipeline.sink("pairs", mr.sinks.Parquet(f"{job.folder}/pairs"))
    run = pipeline.start(spark, checkpoint=f"{job.folder}/checkpoint")
    run.process_available()
    run.stop()


def millrace(job: Job) -> Outcome:
    """Join near in time, or for ever."""
    within = (FIRST_MS * _MS, END_MS * _MS) if job.shape == INTERVAL else None
    return _measured(
        job,
        lambda spark: _millrace(job, spark, lambda left, right: left.join(right, within=within)),
    )


def millrace_enrich(job: Job) -> Outcome:
    """Give each left value the newest row of its key."""

    def enriched(left: Any, right: Any) -> Any:
        return left.enrich(right, "inner", waits=False)

    return _measured(job, lambda spark: _millrace(job, spark, enriched))


def spark_native(job: Job) -> Outcome:
    """Spark's stream-stream join, with watermarks where there is an interval."""
    return _measured(job, lambda spark: _spark_native(job, spark))


def _spark_native(job: Job, spark: SparkSession) -> None:
    sides = {}
    for side in ("left", "right"):
        rows = read_batches(spark, f"{job.folder}/input/{side}", SCHEMA_DDL, 1)
        if job.shape == INTERVAL:
            rows = rows.withWatermark("time", f"{BATCH_MS} milliseconds")
        sides[side] = rows.select(*(F.col(name).alias(f"{side}_{name}") for name in rows.columns))
    on = "left_key = right_key"
    if job.shape == INTERVAL:
        on += f" AND right_time >= left_time - INTERVAL {-FIRST_MS // 1_000} SECONDS"
        on += f" AND right_time < left_time + INTERVAL {END_MS // 1_000} SECONDS"
    pairs = sides["left"].join(sides["right"], F.expr(on))
    query = (
        pairs.selectExpr("left_value AS left", "right_value AS right")
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", f"{job.folder}/pairs")
        .option("checkpointLocation", f"{job.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _measured(job: Job, run: Callable[[SparkSession], None]) -> Outcome:
    """Run in a session, and return how its batches went."""
    session = build_session(job.rival, job.cores)
    log = BatchLog()
    session.streams.addListener(log)
    run(session)
    batches = log.wait_for(job.batches)[1 : job.batches]
    session.stop()
    marks_s = [batch.started_s for batch in batches] + [batches[-1].ended_s]
    return Outcome(marks_s, read_totals(Path(job.folder) / "pairs"))
