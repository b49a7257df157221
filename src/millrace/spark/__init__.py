"""The shell around the kernel that runs on Spark. The only package that imports PySpark.

This module itself does not: ``import millrace`` must work without a JVM. PySpark is imported by
the modules below, when a pipeline is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.compile.topology import Topology
    from millrace.model.pipeline import Declarations
    from millrace.spark.run import Run
    from millrace.spark.status import Status

__all__ = ["python_reasons", "run_batch", "start"]


def start(pipeline: Declarations, spark: Any, *, checkpoint: str, **options: Any) -> Run:
    """Run a pipeline as a Structured Streaming query; see :func:`millrace.spark.assembly.start`."""
    from millrace.spark.assembly import start

    return start(pipeline, spark, checkpoint=checkpoint, **options)


def run_batch(pipeline: Declarations, spark: Any, **options: Any) -> Status:
    """Run a pipeline over bounded input; see :func:`millrace.spark.batch.run_batch`."""
    from millrace.spark.batch import run_batch

    return run_batch(pipeline, spark, **options)


def python_reasons(topology: Topology) -> dict[str, str | None]:
    """Return why sources need Python; see :func:`millrace.spark.source.python_reasons`."""
    from millrace.spark.source import python_reasons

    return python_reasons(topology)
