"""The plan of one epoch: one linear chain of shuffles and Python stages, whatever the graph.

::

    source rows or pieces -> edges, keys, hashes -> repartitionById -> level 1 -> ... -> sinks

Where all rows go from one task to one there is no shuffle, and a single call has all stages.

The column that names the task which owns a row's key, by the interval maps of an epoch, is made for
each epoch, since maps change between epochs; the rows before it are those of the query, from its
first batch to its last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec.structs import replace
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses
from pyspark.sql import types as T

from millrace.compile.topology import Edge, Topology
from millrace.epochlog.entries import Manifest, Partition, encode_entry
from millrace.model.errors import PipelineError
from millrace.runtime import wire
from millrace.runtime.batch_level import BatchLevelStage
from millrace.runtime.encode_stage import EncodeStage
from millrace.runtime.epoch.host import LevelStage
from millrace.runtime.exchange import through_levels
from millrace.runtime.packets import PACKET_DDL
from millrace.runtime.partials_stage import LiftStage
from millrace.runtime.piece_reader import ReadStage
from millrace.runtime.sink_contract import task_writers
from millrace.runtime.sink_writer import SinkEncoder
from millrace.runtime.stragglers import Enough
from millrace.runtime.stuck import NO_LIMITS, CallLimits
from millrace.runtime.worker_process import SourceColumns, Stage
from millrace.spark.compat import partitioned
from millrace.spark.data_types import struct_type
from millrace.spark.pickling import captured, pickle_topology
from millrace.spark.source import Numbering, Source, native_rows, python_rows
from millrace.spark.stage import OnSpark
from millrace.spark.worker import Blueprint
from millrace.store import HardState
from millrace.watermark.intervals import IntervalMap

#: Flips the sign bit, so that signed numbers sort as the unsigned ones do.
_SIGN = -(1 << 63)


class Owners:
    """Adds a column ``pid`` to rows that have an edge and the hash of a key.

    Args:
        edges: Those of the rows.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        self._edges = edges
        # Made again when a map is another: making a column takes several calls to the JVM.
        self._made: tuple[tuple[Mapping[str, Partition], int], Column] | None = None

    def apply(self, rows: DataFrame, manifest: Manifest, tasks: int) -> DataFrame:
        """Return the rows of an epoch with the task that each goes to, of so many a level."""
        if "hash" not in rows.columns:
            return rows  # who encodes the keys in Python says so there
        if self._made is None or self._made[0] != (manifest.intervals, tasks):
            maps = {
                edge.number: manifest.interval_map(str(edge.computation)) for edge in self._edges
            }
            self._made = (manifest.intervals, tasks), task_column(maps, tasks)
        return rows.withColumn("pid", self._made[1])


def task_column(maps: Mapping[int, IntervalMap], tasks: int) -> Column:
    """Return the task that owns a row's hash; the same as ``IntervalMap.task_of``.

    Args:
        maps: Number of an edge -> the interval map of its consumer.
        tasks: Tasks a level.
    """
    edges = list(maps)
    column = _owner(maps[edges[0]], tasks)
    for number in edges[1:]:
        if maps[number] != maps[edges[0]]:
            column = F.when(F.col("edge") == number, _owner(maps[number], tasks)).otherwise(column)
    return column.cast("int")


def _owner(intervals: IntervalMap, tasks: int) -> Column:
    hashed, count = F.col("hash"), len(intervals)
    if count == 1:
        return F.lit(0)
    if not count & (count - 1) and intervals == IntervalMap.uniform(count):
        position = F.shiftrightunsigned(hashed, 64 - (count.bit_length() - 1))
        return F.floor(position * tasks / count)
    return _found(hashed.bitwiseXOR(F.lit(_SIGN)), intervals.firsts(tasks))


def _found(sorting: Column, firsts: Sequence[tuple[int, int]]) -> Column:
    """Return a search by halves for the last of some hashes that is not above one."""
    if len(firsts) == 1:
        return F.lit(firsts[0][1])
    half = len(firsts) // 2
    below = sorting < F.lit(firsts[half][0] + _SIGN)
    return F.when(below, _found(sorting, firsts[:half])).otherwise(_found(sorting, firsts[half:]))


