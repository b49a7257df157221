"""Starting a run of the real-time plane: what it cannot run is refused, the rest put together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from millrace.compile.build import build
from millrace.compile.explanation import Explanation
from millrace.compile.topology import Topology
from millrace.injectors.injector import Injector
from millrace.injectors.letters import bind_letters
from millrace.injectors.policy import WatermarkColumn
from millrace.injectors.publisher import WatermarkPublisher
from millrace.injectors.schema import arrow_schema
from millrace.model.errors import PipelineError
from millrace.model.pipeline import Declarations
from millrace.model.time import duration_us
from millrace.options import RealtimeOptions
from millrace.plane.balancing import Balancing
from millrace.plane.binding import bind_sinks, check_live, claim_sinks, live_writers
from millrace.plane.by_value import pickle_by_value
from millrace.plane.realtime.coordinator import Coordinator, Marked
from millrace.plane.realtime.handover import to_other_intervals
from millrace.plane.realtime.injecting import InjectorTask
from millrace.plane.realtime.level import LevelTask
from millrace.plane.realtime.task import LiveTask
from millrace.plane.realtime.weak import refused_weak
from millrace.plane.runtime import Runtime
from millrace.spark.calling import bind_calls
from millrace.spark.console import Quiet
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import lines_in
from millrace.spark.opening import (
    balance_of,
    cache_of,
    call_limits,
    check_attempts,
    check_not_drained,
    elapsed_us,
    intervals_of,
    now_us,
    scrapes_of,
    tasks_of,
)
from millrace.spark.parallelism import is_local
from millrace.spark.plan import StreamPlan
from millrace.spark.preparing import in_a_thread
from millrace.spark.process import Blueprint
from millrace.spark.progress_display import where_to_show
from millrace.spark.realtime.line import Address, Switchboard
from millrace.spark.realtime.lookout import Lookout
from millrace.spark.realtime.pacemaker import check_spark, pacemaker_of
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.run import LiveParts, LiveRun
from millrace.spark.realtime.settings import check_settings, has_slots, session_for, tasks_within
from millrace.spark.realtime.stages import LiveStage, strung
from millrace.spark.source import sources_of
from millrace.store import open_location
from millrace.windmill.balancer import Balance
from millrace.windmill.epochs import Epochs
from millrace.windmill.preparing import Preparation

#: Spark refuses shorter batches than this, unless told otherwise.
_LEAST_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"
#: Key intervals a task, unless told otherwise. Each that has something to do is a bundle of its
#: own, and few records come at once: of four, a turn costs a third less with two than with eight.
_INTERVALS = 2


def start(
    pipeline: Declarations,
    spark: SparkSession,
    *,
    checkpoint: str,
    options: RealtimeOptions,
) -> LiveRun:
    """Run a pipeline in real time until it is stopped, from where its checkpoint stands.

    Args:
        pipeline: With an :class:`~millrace.Injector` for each injected stream, such as
            ``mr.Kafka(...)`` or ``mr.Files(...)``.
        spark: A session of an application with :func:`~millrace.spark.realtime_settings`.
        checkpoint: See :meth:`millrace.Pipeline.start`.
        options: All of them.

    Returns:
        The handle.

    Raises:
        PipelineError: The pipeline, a source, a sink or the application cannot do it. Nothing was
            written.
        CheckpointMismatch: The checkpoint is of another pipeline or topology, or was drained.
        CheckpointUnwritable: The checkpoint cannot be written.
    """
    pacemaker = options["pacemaker"]
    check_spark(spark, pacemaker)
    topology = build(pipeline)
    bind_calls(topology, checkpoint)
    bind_letters(topology, checkpoint)
    if not topology.injected():
        raise PipelineError(f"{pipeline!r} injects no stream, so it would never run.")
    _check_sources(topology)
    check_live(topology)
    sources = sources_of(topology, lambda _, injector: _unread(spark, injector), realtime=True)
    publisher = WatermarkPublisher.of(topology)
    levels = topology.depth
    tasks = tasks_of(options["tasks"], tasks_within(spark, levels))
    check_settings(spark, tasks=tasks, levels=levels)
    intervals = intervals_of(options["intervals"], tasks, each=_INTERVALS)
    every_us = duration_us(options["marks"], "start(marks)")
    batch_ms = duration_us(options["spark_batch"], "start(spark_batch)") // 1000
    # What Spark lacks or cannot send to workers is found before the checkpoint is touched.
    if pacemaker is not None:
        pacemaker_of(spark, tasks, pacemaker)
    StreamPlan(topology, sources, tasks=tasks)
    clock_of_tasks = pickled_clock(options["clock"])
    scratch = Path(tempfile.gettempdir()) / f"millrace-{uuid4().hex}"
    limits = call_limits(options["stuck_after"], options["time_limit"], options["hang_limit"])
    check_attempts(options["attempts"])
    how = balance_of(options["balance"], intervals)
    scrapes = scrapes_of(options["metrics"])
    scratch.mkdir(mode=0o700)
    console = Quiet(spark)
    try:
        state = open_location(checkpoint, pipeline=pipeline.name, journals=options["journals"])
        topology = bind_sinks(topology, state.uuid)
        epochs = Epochs(topology, state, intervals=intervals)
        check_not_drained(checkpoint, epochs)
        topology = epochs.topology
        claim_sinks(topology, epochs)
        plan = StreamPlan(topology, [source.of(topology) for source in sources], tasks=tasks)
        plan.attach(state, cache_of(options["cache"], checkpoint, spark), limits)
        housekeeping = Housekeeping(state)
        live, by_mark = live_writers(topology)
        blueprint = replace(plan.blueprint, writers=by_mark, live_writers=live, live=True)

        def coordinate(completed: Callable[[Marked], None]) -> Coordinator:
            return Coordinator(
                epochs,
                tasks=tasks,
                sources=Lookout(lambda: _processes(topology)),
                sinks={
                    edge.number: topology.sinks[edge.sink]
                    for edge in topology.edges
                    if edge.sink is not None and edge.number in by_mark
                },
                mark_every_us=every_us,
                completed=completed,
                elapsed_us=elapsed_us,
            )

        def start_query(address: Address, careful: bool, hung: Sequence[ProcessId]) -> Any:
            session = session_for(spark, {_LEAST_BATCH: "1"})
            paced = pacemaker_of(session, tasks, pacemaker)
            stages = _stages(blueprint, levels, address, careful, clock_of_tasks, hung)
            frame = strung(paced, stages, tasks=tasks)
            writer: Any = (
                frame.writeStream.queryName(f"millrace: {pipeline.name}")
                .format("noop")
                .outputMode("update")
                .option("checkpointLocation", str(scratch / uuid4().hex))
            )
            # Spark's own types do not know this trigger.
            return writer.trigger(realTime=f"{batch_ms} milliseconds").start()

        parts = LiveParts(
            topology=topology,
            epochs=epochs,
            publisher=publisher,
            housekeeping=housekeeping,
            explanation=Explanation(
                topology,
                plan.python_reasons,
                refused_weak(topology, tasks=tasks),
                realtime=True,
            ),
            clock=options["clock"] or now_us,
            console=console,
            shown=where_to_show(options["progress"], spark),
            scrapes=scrapes,
            lines=lines_in(state),
            mailbox=state.mailbox,
            coordinate=coordinate,
            board=_board(spark),
            start_query=start_query,
            roomy=lambda: has_slots(spark, tasks=tasks, levels=levels),
            tasks=tasks,
            attempts=options["attempts"],
            hang_s=limits.hung_s,
            scratch=scratch,
            balancing=None if how is None else _balancing(epochs, tasks, how, housekeeping),
        )
        console.begin()
        run = LiveRun(parts)
        run.launch()
    except BaseException:
        if scrapes is not None:
            scrapes.close()
        console.end()
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return run


def _balancing(epochs: Epochs, tasks: int, how: Balance, housekeeping: Housekeeping) -> Balancing:
    """Return what has key intervals follow the load, by marks and rests."""
    return Balancing(
        epochs,
        tasks,
        how,
        beside=in_a_thread(housekeeping),
        is_near=Preparation.is_near_a_mark,
        remap=to_other_intervals,
    )


def _processes(topology: Topology) -> Mapping[str, Sequence[str]]:
    """Return injected stream -> names of the processes that its injector has now."""
    return {
        spec.name: list(spec.injection.source.processes())
        for spec in topology.injected()
        if spec.injection is not None
    }


def make_task(runtime: Runtime, level: int, number: int) -> LiveTask:
    """Return a task of a level."""
    if level:
        return LevelTask(runtime, level, number)
    return InjectorTask(runtime, number, elapsed_us=elapsed_us)


def pickled_clock(clock: Callable[[], int] | None) -> bytes:
    """Return a clock as tasks get it: empty if each host has its own."""
    if clock is None:
        return b""
    try:
        return pickle_by_value(clock)
    except Exception as refused:
        raise PipelineError(
            f"clock={clock!r} cannot be sent to the tasks, which look at it too with "
            f"realtime=True: {refused}. Give a function, or an instance of a class, that can be "
            "pickled: one that reads a file, say."
        ) from refused


def _stages(
    blueprint: Blueprint,
    levels: int,
    address: Address,
    careful: bool,
    clock: bytes,
    hung: Sequence[ProcessId],
) -> list[LiveStage]:
    return [
        LiveStage(
            blueprint,
            make_task,
            level,
            address,
            last=level == levels,
            careful=careful,
            clock=clock,
            hung=tuple(hung),
        )
        for level in range(levels + 1)
    ]


def _board(spark: SparkSession) -> Switchboard:
    """Return where the workers reach this process."""
    if is_local(spark):
        return Switchboard("127.0.0.1")
    host = str(spark.conf.get("spark.driver.host"))
    return Switchboard(host, spark.conf.get("spark.driver.bindAddress", None) or host)


def _unread(spark: SparkSession, injector: Injector) -> DataFrame:
    """Return what stands for an injector where only its columns matter."""
    arrow_schema(injector.schema)
    return spark.range(0)


def _check_sources(topology: Topology) -> None:
    for spec in topology.injected():
        injection = spec.injection
        source = None if injection is None else injection.source
        if injection is None or source is None:
            continue  # said by who looks at sources on both planes
        if not isinstance(source, Injector):
            raise PipelineError(
                f"stream {spec.name!r} is read from {type(source).__name__}, and realtime=True "
                "reads for itself, without Spark. Inject mr.Kafka(...), mr.Files(...) or an "
                "mr.Injector of your own in its place, or leave realtime out."
            )
        if isinstance(injection.low_watermark, WatermarkColumn):
            raise PipelineError(
                f"stream {spec.name!r}: low_watermark={injection.low_watermark!r} is a column of "
                "Spark's rows. With realtime=True an injector promises low watermarks in "
                "advance(); or let a policy say them, such as mr.BoundedDelay('5 s')."
            )
        if injection.process is not None:
            raise PipelineError(
                f"stream {spec.name!r}: process={injection.process!r} is a column, and with "
                "realtime=True the processes of a stream are those of its injector. Leave it out."
            )
