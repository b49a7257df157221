"""Millrace on the real-time plane: the same windows, from files that it reads, or from Kafka.

When the clock has stopped the run is drained, so that the last windows come out, too; what pushes
the low watermark past everything for the others is not read.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.batches import Job, Outcome
from benchmarks.realtime import MARKS, FileParts, Parts, TopicParts, realtime_session, timed
from benchmarks.windows.millrace_sum import AT_WATERMARK, pipeline_of, read_totals
from benchmarks.windows.workload import BATCHES, SCHEMA_DDL, Workload


def run(job: Job[Workload]) -> Outcome:
    """Sum what is in Parquet files."""
    files = job.workload.parts
    staged = job.scratch_dir / "staged"
    return _run(job, FileParts(staged, _parts(job), schema=SCHEMA_DDL, files=files))


def run_kafka(job: Job[Workload]) -> Outcome:
    """Sum the same records from a topic with a partition for each file of a batch."""
    partitions = job.workload.parts
    return _run(job, TopicParts(job.servers, _parts(job), schema=SCHEMA_DDL, partitions=partitions))


def _run(job: Job[Workload], parts: Parts) -> Outcome:
    workload = job.workload
    spark = realtime_session(job.rival, tasks=job.cores, levels=1)
    running = pipeline_of(job, parts.source, AT_WATERMARK).start(
        spark,
        checkpoint=str(job.scratch_dir / "checkpoint"),
        tasks=job.cores,
        realtime=True,
        marks=MARKS,
        progress=False,
    )
    _, measured = timed(running, "events", parts, [workload.warmup, workload.records])
    running.drain()
    spark.stop()
    return Outcome(measured, workload.records, read_totals(job))


def _parts(job: Job[Workload]) -> list[list[Path]]:
    """Return the files of the warm-up, and those that are measured."""
    files = sorted((job.input_dir / BATCHES).iterdir())
    warm_up = job.workload.warmup_batches * job.workload.parts
    measured = job.workload.batches * job.workload.parts
    return [files[:warm_up], files[warm_up:measured]]