#: How a session must be set when a plan's frame runs.
#: They change no result: a host may refuse them.
SETTINGS = {
    # Rows that Spark hands to Python at once. Ten thousand, its default, makes a batch of a hundred
    # thousand records ten pieces that are put together again.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # And bytes, since a row may be a packet of megabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Adaptive execution would plan every stage anew; the plan is known.
    "spark.sql.adaptive.enabled": "false",
}


class Plan:
    """Builds the frame of an epoch; :class:`StreamPlan` and :class:`BatchPlan` are the two kinds.

    Args:
        topology: The pipeline.
        sources: Its checked sources.
        tasks: Number of tasks a level.

    Raises:
        PipelineError: The pipeline cannot be sent to workers, or a sink's columns cannot be made.
    """

    #: Whether groupings take a key's records in order of time.
    _by_time = False
    #: Whether rows leave a stage in packets. Spark cannot sort what is in them.
    _packed = True
    #: When a batch may end before it has read everything.
    _enough: Enough | None = None

    def __init__(self, topology: Topology, sources: Sequence[Source], *, tasks: int) -> None:
        if tasks < 1:
            raise PipelineError(f"tasks={tasks}: a level needs at least one task.")
        self._topology = topology
        self._sources = sources
        self._tasks = tasks
        try:
            self._pickled = pickle_topology(topology)
        except Exception as refused:  # noqa: BLE001  # what cannot be pickled says so in its own way
            raise PipelineError(captured(topology, refused)) from None
        self._blueprint: Blueprint

    def attach(
        self,
        state: HardState | None,
        cache: str,
        limits: CallLimits = NO_LIMITS,
        cache_limit: int | None = None,
        *,
        live: bool = False,
    ) -> None:
        """Say where the run keeps its state; when it owns its sinks, before a frame is asked for.

        Of live tasks it may not own them yet: what those write with, they are told at their start.

        Args:
            state: The checkpoint; None for a batch.
            cache: Directory for caches on each worker's host.
            limits: How long calls of user code may take.
            cache_limit: How many bytes the caches of a host may take.
            live: Whether tasks do not end.
        """
        columns = tuple(
            SourceColumns(
                s.number,
                s.stream.name,
                s.columns,
                s.native,
                s.names_processes,
                s.injection.id,
                s.bare,
            )
            for s in self._sources
        )
        # A topology can hold anything its computations hold, so a digest tells runs apart and not
        # their contents: two runs never share a runtime.
        self._blueprint = Blueprint(
            uuid4().hex,
            self._pickled,
            state,
            cache,
            self._tasks,
            columns,
            {} if live else task_writers(self._topology),
            live=live,
            limits=limits,
            cache_limit=cache_limit,
        )

    @property
    def topology(self) -> Topology:
        """The pipeline."""
        return self._topology

    @property
    def pipeline(self) -> str:
        """Name of the pipeline."""
        return self._topology.name

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self._topology.depth

    @property
    def blueprint(self) -> Blueprint:
        """Return what every task of the run gets."""
        return self._blueprint

    def rows(self) -> list[DataFrame]:
        """Return the rows of each source that Spark reads; all together go to :meth:`frame`."""
        return [
            native_rows(source, several=self._several) if source.native else python_rows(source)
            for source in self._sources
            if source.injector is None
        ]

    @cached_property
    def has_lifting_stage(self) -> bool:
        """Whether rows of native sources go to groupings that take partials.

        Rows that Python makes are lifted where they are made.
        """
        return any(
            source.native and edge.lift is not None
            for source in self._sources
            for edge in source.stream.edges
        )

    def frame(
        self,
        rows: DataFrame,
        manifest: Manifest,
        *,
        lots: Sequence[Sequence[bytes]] | None = None,
        lift: bool = True,
        careful: bool = False,
        rehearsed: bool = False,
    ) -> DataFrame:
        """Return the epoch's frame: reports and sink rows; see :meth:`sink_rows`.

        Args:
            rows: The epoch's rows of :meth:`rows`, and of pieces.
            manifest: Of the epoch.
            lots: The pieces of each partition of the rows, which stand for nothing else then.
            lift: Whether there is to be a lifting stage, if it :meth:`has_lifting_stage`.
            careful: Whether tasks look for user code that ends their process.
            rehearsed: Whether tasks see an empty checkpoint of their own, and not that of the run.
        """
        tasks = manifest.tasks or self._tasks
        spark = _Stages(
            self._blueprint,
            encode_entry(replace(manifest, offsets={})),  # pieces say it of what a task reads
            tasks,
            self._leaving,
            self._ordered,
            packed=self._packed,
            careful=careful,
            rehearsed=rehearsed,
            together=lots is not None and len(lots) == 1,
        )
        if lots is None:
            rows = self._owners.apply(self._numbering.apply(rows), manifest, tasks)
        staged = _Staged(rows)
        stage = self._first_stage(lots, lift=lift)
        if stage is not None:
            staged = staged.then(stage)
        staged = through_levels(spark, staged, self._topology.depth, self._level)
        return spark.run(staged, last=True)

    def _first_stage(self, lots: Sequence[Sequence[bytes]] | None, *, lift: bool) -> Stage | None:
        """Return the stage in front of the first shuffle; None if Spark does all that is to do."""
        native = self._sources[0].native
        stage: Stage | None = None
        if not native:
            stage = EncodeStage(self._by_time)
        elif lift and self.has_lifting_stage:
            stage = LiftStage(self._by_time)
        if any(source.injector is not None for source in self._sources):
            return ReadStage(stage, keyed=native, enough=self._enough, lots=lots)
        return stage

    @property
    def python_reasons(self) -> dict[str, str | None]:
        """Injected stream -> why it needs Python before the first shuffle; None if it does not."""
        return {source.stream.name: source.reason for source in self._sources}

    @property
    def written(self) -> dict[int, int]:
        """Sink that the tasks write -> the edge that leads to it."""
        return {
            edge.sink: edge.number
            for edge in self._topology.edges
            if edge.sink is not None and edge.number in self._blueprint.writers
        }

    @property
    def sinks_called(self) -> bool:
        """Whether a sink wants a DataFrame of its rows."""
        return bool(self._sinks)

    @cached_property
    def observed(self) -> list[Column]:
        """What is observed of a frame: ``messages``, and for each sink the number of its rows.

        A sink's is called ``rows`` and its number.
        """
        # As text: Spark 4.0 returns an observed array as an object of Java's.
        message = F.struct("edge", F.base64("report").alias("report"))
        messages = F.collect_list(F.when(F.col("report").isNotNull(), message))
        return [
            F.to_json(messages).alias("messages"),
            *(
                F.count(F.when(of_sink, True)).alias(f"rows{number}")
                for number, (of_sink, _) in self._sinks.items()
            ),
        ]

    def sink_rows(self, frame: DataFrame, sink: int) -> DataFrame:
        """Return the rows of a sink, by its number."""
        of_sink, columns = self._sinks[sink]
        return frame.filter(of_sink).select(columns)

    # Columns are made once, and not for every epoch: making one takes several calls to the JVM.

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering()

    @cached_property
    def _owners(self) -> Owners:
        native = (source.stream for source in self._sources if source.native)
        return Owners([edge for stream in native for edge in stream.edges])

    @property
    def _several(self) -> bool:
        """Whether a row of Spark's making may be for several edges."""
        return any(
            source.native and source.injector is None and len(source.stream.edges) > 1
            for source in self._sources
        )

    @cached_property
    def _sinks(self) -> dict[int, tuple[Column, Column]]:
        """By the number of a sink that wants them, what is true of its rows, and their columns."""
        return {
            edge.sink: (F.col("edge") == edge.number, F.col(f"k{edge.number}.*"))
            for edge in self._topology.edges
            if edge.sink is not None and edge.number not in self._blueprint.writers
        }

    @cached_property
    def _leaving(self) -> T.StructType:
        """What leaves the last stage."""
        return struct_type(SinkEncoder.ddl(self._topology, self._blueprint.writers))

    def _ordered(self, shuffled: DataFrame) -> DataFrame:
        """Return what was sent to the tasks of a level, as they are to read it."""
        raise NotImplementedError

    def _level(self, level: int) -> Stage:
        """Return a level's stage."""
        raise NotImplementedError


