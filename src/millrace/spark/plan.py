"""The plan of one epoch: one linear chain of shuffles and Python stages, whatever the graph.

::

    source rows -> edges, keys, hashes -> repartitionById -> level 1 -> ... -> level d -> sinks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.model.topology import Topology
from millrace.spark import wire
from millrace.spark.batch_level import BatchLevelTask
from millrace.spark.encode import EncodeTask
from millrace.spark.formats import Columns
from millrace.spark.level import LevelTask
from millrace.spark.pickling import pickle_topology
from millrace.spark.runtime import Blueprint, SourceColumns
from millrace.spark.source import Source, native_rows, raw
from millrace.store import HardState
from millrace.windmill.manifest import Manifest, encode_entry
from millrace.windmill.record_ids import injected_origin

#: How a session must be set when a plan's frame runs.
SETTINGS = {
    # Rows that Spark hands to Python at once. Ten thousand, its default, makes a batch of a hundred
    # thousand records ten pieces that are put together again.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Adaptive execution would plan every stage anew; the plan is known.
    "spark.sql.adaptive.enabled": "false",
}


class Plan:
    """Builds the frame of an epoch; :class:`StreamPlan` and :class:`BatchPlan` are the two kinds.

    Args:
        topology: The pipeline.
        sources: Its checked sources.
        state: The checkpoint; None for a batch.
        cache: Directory for caches on each worker's host.
        tasks: Number of tasks a level.
    """

    def __init__(
        self,
        topology: Topology,
        sources: Sequence[Source],
        state: HardState | None,
        *,
        cache: str,
        tasks: int,
    ) -> None:
        self._topology = topology
        self._sources = sources
        self._tasks = tasks
        pickled = pickle_topology(topology)
        columns = tuple(
            SourceColumns(s.number, s.stream.name, s.columns, s.native) for s in sources
        )
        # A topology can hold anything its computations hold, so a digest tells runs apart and not
        # their contents: two runs never share a runtime.
        digest = uuid4().hex
        self._blueprint = Blueprint(digest, pickled, state, cache, tasks, columns)
        self._out = ", ".join(
            ["edge int", "report binary"]
            + [
                f"k{edge.number} "
                + Columns(
                    topology.streams[edge.stream].format, topology.streams[edge.stream].coder
                ).ddl
                for edge in topology.edges
                if edge.sink is not None
            ]
        )

    def raw(self) -> DataFrame:
        """Return all sources' rows in one frame: (stream, ts, one struct column a source)."""
        frames = [raw(source) for source in self._sources]
        together = frames[0]
        for frame in frames[1:]:
            together = together.unionByName(frame, allowMissingColumns=True)
        return together

    def frame(self, rows: DataFrame, manifest: Manifest) -> DataFrame:
        """Return the epoch's frame: reports and sink rows; see :meth:`sink_rows`.

        Args:
            rows: The epoch's rows of :meth:`raw`.
            manifest: Of the epoch.
        """
        spark = rows.sparkSession
        latest_us = {
            source.stream.name: manifest.wall_time_us + source.stream.injection.ahead_us
            for source in self._sources
            if source.stream.injection is not None
        }
        plain = encode_entry(manifest)
        frame = self._on_edges(rows, manifest, plain, latest_us)
        wake = spark.range(0, self._tasks, 1, 1).select(
            F.col("id").cast("int").alias("pid"), F.lit(wire.WAKE).alias("edge")
        )
        frame = frame.unionByName(wake, allowMissingColumns=True)
        for level in range(1, self._topology.depth + 1):
            ddl = wire.DDL if level < self._topology.depth else self._out
            shuffled = frame.repartitionById(self._tasks, "pid")
            frame = self._level(shuffled, level, plain, latest_us, ddl)
        return frame

    def sink_rows(self, frame: DataFrame) -> dict[int, DataFrame]:
        """Return the rows of each sink, by the sink's number."""
        found = {}
        for edge in self._topology.edges:
            if edge.sink is not None:
                rows = frame.filter(F.col("edge") == edge.number)
                found[edge.sink] = rows.select(f"k{edge.number}.*")
        return found

    def _level(
        self, shuffled: DataFrame, level: int, manifest: bytes, latest_us: dict[str, int], ddl: str
    ) -> DataFrame:
        """Return a level's stage over the rows shuffled to it."""
        raise NotImplementedError

    def _on_edges(
        self, rows: DataFrame, manifest: Manifest, plain: bytes, latest_us: Mapping[str, int]
    ) -> DataFrame:
        rows = rows.withColumn("sequence", F.monotonically_increasing_id())
        if all(source.native for source in self._sources):
            return native_rows(
                self._sources,
                rows,
                origins={
                    source.stream.name: injected_origin(source.number, manifest.epoch)
                    for source in self._sources
                },
                latest_us=latest_us,
                tasks=self._tasks,
                intervals={name: len(entries) for name, entries in manifest.intervals.items()},
            )
        task: Any = EncodeTask(self._blueprint, plain, dict(latest_us))
        return rows.mapInArrow(task, wire.DDL)


class StreamPlan(Plan):
    """Builds the frames of a streaming run's epochs."""

    def _level(
        self, shuffled: DataFrame, level: int, manifest: bytes, latest_us: dict[str, int], ddl: str
    ) -> DataFrame:
        task: Any = LevelTask(self._blueprint, manifest, level, latest_us)
        return shuffled.mapInArrow(task, ddl)


class BatchPlan(Plan):
    """Builds the frame of a batch: rows are sorted by computation and key, and stream through."""

    def __init__(self, topology: Topology, sources: Sequence[Source], *, tasks: int) -> None:
        super().__init__(topology, sources, None, cache="", tasks=tasks)

    def _level(
        self, shuffled: DataFrame, level: int, manifest: bytes, latest_us: dict[str, int], ddl: str
    ) -> DataFrame:
        computation = F.lit(-1)
        for edge in self._topology.edges:
            if edge.computation is not None:
                number = self._topology.computation(edge.computation).number
                here = F.col("edge") == edge.number
                computation = F.when(here, F.lit(number)).otherwise(computation)
        task: Any = BatchLevelTask(self._blueprint, manifest, level, latest_us)
        return shuffled.sortWithinPartitions(computation, "hash").mapInArrow(task, ddl)
