"""Assembly: from a pipeline and a session to a run that goes on where its checkpoint stands."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.compile.build import build
from millrace.compile.explanation import Explanation
from millrace.injectors.letters import bind_letters
from millrace.injectors.publisher import WatermarkPublisher
from millrace.injectors.skew import Gate
from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.model.pipeline import Declarations
from millrace.options import EpochOptions
from millrace.plane.balancing import Balancing
from millrace.plane.binding import bind_sinks, claim_sinks, sinks_by_edge
from millrace.plane.realtime.handover import from_live_tasks
from millrace.spark.calling import bind_calls
from millrace.spark.console import Quiet
from millrace.spark.external import external
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import lines_in
from millrace.spark.opening import (
    balance_of,
    cache_of,
    call_limits,
    check_attempts,
    check_cache_limit,
    check_not_drained,
    intervals_of,
    now_us,
    scrapes_of,
    tasks_of,
)
from millrace.spark.parallelism import tasks_for
from millrace.spark.plan import StreamPlan
from millrace.spark.preparing import in_a_thread
from millrace.spark.progress_display import where_to_show
from millrace.spark.progress_files import (
    ProgressFiles,
    has_progress,
    local_progress_files,
    progress_location,
)
from millrace.spark.run import Parts, Run
from millrace.spark.source import sources_of
from millrace.spark.splitting import Splitting
from millrace.spark.ticks import Alarm, ticks
from millrace.store import open_location
from millrace.windmill.epochs import Epochs

#: Key intervals a task, unless told otherwise: an epoch's commits are small beside what it costs.
_INTERVALS = 8


def start(
    pipeline: Declarations,
    spark: SparkSession,
    *,
    checkpoint: str,
    options: EpochOptions,
) -> Run:
    """Run a pipeline on Spark until it is stopped, from where its checkpoint stands.

    Args:
        pipeline: With a streaming DataFrame and a low-watermark policy for each injected stream.
        spark: A session.
        checkpoint: See :meth:`millrace.Pipeline.start`.
        options: All of them.

    Returns:
        The handle.

    Raises:
        PipelineError: The pipeline, or a source, cannot run. Nothing was written.
        CheckpointMismatch: The checkpoint is of another pipeline or topology, or was drained.
        CheckpointUnwritable: The checkpoint cannot be written.
    """
    topology = build(pipeline)
    bind_calls(topology, checkpoint)
    bind_letters(topology, checkpoint)
    # Made when there is a run: only then does anybody write there.
    scratch = Path(tempfile.gettempdir()) / f"millrace-{uuid4().hex}"
    gates = {
        spec.name: Gate(scratch / f"gate-{number}")
        for number, spec in enumerate(topology.injected())
    }
    begin = {stream: gate.path.with_suffix(".json") for stream, gate in gates.items()}
    at_once = tasks_for(spark)
    sources = sources_of(
        topology,
        lambda stream, injector: external(
            spark, stream, injector, gates[stream], tasks=at_once, begin=begin[stream]
        ),
    )
    publisher = WatermarkPublisher.of(topology)
    bounded = [source.stream.name for source in sources if not source.is_streaming]
    if bounded:
        raise PipelineError(
            f"streams {bounded} have bounded sources, and start() runs streaming ones. Read them "
            "with spark.readStream, or run the pipeline with p.run_batch(spark)."
        )
    if not sources:
        raise PipelineError(f"{pipeline!r} injects no stream, so it would never run.")
    tasks = tasks_of(options["tasks"], at_once)
    intervals = intervals_of(options["intervals"], tasks, each=_INTERVALS)
    # What cannot be sent to workers is found before the checkpoint is touched.
    StreamPlan(topology, sources, tasks=tasks)
    # Whether Spark can get there at all is asked before the checkpoint is touched.
    has_progress(spark, progress_location(checkpoint, options["spark_checkpoint"]))
    limits = call_limits(options["stuck_after"], options["time_limit"])
    check_attempts(options["attempts"])
    check_cache_limit(options["cache_limit"])
    how = balance_of(options["balance"], intervals)
    scrapes = scrapes_of(options["metrics"])
    scratch.mkdir(mode=0o700)
    console = Quiet(spark)
    try:
        alarm = Alarm(scratch / "alarm")
        alarm.ring_in(0)
        # A tick starts an epoch and has done its work: it has no row.
        nothing = ticks(spark, alarm).select(F.lit(None).alias("ts"))
        state = open_location(checkpoint, pipeline=pipeline.name)
        topology = bind_sinks(topology, state.uuid)
        epochs = Epochs(topology, state, intervals=intervals)
        offsets = progress_location(checkpoint, options["spark_checkpoint"], base=epochs.base)
        _check_progress(checkpoint, epochs, offsets, has_offsets=has_progress(spark, offsets))
        topology = epochs.topology
        claim_sinks(topology, epochs)
        from_live_tasks(epochs, sinks_by_edge(topology))
        for stream, file in begin.items():
            file.write_text(json.dumps(_begin_at(epochs, stream)))
        sources = [source.of(topology) for source in sources]
        plan = StreamPlan(topology, sources, tasks=tasks)
        cache = cache_of(options["cache"], checkpoint, spark)
        plan.attach(state, cache, limits, options["cache_limit"])
        housekeeping = Housekeeping(state)
        balancing = None
        if how is not None:
            balancing = Balancing(epochs, tasks, how, beside=in_a_thread(housekeeping))
        parts = Parts(
            topology=topology,
            epochs=epochs,
            publisher=publisher,
            housekeeping=housekeeping,
            explanation=Explanation(topology, plan.python_reasons),
            clock=options["clock"] or now_us,
            console=console,
            shown=where_to_show(options["progress"], spark),
            scrapes=scrapes,
            lines=lines_in(state),
            mailbox=state.mailbox,
            plan=plan,
            progress_files=ProgressFiles(offsets),
            alarm=alarm,
            gates=gates,
            scratch=scratch,
            splitting=Splitting(spark),
            attempts=options["attempts"],
            balancing=balancing,
            tasks=tasks,
        )
        run = Run(parts)
        rows = plan.rows()
        query = (
            rows.unionByName(nothing, allowMissingColumns=True)
            .writeStream.queryName(f"millrace: {pipeline.name}")
            .foreachBatch(run.epoch)
            .option("checkpointLocation", offsets)
            .trigger(processingTime=options["trigger"])
        )

        def start_query() -> Any:
            if "://" in offsets:
                return query.start()
            with local_progress_files(spark):
                return query.start()

        console.begin()
        run.launch(start_query)
    except BaseException:
        if scrapes is not None:
            scrapes.close()
        console.end()
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return run


def _check_progress(checkpoint: str, epochs: Epochs, progress: str, *, has_offsets: bool) -> None:
    """Refuse a checkpoint that has ended, or whose half was lost."""
    check_not_drained(checkpoint, epochs)
    if epochs.completed >= epochs.base and not has_offsets:
        raise CheckpointMismatch(
            f"checkpoint {checkpoint!r} has {epochs.completed + 1} completed epochs, but Spark's "
            f"offsets, {progress!r}, are gone: the sources would be read again from their "
            "beginning, and what they deliver would be taken for what was processed. Restore the "
            "directory, or start with a new checkpoint."
        )


def _begin_at(epochs: Epochs, stream: str) -> dict[str, list[Any]]:
    """Return process -> [offset, promise] at which a new log of offsets begins.

    It begins anew after live tasks, and with other streams than before.
    """
    if epochs.base <= epochs.completed:
        return {}
    places = epochs.places.get(stream, {})
    return {name: [place.offset, place.process_watermark_us] for name, place in places.items()}