class _Staged(NamedTuple):
    """A frame, and the stages that its tasks are still to run, one after the other."""

    frame: DataFrame
    stages: tuple[Stage, ...] = ()

    def then(self, stage: Stage) -> _Staged:
        """Return the same with one more stage."""
        return _Staged(self.frame, (*self.stages, stage))


class _Stages:
    """The exchange of Spark: a shuffle in front of every stage, which is a call of ``mapInArrow``.

    Stages without a shuffle between them are one call: each call takes a Python worker of its own,
    and Spark hands the rows from one to the other.

    Args:
        blueprint: Of the run.
        manifest: Of the epoch, as JSON.
        tasks: Number of tasks a level.
        out: Columns that leave the last stage.
        ordered: Makes of what was sent to the tasks what they are to read.
        packed: Whether rows leave a stage in packets.
        careful: Whether tasks look for user code that ends their process.
        rehearsed: Whether tasks see an empty checkpoint of their own.
        together: Whether the rows of the sources are one partition.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        manifest: bytes,
        tasks: int,
        out: T.StructType,
        ordered: Callable[[DataFrame], DataFrame],
        *,
        packed: bool,
        careful: bool,
        rehearsed: bool,
        together: bool,
    ) -> None:
        self._blueprint = blueprint
        self._manifest = manifest
        self._tasks = tasks
        self._out = out
        self._ordered = ordered
        self._packed = packed
        self._careful = careful
        self._rehearsed = rehearsed
        self._together = together

    def across(self, rows: _Staged, stage: Stage, *, last: bool) -> _Staged:
        """Return rows with a stage that each task is to run on those that are sent to it."""
        together = self._together and self._tasks == 1
        if together and self._packed:
            return rows.then(stage)
        frame = self.run(rows)
        if not together:
            frame = partitioned(frame, self._tasks, "pid")
            self._together = self._tasks == 1
        return _Staged(self._ordered(frame)).then(stage)

    def run(self, rows: _Staged, *, last: bool = False) -> DataFrame:
        """Return what the stages of rows make of them.

        Args:
            rows: With their stages.
            last: Whether nothing but sinks and the driver gets it.
        """
        if not rows.stages:
            return rows.frame
        packed = self._packed and not last
        if last:
            schema: Any = self._out
        elif packed:
            schema = struct_type(PACKET_DDL)
        else:
            lifting = isinstance(rows.stages[-1], LiftStage)
            schema = lifted_rows(rows.frame.schema) if lifting else struct_type(wire.DDL)
        function: Any = OnSpark(
            self._blueprint,
            self._manifest,
            rows.stages,
            last=last,
            packed=packed,
            careful=self._careful,
            rehearsed=self._rehearsed,
        )
        return rows.frame.mapInArrow(function, schema)


def lifted_rows(native: T.StructType) -> T.StructType:
    """Return the schema of rows of native sources with partials among them."""
    # A report has nothing in most columns, so all of them may be null.
    columns = [T.StructField(field.name, field.dataType) for field in native.fields]
    partials = [T.StructField("value", T.BinaryType()), T.StructField("origin", T.LongType())]
    return T.StructType([*columns, *partials])


class StreamPlan(Plan):
    """Builds the frames of a streaming run's epochs."""

    def _ordered(self, shuffled: DataFrame) -> DataFrame:
        return shuffled

    def _level(self, level: int) -> Stage:
        return LevelStage(level)


class BatchPlan(Plan):
    """Builds the frame of a batch: rows are sorted by computation and key, and stream through."""

    _by_time = True
    _packed = False

    def ends_with(self, enough: Enough | None) -> None:
        """Say when it may end before it has read everything, before a frame is asked for."""
        self._enough = enough

    def _ordered(self, shuffled: DataFrame) -> DataFrame:
        if all(edge.computation is None for edge in self._topology.edges):
            return shuffled  # by a number alone Spark would sort by the column in that place
        computation = F.lit(-1)
        for edge in self._topology.edges:
            if edge.computation is not None:
                number = self._topology.computation(edge.computation).number
                here = F.col("edge").isin(edge.number, wire.lifted(edge.number))
                computation = F.when(here, F.lit(number)).otherwise(computation)
        return shuffled.sortWithinPartitions(computation, "hash")

    def _level(self, level: int) -> Stage:
        return BatchLevelStage(level, self._enough)
