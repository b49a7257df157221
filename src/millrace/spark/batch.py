"""A batch: the same pipeline over bounded sources, as one Spark job without a checkpoint.

Source: VLDB 2015 Dataflow paper: batch is the case in which the low watermark goes from the
beginning to the end of time once; docs/architecture.md, "Batch".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from millrace.compile.build import build
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Piece
from millrace.injectors.publisher import WatermarkPublisher
from millrace.model.errors import MillraceError, PipelineError
from millrace.model.pipeline import Declarations
from millrace.options import BatchOptions, with_defaults
from millrace.plane.binding import bind_sinks, claim_sinks
from millrace.spark.connect import refuse_connect
from millrace.spark.console import Quiet
from millrace.spark.early_end import early_end_of, said_of
from millrace.spark.external import external_pieces, pieces_there
from millrace.spark.failure import failed
from millrace.spark.job import run_job
from millrace.spark.parallelism import tasks_for, tasks_of
from millrace.spark.plan import SETTINGS, BatchPlan
from millrace.spark.progress_display import ProgressDisplay, where_to_show
from millrace.spark.source import sources_of
from millrace.spark.status import Progress, Status
from millrace.spark.status_text import as_line
from millrace.store import MemoryHardState
from millrace.windmill.epochs import Epochs

_log = logging.getLogger("millrace")


def run_batch(pipeline: Declarations, spark: SparkSession, **given: Any) -> Status:
    """Run a pipeline over bounded input, to its end; see :meth:`millrace.Pipeline.run_batch`."""
    refuse_connect(spark, "run_batch()")
    options = with_defaults(BatchOptions, given)
    until = options["until"]
    topology = build(pipeline)
    at_once = tasks_for(spark)
    there: dict[str, list[Piece]] = {}

    def read(stream: str, injector: Injector) -> DataFrame:
        there[stream] = pieces_there(stream, injector, before=until)
        return external_pieces(spark, stream, there[stream], tasks=at_once)

    sources = sources_of(topology, read, batch=True)
    enough = early_end_of(topology, there, options["percentile"], options["scratch"])
    if until is not None and all(source.pieces is None for source in sources):
        raise PipelineError(
            f"run_batch(until={until!r}) is about injectors, and no stream of {pipeline!r} has "
            "one. Leave it out, and filter the DataFrames by their own columns."
        )
    streaming = [source.stream.name for source in sources if source.is_streaming]
    if streaming:
        raise PipelineError(
            f"streams {streaming} have streaming sources, and run_batch() needs bounded ones. Read "
            "them with spark.read, or run the pipeline with p.start(spark, checkpoint=...)."
        )
    if not sources:
        raise PipelineError(f"{pipeline!r} injects no stream, so it has nothing to run over.")
    tasks = tasks_of(options["tasks"], at_once)
    BatchPlan(topology, sources, tasks=tasks)  # what cannot be sent to workers is found first
    topology = bind_sinks(topology, f"batch {uuid4()}")
    plan = BatchPlan(topology, [source.of(topology) for source in sources], tasks=tasks)
    plan.ends_with(enough)
    # Only so that the plan, the manifest and the counters are those of a streaming epoch.
    state = MemoryHardState()
    epochs = Epochs(topology, state, intervals=1 << (tasks - 1).bit_length())
    manifest = epochs.begin(0, wall_time_us=time.time_ns() // 1000, injectors={}, draining=True)
    assert manifest is not None, "the first epoch of new state is not completed"
    started = time.perf_counter()
    claim_sinks(topology, epochs)
    plan.attach(None, "")
    rows = plan.rows()
    quiet = Quiet(spark)
    quiet.begin()
    state_of_it = "batch under way for"

    def line() -> str:
        return f"{pipeline.name}: {state_of_it} {time.perf_counter() - started:,.0f} s"

    display = ProgressDisplay(line, where_to_show(options["progress"], spark))
    display.start()
    try:
        with _settings(spark), display.live():
            report, _ = run_job(plan, rows, manifest, topology.sinks)
        left = {} if enough is None else enough.decisions().left(there)
    except BaseException as error:
        state_of_it = "batch failed after"
        display.finish()
        quiet.end(failed=True)
        if isinstance(error, MillraceError) or not isinstance(error, Exception):
            raise
        raise failed(pipeline.name, error, spark, batch=True) from None
    finally:
        if enough is not None:
            enough.decisions().forget()
    quiet.end()
    epochs.complete(manifest, report.results, report.sources)
    seen = Progress(topology.name)
    seen.add(report, time.perf_counter() - started)
    status = replace(seen.status(epochs, WatermarkPublisher({}), state="drained"), left=left)
    if left:
        _log.warning("%s: %s", pipeline.name, said_of(left))
    display.finish(as_line(status))
    return status


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """Set the user's session as the plan needs it, for as long as its job runs."""
    earlier = {name: spark.conf.get(name, None) for name in SETTINGS}
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in earlier.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
