"""The shell around the kernel that runs on Spark. The only package that imports PySpark.

This module itself does not: ``import millrace`` must work without a JVM. PySpark is imported by
the modules below, when a pipeline is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.spark.realtime.requirements import realtime_settings

if TYPE_CHECKING:
    from millrace.compile.topology import Topology

__all__ = ["python_reasons", "realtime_settings", "register_source"]


def python_reasons(topology: Topology) -> dict[str, str | None]:
    """Return why sources need Python; see :func:`millrace.spark.source.python_reasons`."""
    from millrace.spark.source import python_reasons

    return python_reasons(topology)


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

    spark.dataSource.register(CheckpointSource)
