"""Millrace: a count in a ``ValueState``, through the public Computation API."""

from __future__ import annotations

from typing import Any

import msgspec

import millrace as mr
from benchmarks.batches import Job, Outcome
from benchmarks.file_batches import FileBatches
from benchmarks.keyed_state.workload import SCHEMA_DDL, Totals, Workload
from benchmarks.spark_session import BatchLog, build_session, read_batches


class Event(msgspec.Struct):
    """A record's value: what ``transformWithState`` sees of a row, too."""

    key: int
    value: int


class RunningCount(mr.Computation):
    """Counts the records of a key: one state read and one write for each record."""

    inputs = {"events": mr.by("key")}
    outputs = {}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add one."""
        self.count.set(self.count.get(0) + 1)


def run(job: Job[Workload]) -> Outcome:
    """Count, then add up the counts as a recovery from the commit log would find them."""
    return _run(job, files=False)


def run_files(job: Job[Workload]) -> Outcome:
    """The same with files that are read by Millrace itself, and not by Spark."""
    return _run(job, files=True)


def _run(job: Job[Workload], *, files: bool) -> Outcome:
    spark = build_session(job.rival, job.cores)
    log = BatchLog(by_millrace=files)
    spark.streams.addListener(log)
    parts = job.workload.parts
    events: Any = read_batches(spark, str(job.input_dir), SCHEMA_DDL, parts)
    if files:
        events = FileBatches(job.input_dir, schema=SCHEMA_DDL, files=parts)
    pipeline = pipeline_of(events)
    checkpoint = str(job.scratch_dir / "checkpoint")
    running = pipeline.start(spark, checkpoint=checkpoint)
    running.process_available()
    running.stop()
    batches = log.wait_for(job.workload.batches)[job.workload.warmup_batches :]
    spark.stop()
    marks_s = [batch.started_s for batch in batches] + [batches[-1].ended_s]
    return Outcome(marks_s, job.workload.batch_records, read_totals(checkpoint))


def pipeline_of(events: Any) -> mr.Pipeline:
    """Return the pipeline over a source."""
    pipeline = mr.Pipeline("keyed-state")
    pipeline.inject(
        "events", events, timestamp="time", low_watermark=mr.BoundedDelay("5 s"), format=Event
    )
    pipeline.add(RunningCount)
    return pipeline


def read_totals(checkpoint: str) -> Totals:
    """Add up the counts in log and snapshots; neither LMDB nor the run is asked."""
    kept = mr.ops.open_checkpoint(checkpoint)["RunningCount"].scan()
    counts = [one.cells["count"] for one in kept]
    return Totals(len(counts), sum(counts), sum(count**2 for count in counts))
