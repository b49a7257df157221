"""Millrace in real time: the same queries, from files that it reads itself."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.file_batches import FileBatches
from benchmarks.nexmark.job import Job
from benchmarks.nexmark.millrace_queries import finish, pipeline
from benchmarks.nexmark.workload import ONE_BY_ONE
from benchmarks.realtime import MARKS, realtime_session
from millrace_examples.nexmark import files

#: No query has more stages that keep state.
_LEVELS = 3


def session(job: Job) -> SparkSession:
    """Return a session in which all tasks of all levels run at once."""
    return realtime_session(job.rival, tasks=job.cores, levels=_LEVELS)


def run(spark: SparkSession, job: Job, folder: Path, name: str) -> None:
    """Run the queries over all that is there, to the end of their windows."""

    def source(stream: str) -> FileBatches:
        # A task reads file after file and promises as it goes, so no two are of one time.
        return FileBatches(folder / ONE_BY_ONE / stream, schema=files.COLUMNS[stream], files=1)

    handle = pipeline(job, source, name).start(
        spark,
        checkpoint=job.checkpoint(name),
        tasks=job.cores,
        realtime=True,
        marks=MARKS,
        progress=False,
    )
    finish(handle)
