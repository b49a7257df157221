"""A batch: the same pipeline over bounded sources, as one Spark job without a checkpoint.

Source: VLDB 2015 Dataflow paper: batch is the case in which the low watermark goes from the
beginning to the end of time once; docs/architecture.md, "Batch".

It may end early, when enough of the input has been read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from millrace.balance.load import RunLoads
from millrace.compile.build import build
from millrace.compile.topology import Topology
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import Piece, pieces_until_now
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.declarations import Declarations
from millrace.model.errors import MillraceError, PipelineError
from millrace.options import BatchOptions, with_defaults
from millrace.runtime.sink_contract import bind_sinks, claim_sinks
from millrace.runtime.stragglers import Enough, Left
from millrace.spark.compat import lend
from millrace.spark.console import Quiet
from millrace.spark.external import external_pieces, injectors_of, together
from millrace.spark.failure import failed
from millrace.spark.job import run_job
from millrace.spark.parallelism import tasks_for, tasks_of
from millrace.spark.plan import SETTINGS, BatchPlan
from millrace.spark.progress_display import ProgressDisplay, where_to_show
from millrace.spark.session import check_session
from millrace.spark.source import sources_of
from millrace.spark.status import Progress, Status
from millrace.spark.status_text import as_line
from millrace.store import MemoryHardState, is_object_store, local_path

#: Pieces that are named in words; all of them are in the status.
_NAMED = 5


def early_end_of(
    topology: Topology,
    there: Mapping[str, Sequence[Piece]],
    percentile: int | None,
    scratch: str | None,
) -> Enough | None:
    """Return when a batch may end before it has read everything; None if it may not.

    Args:
        topology: The pipeline.
        there: Injected stream -> the pieces of its injector.
        percentile: As ``run_batch`` takes it.
        scratch: Likewise.

    Raises:
        PipelineError: They make no sense, or nothing waits for so small a share.
    """
    if percentile is None and scratch is None:
        return None
    asked = f"run_batch(percentile={percentile!r}, scratch={scratch!r})"
    if percentile is None or scratch is None:
        raise PipelineError(
            f"{asked}: where a batch may end before it has read everything, its tasks tell each "
            "other how far they are. Give both, the share that is enough and a directory that "
            'driver and workers reach: percentile=95, scratch="/shared/tmp".'
        )
    if type(percentile) is not int or not 1 <= percentile <= 99:
        raise PipelineError(f"{asked}: expected a whole number from 1 to 99.")
    pieces = {
        stream: sum(piece.between is not None for piece in all_of_it)
        for stream, all_of_it in there.items()
    }
    if not pieces:
        raise PipelineError(
            f"{asked}: pieces are what injectors have, and no stream of {topology.name!r} has one. "
            "Leave both out: Spark reads a DataFrame to its end."
        )
    if not any(each <= percentile for each in topology.percentiles):
        raise PipelineError(
            f"{asked}: no window or timer of {topology.name!r} waits for so small a share, so none "
            f"would fire. Those there are: {sorted(topology.percentiles)}. Give the groupings a "
            f"trigger such as mr.AtWatermark({percentile})."
        )
    location = scratch if is_object_store(scratch) else str(local_path(scratch))
    return Enough(location, f"batch{uuid4().hex}", percentile, pieces)


def describe_left(left: Mapping[str, Sequence[Left]]) -> str:
    """Return a sentence about the pieces that were not read."""
    descriptions = []
    for stream, pieces in left.items():
        named = [
            f"{piece.process} from {piece.between[0]!r} to {piece.between[1]!r} "
            f"after {piece.rows:,} rows"
            for piece in pieces[:_NAMED]
        ]
        more = [f"{len(pieces) - _NAMED:,} more"] if len(pieces) > _NAMED else []
        descriptions.append(f"{len(pieces):,} of stream {stream!r}: {'; '.join([*named, *more])}")
    return f"pieces left unread: {', '.join(descriptions)}"


_log = logging.getLogger("millrace")


def run_batch(pipeline: Declarations, spark: SparkSession, **given: Any) -> Status:
    """Run a pipeline over bounded input, to its end; see :meth:`millrace.Pipeline.run_batch`."""
    options = with_defaults(BatchOptions, given)
    check_session("run_batch", spark)
    until = options["until"]
    topology = build(pipeline)
    at_once = tasks_for(spark)
    sources = sources_of(topology, spark, batch=True)
    injectors = injectors_of(topology)
    there = {
        stream: list(pieces_until_now(stream, injectors[stream], until))
        for stream in (source.stream.name for source in sources if source.injector is not None)
    }
    enough = early_end_of(topology, there, options["percentile"], options["scratch"])
    if until is not None and not there:
        raise PipelineError(
            f"run_batch(until={until!r}) is about injectors, and no stream of {pipeline!r} has "
            "one. Leave it out, and filter the DataFrames by their own columns."
        )
    streaming = [source.stream.name for source in sources if source.frame.isStreaming]
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
    run_log = RunLog(topology, state, intervals=1 << (tasks - 1).bit_length())
    loads = RunLoads(run_log)
    manifest = run_log.begin(0, wall_time_us=time.time_ns() // 1000, injectors={}, draining=True)
    assert manifest is not None, "the first epoch of new state is not completed"
    started = time.perf_counter()
    claim_sinks(topology, run_log)
    plan.attach(None, "")
    frames = plan.rows()
    if there:
        frames.append(external_pieces(spark, there, tasks=at_once))
    quiet = Quiet(spark)
    quiet.begin()
    state_of_it = "batch under way for"

    def line() -> str:
        return f"{pipeline.name}: {state_of_it} {time.perf_counter() - started:,.0f} s"

    display = ProgressDisplay(line, where_to_show(options["progress"], spark))
    display.start()
    give_back = lend(spark, SETTINGS)
    try:
        with display.live():
            report, _ = run_job(plan, together(frames), manifest, topology.sinks)
        left = {} if enough is None else enough.decisions().left(there)
    except BaseException as error:
        state_of_it = "batch failed after"
        display.finish()
        quiet.end(failed=True)
        if isinstance(error, MillraceError) or not isinstance(error, Exception):
            raise
        raise failed(pipeline.name, error, spark, batch=True) from None
    finally:
        give_back()
        if enough is not None:
            enough.decisions().forget()
    quiet.end()
    run_log.complete(manifest, report.results, report.sources)
    seen = Progress(topology.name)
    seen.add(report, time.perf_counter() - started)
    status = replace(
        seen.status(run_log, loads, WatermarkPublisher({}), state="drained"), left=left
    )
    if left:
        _log.warning("%s: %s", pipeline.name, describe_left(left))
    display.finish(as_line(status))
    return status
