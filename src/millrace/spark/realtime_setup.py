"""Setup of real time: what is checked and started on the way to a run of live tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from millrace.balance.task_count import TaskRange
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.injectors.injector import Injector
from millrace.injectors.watermark_policy import WatermarkColumn
from millrace.model.errors import PipelineError
from millrace.model.time import MILLISECOND, Duration, duration_us
from millrace.runtime.by_value import pickle_by_value
from millrace.runtime.realtime.coordinator import Coordinator, Marked
from millrace.runtime.realtime.incarnation_start import refuse_other_tasks
from millrace.runtime.sink_contract import check_live, live_writers
from millrace.spark.clock import elapsed_us
from millrace.spark.compat import close_session
from millrace.spark.connect import is_connect
from millrace.spark.engine import (
    RunParts,
    Setup,
)
from millrace.spark.external import injectors_of
from millrace.spark.offset_files import for_spark
from millrace.spark.parallelism import is_local
from millrace.spark.plan import StreamPlan
from millrace.spark.realtime.control_connection import Address, Switchboard
from millrace.spark.realtime.pacemaker import check_spark, pacemaker_of
from millrace.spark.realtime.process_discovery import ProcessDiscovery
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.settings import check_settings, has_slots, session_for, tasks_within
from millrace.spark.realtime.stages import live_stages, strung
from millrace.spark.realtime.standby import Standby
from millrace.spark.realtime_engine import RealtimeEngine
from millrace.spark.source import sources_of

#: Spark refuses shorter batches than this, unless told otherwise.
_LEAST_BATCH: Final = "spark.sql.streaming.realTimeMode.minBatchDuration"

#: Queries that there can be at once: one that works, its standby, and one that failed and ends.
_QUERIES_MAX = 3


class RealtimeSetup(Setup):
    """What real time does otherwise on the way to a run: see :class:`Setup`."""

    #: Each interval that has something to do is a bundle of its own, and few records come at once:
    #: of four, a turn costs a third less with two than with eight.
    intervals_each: ClassVar[int] = 2
    beside: Standby | None = None

    def _prepare(self, topology: Topology) -> None:
        spark, options = self._spark, self._options
        check_spark(spark, options["pacemaker"])
        _check_sources(topology)
        check_live(topology)
        self._levels = topology.depth
        self._marks_us = marks_us(options["marks"])
        self._batch_ms = batch_ms(options["spark_batch"])
        self._clock = b""
        self._counted = 0
        self._sessions: list[tuple[SparkSession, Any]] = []
        self.sources = sources_of(topology, spark, realtime=True)
        self._queries = 1 + options["standby"]
        self.fitting = tasks_within(spark, topology.depth, queries=self._queries)

    def check(self, tasks: int, allowed: TaskRange, *, slots_later: bool = False) -> None:
        """Refuse an application in which not all tasks can run at once, and a clock of no task."""
        self._counted = check_settings(
            self._spark,
            tasks=tasks,
            least=allowed.least,
            levels=self._levels,
            queries=self._queries,
            slots_later=slots_later,
        )
        if self._options["pacemaker"] is not None:
            pacemaker_of(self._spark, allowed.most, self._options["pacemaker"])
        self._clock = pickled_clock(self._options["clock"])

    def check_left(self, unfinished: Manifest | None, tasks: int) -> None:
        """Refuse what as many tasks have to take up as left it."""
        refuse_other_tasks(unfinished, tasks)

    def slots(self, tasks: int) -> int:
        """Return how many slots so many tasks a level take."""
        return tasks * (self._levels + 1)

    def stand_by(self, plan: StreamPlan, tasks: int, changed: Callable[[], None]) -> Standby:
        """Start a query before there is a run, whose engine has it then."""
        start_query = self._query(plan, tasks)
        where = [(level, n) for level in range(self._levels + 1) for n in range(tasks)]
        self.beside = Standby(
            _board(self._spark, self._options["host"]),
            lambda address: start_query(address, False, ()),
            where,
            changed,
            title="the new tasks",
        )
        return self.beside

    def warm_up(self, plan: StreamPlan, tasks: int, intervals: int) -> None:
        """Start a query that waits, unless one does, or there are no slots for it."""
        if self.beside is None and has_slots(self._spark, self.slots(tasks), self._counted):
            self.stand_by(plan, tasks, lambda: None)

    def engine(self, parts: RunParts) -> RealtimeEngine:
        """Return what runs live tasks."""
        spark, topology, tasks = self._spark, parts.topology, parts.tasks
        live, by_mark = live_writers(topology)
        beside, self.beside = self.beside, None

        def coordinate(completed: Callable[[Marked], None]) -> Coordinator:
            return Coordinator(
                parts.run_log,
                tasks=tasks,
                sources=ProcessDiscovery(partial(_processes, injectors_of(topology))),
                sinks={
                    edge.number: topology.sinks[edge.sink]
                    for edge in topology.edges
                    if edge.sink is not None and edge.number in by_mark
                },
                mark_every_us=self._marks_us,
                completed=completed,
                writers=pickle_by_value((live, by_mark)),
                elapsed_us=elapsed_us,
            )

        return RealtimeEngine(
            parts,
            spark=spark,
            coordinate=coordinate,
            board=lambda: _board(spark, self._options["host"]),
            start_query=self._query(parts.plan, tasks),
            roomy=lambda tasks: has_slots(spark, tasks, self._counted),
            standby=self._options["standby"],
            close=self._close,
            beside=beside,
        )

    def _query(
        self, plan: StreamPlan, tasks: int
    ) -> Callable[[Address, bool, Sequence[ProcessId]], Any]:
        """Return what starts a query of a plan; see :class:`RealtimeEngine`."""
        spark = self._spark

        def start_query(address: Address, careful: bool, hung: Sequence[ProcessId]) -> Any:
            session = session_for(spark, {_LEAST_BATCH: "1"})
            try:
                paced = pacemaker_of(session, tasks, self._options["pacemaker"])
                stages = live_stages(
                    plan.blueprint,
                    self._levels,
                    address,
                    careful=careful,
                    clock=self._clock,
                    hung=hung,
                )
                writer: Any = (
                    strung(paced, stages, tasks=tasks)
                    .writeStream.queryName(f"millrace: {plan.pipeline}")
                    .format("noop")
                    .outputMode("update")
                    .option("checkpointLocation", for_spark(self._scratch / uuid4().hex))
                )
                # Spark's own types do not know this trigger.
                query = writer.trigger(realTime=f"{self._batch_ms} milliseconds").start()
            except BaseException:
                close_session(session, spark, release=True)
                raise
            self._keep(session, query)
            return query

        return start_query

    def _keep(self, session: SparkSession, query: Any) -> None:
        """Keep the session of a query; close one whose query has ended, if there are many.

        Not the oldest: while standbys fail, that is the session of the query that works.
        """
        self._sessions.append((session, query))
        if len(self._sessions) <= _QUERIES_MAX:
            return
        over = next((one for one in self._sessions if not one[1].isActive), None)
        if over is not None:
            self._sessions.remove(over)
            close_session(over[0], self._spark, release=True)

    def _close(self, failed: bool) -> None:
        """Close the sessions of all queries."""
        for session, _ in self._sessions:
            close_session(session, self._spark, release=not failed)


def _processes(injectors: Mapping[str, Injector]) -> Mapping[str, Sequence[str]]:
    """Return injected stream -> names of the processes that its injector has now."""
    return {stream: list(injector.processes()) for stream, injector in injectors.items()}


def marks_us(marks: Duration) -> int:
    """Return how often a mark is made.

    Raises:
        PipelineError: It is no time, or none at all.
    """
    every_us = duration_us(marks, "start(marks)")
    if not every_us:
        raise PipelineError(f'start(marks={marks!r}): expected a time above 0, such as "2 s".')
    return every_us


def batch_ms(spark_batch: Duration) -> int:
    """Return how long Spark's batches are, in milliseconds.

    Raises:
        PipelineError: It is no time, or shorter than Spark knows.
    """
    batch_us = duration_us(spark_batch, "start(spark_batch)")
    if batch_us < MILLISECOND:
        raise PipelineError(
            f"start(spark_batch={spark_batch!r}): expected a millisecond or more; 12 hours are the "
            "default."
        )
    return batch_us // MILLISECOND


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


def _board(spark: SparkSession, host: str | None) -> Switchboard:
    """Return where the workers reach this process.

    Args:
        spark: The session.
        host: By what name they do; None if Spark or the network says.
    """
    if host is not None:
        return Switchboard(host, "")
    if is_local(spark):
        return Switchboard("127.0.0.1")
    if is_connect(spark):
        return Switchboard(_address_towards(spark))
    host = str(spark.conf.get("spark.driver.host"))
    return Switchboard(host, spark.conf.get("spark.driver.bindAddress", None) or host)


def _address_towards(spark: Any) -> str:
    """Return the address of this host from which a client reaches its server."""
    try:
        server = str(spark.client.host)
        family, kind, *_, address = socket.getaddrinfo(
            server, 0, socket.AF_INET, socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect((address[0], 9))  # which sends nothing
            return str(probe.getsockname()[0])
    except Exception as error:
        raise PipelineError(
            "realtime=True: the address by which the server's workers reach this program is not "
            f"known: {error}. Give it: start(host=...)."
        ) from error


def _check_sources(topology: Topology) -> None:
    for spec in topology.injected():
        injection = spec.injection
        source = None if injection is None else injection.source
        if injection is None or source is None:
            continue  # said by who looks at sources on both planes
        if not isinstance(source, Injector):
            raise PipelineError(
                f"stream {spec.name!r} is read from {type(source).__name__}, and realtime=True "
                "reads for itself, without Spark. Inject mr.sources.Kafka(...), "
                "mr.sources.Files(...) or an "
                "mr.sources.Injector of your own in its place, or leave realtime out."
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
