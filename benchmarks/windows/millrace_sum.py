"""Millrace: windows, triggers and sums, through the public Dataflow API."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow.dataset as ds

import millrace as mr
from benchmarks.batches import Job, Outcome
from benchmarks.file_batches import FileBatches
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

_MS = mr.SECOND // 1_000
AT_WATERMARK = mr.Repeat(mr.AtWatermark())


class Event(msgspec.Struct):
    """A record's value."""

    key: int
    value: int


def run(job: Job[Workload]) -> Outcome:
    """Sum per key and window, emitted when the low watermark reaches the window's end."""
    return _run(job, AT_WATERMARK)


def run_unlifted(job: Job[Workload]) -> Outcome:
    """The same with every record shuffled, instead of what the sender made of a batch of them."""
    return _run(job, AT_WATERMARK, lift=False)


def run_files(job: Job[Workload]) -> Outcome:
    """The same with files that are read by Millrace itself, and not by Spark."""
    return _run(job, AT_WATERMARK, files=True)


def run_per_record(job: Job[Workload]) -> Outcome:
    """The same with a pane for every record: a trigger that must see each of them."""
    return _run(job, mr.Repeat(mr.AfterCount(1)))


def _run(
    job: Job[Workload], trigger: mr.Trigger, lift: bool | None = None, *, files: bool = False
) -> Outcome:
    spark = build_session(job.rival, job.cores)
    log = BatchLog(by_millrace=files)
    spark.streams.addListener(log)
    folder, parts = job.input_dir / BATCHES, job.workload.parts
    events: Any = read_batches(spark, str(folder), SCHEMA_DDL, parts)
    if files:
        events = FileBatches(folder, schema=SCHEMA_DDL, files=parts)
    pipeline = pipeline_of(job, events, trigger, lift)
    running = pipeline.start(spark, checkpoint=str(job.scratch_dir / "checkpoint"))
    running.process_available()
    running.stop()
    batches = log.wait_for(job.workload.batches)
    spark.stop()
    measured = batches[job.workload.warmup_batches : job.workload.batches]
    marks_s = [batch.started_s for batch in measured] + [measured[-1].ended_s]
    return Outcome(marks_s, job.workload.batch_records, read_totals(job))


def pipeline_of(
    job: Job[Workload], events: Any, trigger: mr.Trigger, lift: bool | None = None
) -> mr.Pipeline:
    """Return the pipeline over a source."""
    pipeline = mr.Pipeline("windows")
    pipeline.inject(
        "events",
        events,
        timestamp="time",
        low_watermark=mr.BoundedDelay(DISORDER_MS * _MS),
        format=Event,
    )
    windows: mr.WindowFn = mr.FixedWindows(SIZE_MS * _MS)
    if job.workload.shape == "sessions":
        windows = mr.Sessions(GAP_MS * _MS)
    keyed = pipeline.stream("events").key_by("key")
    keyed.window(windows, trigger=trigger, lift=lift).sum("value").to("sums")
    pipeline.sink("sums", mr.sinks.Parquet(job.results_dir))
    return pipeline


def read_totals(job: Job[Workload]) -> Totals:
    """Add up the last panes: of each window, and of those that became part of another none."""
    columns = {
        "key": "_key",
        "start": "_window_start",
        "end": "_window_end",
        "index": "_pane_index",
    }
    written = ds.dataset(job.results_dir, format="parquet").to_table(
        {name: ds.field(column) for name, column in {**columns, "sum": "value"}.items()},
        ds.field("_key") != str(FLUSH_KEY),
    )
    panes = written.to_pandas().sort_values(
        ["key", "start", "end", "index"], ascending=[True, True, False, False]
    )
    reached = panes.groupby("key")["end"].cummax().shift()
    same_key = panes["key"] == panes["key"].shift()
    last = ~same_key | (panes["end"] > reached)
    return Totals.of(panes.loc[last, "sum"].to_numpy())
