"""Stages: the functions that Spark calls for each task of a level, and the frame that strings them.

::

    pacemaker -> injector tasks -> repartitionById -> level 1 -> ... -> level d -> nothing

Between two levels a row is a packet and the number of the task that it is for. Packets must not
wait for one another, and Spark's hand-over to Python makes them: it looks whether there is a
further row before it hands a batch over, even a full one, and the next packet may be an hour away.
So each packet has an empty row behind it, and a batch is two rows: the empty one of the packet
before, and the packet. For that to come out even, every task gets one lone empty row at first.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.runtime.packets import PACKET_DDL, PACKET_SCHEMA
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.realtime.task import LiveTask, Sent
from millrace.runtime.worker_process import WorkerProcess
from millrace.spark.clock import elapsed_us, now_us
from millrace.spark.realtime.control_connection import Address, ControlConnection
from millrace.spark.realtime.latency import StepTimer
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.task_host import hosted
from millrace.spark.worker import Blueprint, runtime_of

#: Rows of a batch that Spark hands to Python: a packet, and the empty row of the one before.
ROWS_A_BATCH = 2

#: For how long: what killed the tasks before comes again soon after the start, if at all.
_CAREFUL_S = 30.0

# A packet's row twice, the second time without it. Of an array of the packet and a null it would be
# copied into the array, and out of it.
_TWICE = "explode(if(packet is null, array(0), array(0, 1))) as behind"
_PAIRED = "if(behind = 0, packet, cast(null as binary)) as packet"


@dataclass(frozen=True)
class LiveStage:
    """The function of a level, for ``mapInArrow``: a call a task, for all incarnations of a query.

    Attributes:
        blueprint: Of the run.
        level: Its level.
        address: Where it calls the coordinator.
        last: Whether no level comes after it.
        careful: Whether to look at first for user code that ends its process.
        clock: Pickled, what returns wall-clock microseconds since 1970; empty: the host's own.
        hung: Processes of incarnations before that hang. Spark lets them be; one may hold a lock of
            the caches that this task opens.
    """

    blueprint: Blueprint
    level: int
    address: Address
    last: bool
    careful: bool = False
    clock: bytes = b""
    hung: Sequence[ProcessId] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the task sends."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark calls it in a task"
        number = context.partitionId()
        if not self.last:
            yield _batch([(number, None)])
        for process in self.hung:
            process.kill()
        connection = ControlConnection(self.address)
        try:
            careful_s = _CAREFUL_S if self.careful else 0.0
            runtime = runtime_of(self.blueprint, careful_s=careful_s)
            make = partial(make_task, runtime, self.level, number)
            steps = StepTimer()
            packets = _packets(batches, steps) if self.level else _end_of(batches)
            # Written by the driver of this very run, never read from a checkpoint or a stream.
            clock = pickle.loads(self.clock) if self.clock else now_us
            gone = yield from _batches(hosted(make, connection, packets, steps, clock), steps)
        finally:
            connection.close()
        if gone:
            # To return is to write to Spark, which has hung up: a traceback for every task of every
            # run that is stopped. The process would end with it anyway.
            os._exit(0)


def make_task(runtime: WorkerProcess, level: int, number: int) -> LiveTask:
    """Return a task of a level, for one incarnation; those of level 0 inject."""
    if level:
        return IncarnationHost(runtime, level, number)
    return InjectorTask(runtime, number, elapsed_us=elapsed_us)


def live_stages(
    blueprint: Blueprint,
    levels: int,
    address: Address,
    *,
    careful: bool,
    clock: bytes,
    hung: Sequence[ProcessId],
) -> list[LiveStage]:
    """Return the stages of a query: one for the injectors, and one for each level.

    Args:
        blueprint: Of the run.
        levels: How many levels there are.
        address: See :class:`LiveStage`, as are the others.
        careful: Likewise.
        clock: Likewise.
        hung: Likewise.
    """
    return [
        LiveStage(
            blueprint,
            level,
            address,
            last=level == levels,
            careful=careful,
            clock=clock,
            hung=tuple(hung),
        )
        for level in range(levels + 1)
    ]


def strung(pacemaker: DataFrame, stages: Iterable[LiveStage], *, tasks: int) -> DataFrame:
    """Return the frame of a query that runs stages, first the injectors' and then level by level.

    Args:
        pacemaker: A streaming frame of as many partitions as there are tasks; its rows do not
            matter.
        stages: One for level 0, and for each level.
        tasks: Tasks a level.
    """
    first, *levels = stages
    frame = _mapped(pacemaker, first)
    for stage in levels:
        sent = frame.repartitionById(tasks, "pid").selectExpr("pid", "packet", _TWICE)
        frame = _mapped(sent.selectExpr("pid", _PAIRED), stage)
    return frame


def _mapped(frame: DataFrame, stage: LiveStage) -> DataFrame:
    function: Any = stage
    return frame.mapInArrow(function, PACKET_DDL)


def _packets(batches: Iterable[pa.RecordBatch], steps: StepTimer) -> Iterator[bytes]:
    for batch in batches:
        for value in batch.column(1).to_pylist():
            if value is not None:
                yield steps.arrived(value)


def _end_of(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield nothing, until the input ends."""
    for _ in batches:
        pass
    yield from ()


def _batches(
    sent: Generator[list[Sent], None, bool], steps: StepTimer
) -> Generator[pa.RecordBatch, None, bool]:
    try:
        while True:
            yield _batch([(pid, steps.stamped(data)) for pid, data in next(sent)])
    except StopIteration as end:
        return bool(end.value)
    finally:
        sent.close()


def _batch(rows: Sequence[tuple[int, bytes | None]]) -> pa.RecordBatch:
    pids, packets = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(pids, pa.int32()), pa.array(packets, pa.binary())], schema=PACKET_SCHEMA
    )
