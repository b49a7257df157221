"""One contender, in a process of its own: ``python -m benchmarks.joins.contender job outcome``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from benchmarks.joins.workload import (
    BATCH_MS,
    END_MS,
    FIRST_MS,
    INTERVAL,
    SCHEMA_DDL,
    Totals,
    read_totals,
)
from benchmarks.spark_session import BatchLog, build_session, read_batches

_MS = mr.SECOND // 1_000


class Job(msgspec.Struct):
    """What a contender is to do."""

    rival: str
    shape: str
    batches: int
    cores: int
    folder: str


class Outcome(msgspec.Struct):
    """When its batches began, and the last one ended, Unix time; and what it wrote."""

    marks_s: list[float]
    totals: Totals


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
    pipeline.sink("pairs", mr.Parquet(f"{job.folder}/pairs"))
    run = pipeline.start(spark, checkpoint=f"{job.folder}/checkpoint")
    run.process_available()
    run.stop()


def millrace(job: Job, spark: SparkSession) -> None:
    """Join near in time, or for ever."""
    within = (FIRST_MS * _MS, END_MS * _MS) if job.shape == INTERVAL else None
    _millrace(job, spark, lambda left, right: left.join(right, within=within))


def millrace_enrich(job: Job, spark: SparkSession) -> None:
    """Give each left value the newest row of its key."""
    _millrace(job, spark, lambda left, right: left.enrich(right, "inner", waits=False))


def spark(job: Job, spark: SparkSession) -> None:
    """Spark's stream-stream join, with watermarks where there is an interval."""
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


CONTENDERS: dict[str, Callable[[Job, SparkSession], None]] = {
    "millrace": millrace,
    "millrace-enrich": millrace_enrich,
    "spark": spark,
}


def main() -> None:
    """Do what the job says, and write down how it went."""
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    session = build_session(job.rival, job.cores)
    log = BatchLog()
    session.streams.addListener(log)
    CONTENDERS[job.rival](job, session)
    batches = log.wait_for(job.batches)[1 : job.batches]
    session.stop()
    marks_s = [batch.started_s for batch in batches] + [batches[-1].ended_s]
    outcome = Outcome(marks_s, read_totals(Path(job.folder) / "pairs"))
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
