"""The shell around the kernel that runs on Spark. The only package that imports PySpark.

This module itself does not: ``import millrace`` must work without a JVM. PySpark is imported by
the modules below, when a pipeline is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError
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
        realtime: Which plane: see :func:`millrace.spark.assembly.start`, or
            :func:`millrace.spark.realtime.start.start`, for its options and errors.
        options: Of the plane.
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
    if realtime:
        from millrace.spark.realtime.start import start as start_live

        if "cache_limit" in options:
            raise PipelineError(
                "start(realtime=True, cache_limit=...): in real time a cache cannot be evicted, as "
                "what was committed since the session began can be read when it is over. Leave it "
                "out, or run the pipeline by epochs."
            )
        others = sorted({"trigger", "spark_checkpoint"} & options.keys())
        if others:
            raise PipelineError(
                f"start(realtime=True, {others[0]}=...): with realtime=True there are no epochs "
                f"that Spark would begin, and {others[0]} is about those. Leave it out; how often "
                'a mark is made is marks="2 s".'
            )
        return start_live(pipeline, spark, checkpoint=checkpoint, **options)
    from millrace.spark.assembly import start

    return start(pipeline, spark, checkpoint=checkpoint, **options)


def run_batch(pipeline: Declarations, spark: Any, **options: Any) -> Status:
    """Run a pipeline over bounded input; see :func:`millrace.spark.batch.run_batch`."""
    from millrace.spark.batch import run_batch

    refuse_connect(spark, "run_batch()")
    return run_batch(pipeline, spark, **options)


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
