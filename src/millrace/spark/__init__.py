"""The shell around the kernel that runs on Spark. The only package that imports PySpark.

This module itself does not: ``import millrace`` must work without a JVM. PySpark is imported by
the modules below, when a pipeline is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.spark.connect import refuse_connect
from millrace.spark.realtime.needed import realtime_settings

if TYPE_CHECKING:
    from millrace.compile.topology import Topology
    from millrace.model.pipeline import Declarations
    from millrace.spark.handle import Handle
    from millrace.spark.status import Status

__all__ = ["python_reasons", "realtime_settings", "register_source", "run_batch", "start"]


def start(
    pipeline: Declarations,
    spark: Any,
    *,
    checkpoint: str,
    realtime: bool = False,
    **options: Any,
) -> Handle:
    """Run a pipeline until it is stopped, epoch by epoch or in real time.

    Args:
        pipeline: The pipeline.
        spark: A session.
        checkpoint: Where its hard state is.
        realtime: Which plane.
        options: Of the plane: see :mod:`millrace.options`.
    """
    from millrace.spark.application import pipeline_at
    from millrace.spark.updating import Started

    refuse_connect(spark, "start()")
    given = {"checkpoint": checkpoint, "realtime": realtime, **options}

    def again(other: Declarations, **changed: Any) -> Handle:
        return start(other, spark, **(given | changed))

    def load(application: str) -> Declarations:
        found: Declarations = pipeline_at(application, "update", anew=True, spark=spark)
        return found

    run = _started(pipeline, spark, realtime=realtime, checkpoint=checkpoint, **options)
    run.started = Started(pipeline, again, load)
    return run


def _started(
    pipeline: Declarations, spark: Any, *, realtime: bool, checkpoint: str, **options: Any
) -> Handle:
    """Return a run of one of the planes."""
    from millrace.options import EpochOptions, RealtimeOptions, with_defaults

    if realtime:
        from millrace.spark.realtime.start import start as start_live

        chosen = with_defaults(RealtimeOptions, options)
        return start_live(pipeline, spark, checkpoint=checkpoint, options=chosen)
    from millrace.spark.assembly import start

    by_epochs = with_defaults(EpochOptions, options)
    return start(pipeline, spark, checkpoint=checkpoint, options=by_epochs)


def run_batch(pipeline: Declarations, spark: Any, **options: Any) -> Status:
    """Run a pipeline over bounded input; see :func:`millrace.spark.batch.run_batch`."""
    from millrace.options import BatchOptions, with_defaults
    from millrace.spark.batch import run_batch

    refuse_connect(spark, "run_batch()")
    return run_batch(pipeline, spark, with_defaults(BatchOptions, options))


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
