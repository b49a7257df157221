"""Spark's own ``transformWithState`` (Row): a count in a RocksDB value state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Spark's workers need it for transformWithState and, without it, crash with no word of why.
import google.protobuf  # noqa: F401
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from benchmarks.batches import Job, Outcome
from benchmarks.keyed_state.workload import SCHEMA_DDL, Totals, Workload
from benchmarks.spark_session import BatchLog, build_session, read_batches

_STATE = "count"
_STATE_SCHEMA = StructType([StructField(_STATE, LongType())])
_OUTPUT_DDL = "key BIGINT, count BIGINT"


class CountPerKey(StatefulProcessor):
    """Reads and writes the state once for all the rows of a key: the form to write in earnest."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the value state."""
        self._count = handle.getValueState(_STATE, _STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows to the count; emit nothing."""
        stored = self._count.get()
        count = stored[0] if stored else 0
        for _ in rows:
            count += 1
        self._count.update((count,))
        return iter(())

    def close(self) -> None:
        """Nothing is held open."""


class CountPerRecord(CountPerKey):
    """Reads and writes the state for each record, as every other contender does."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add one to the count for each row; emit nothing."""
        for _ in rows:
            stored = self._count.get()
            self._count.update(((stored[0] if stored else 0) + 1,))
        return iter(())


def run_per_key(job: Job[Workload]) -> Outcome:
    """Count with ``CountPerKey``."""
    return _run(job, CountPerKey())


def run_per_record(job: Job[Workload]) -> Outcome:
    """Count with ``CountPerRecord``."""
    return _run(job, CountPerRecord())


def _run(job: Job[Workload], processor: StatefulProcessor) -> Outcome:
    spark = build_session(job.rival, job.cores)
    log = BatchLog()
    spark.streams.addListener(log)
    checkpoint = str(job.scratch_dir / "checkpoint")
    counts = (
        read_batches(spark, str(job.input_dir), SCHEMA_DDL, job.workload.parts)
        .groupBy("key")
        .transformWithState(processor, _OUTPUT_DDL, "Update", "None")
    )
    query = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = log.wait_for(job.workload.batches)[job.workload.warmup_batches :]
    totals = _read_totals(spark, checkpoint)
    spark.stop()
    marks_s = [batch.started_s for batch in batches] + [batches[-1].ended_s]
    return Outcome(marks_s, job.workload.batch_records, totals)


def _read_totals(spark: SparkSession, checkpoint: str) -> Totals:
    state = spark.read.format("statestore").option("stateVarName", _STATE).load(checkpoint)
    count = F.col("value")[_STATE]
    row = state.agg(F.count(count), F.sum(count), F.sum(count * count)).first()
    assert row is not None
    return Totals(*row)
