"""The shell around the kernel that runs on Spark. The only package that imports PySpark.

This module itself does not: ``import millrace`` must work without a JVM. PySpark is imported by
the modules below, when a pipeline is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError
from millrace.spark.realtime.requirements import realtime_settings

if TYPE_CHECKING:
    from millrace.compile.topology import Topology

__all__ = ["python_reasons", "read_stream", "realtime_settings", "register_source"]


def python_reasons(topology: Topology) -> dict[str, str | None]:
    """Return why sources need Python; see :func:`millrace.spark.source.python_reasons`."""
    from millrace.spark.source import python_reasons

    return python_reasons(topology)


def read_stream(spark: Any, path: str | Path) -> Any:
    """Return what a stream has sent to ``mr.sinks.Parquet(path)`` as a streaming DataFrame.

    A query of it takes each record once, as its own checkpoint says, whatever happens to the run or
    to the query. An epoch's files appear together, in the order of epochs, and never change. It may
    run beside the pipeline, in any application. Its columns are those of the newest epoch when it
    begins: the fields of the records, ``_key``, ``_timestamp``, ``_id``, those of a pane, and
    ``epoch``. Files that a query has read may be removed.

    When a checkpoint goes back to a savepoint, rows of later epochs come again to a query that has
    read them.

    Args:
        spark: A session.
        path: Of the sink, which has no key, on a local or mounted disk; written to by a run before.

    Raises:
        PipelineError: There is no such directory.

    Source: docs/design/2026-11-28-a-stream-as-a-dataframe.md.
    """
    from millrace.connectors.parquet.files import newest_epoch
    from millrace.spark.offset_files import for_spark
    from millrace.store import is_object_store, local_path

    epoch = None if is_object_store(path) else newest_epoch(local_path(path))
    if epoch is None:
        raise PipelineError(
            f"read_stream({str(path)!r}): expected the path of a mr.sinks.Parquet without a key, "
            "on a local or mounted disk, which a run has begun to write."
        )
    root = for_spark(epoch.parent)
    columns = spark.read.option("basePath", root).parquet(for_spark(epoch)).schema
    return spark.readStream.schema(columns).parquet(root)


def register_source(spark: Any) -> None:
    """Let a session read checkpoints: ``spark.read.format("millrace")``.

    Options: ``checkpoint``, a path or URL; ``computation``, its name; ``what``: ``cells``,
    ``timers``, ``holds``, ``windows``, ``chunks`` or ``ids``; ``epoch``, by default the last that
    has completed when the query is planned. A column a cell, typed by the checkpoint itself;
    instants in microseconds. It is read beside a run too, which it does not disturb; what that run
    collects meanwhile is an error, and then the query is to be planned again.

    Args:
        spark: A session. Its workers import Millrace, as for a run.
    """
    from millrace.spark.checkpoint_source import CheckpointSource
    from millrace.spark.compat import need_python_sources

    need_python_sources("register_source()")
    spark.dataSource.register(CheckpointSource)
