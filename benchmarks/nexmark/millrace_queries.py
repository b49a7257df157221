"""Millrace on epochs: the queries of ``examples/nexmark``, one or all of them as one pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millrace as mr
from benchmarks.nexmark.job import Job
from benchmarks.nexmark.workload import BATCHES
from benchmarks.spark_session import build_session, read_batches
from millrace_examples.nexmark import files, suite


def session(job: Job) -> SparkSession:
    """Return a session of as many slots as there are cores."""
    return build_session(job.rival, job.cores)


def run(spark: SparkSession, job: Job, folder: Path, name: str) -> None:
    """Run the queries over all that is there, to the end of their windows.

    A run that was killed goes on where its checkpoint is.
    """

    def source(stream: str) -> Any:
        place = folder / BATCHES / stream
        return read_batches(spark, str(place), files.COLUMNS[stream], job.cores)

    handle = pipeline(job, source, name).start(spark, checkpoint=job.checkpoint(name))
    finish(handle)


def pipeline(job: Job, source: Any, name: str) -> mr.Pipeline:
    """Return the queries, with Parquet sinks, over what ``source`` returns for each stream."""
    sources = {
        stream: source("bids" if stream == "arrivals" else stream)
        for stream in suite.streams(job.queries)
    }
    p = suite.pipeline(
        sources,
        job.queries,
        timestamp="at",
        unit="us",
        low_watermark=mr.BoundedDelay(job.disorder_us),
    )
    for query in job.queries:
        p.sink(query, mr.sinks.Parquet(job.results(query, name)))
    return p


def finish(handle: Any) -> None:
    """Have everything processed, and end."""
    if not (handle.process_available("30 min") and handle.drain("10 min")):
        raise TimeoutError(f"not done in time: {handle.status()}")
