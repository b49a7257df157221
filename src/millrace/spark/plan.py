"""The plan of one epoch: one linear chain of shuffles and Python stages, whatever the graph.

::

    source rows -> edges, keys, hashes -> repartitionById -> level 1 -> ... -> level d -> sinks
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.model.topology import Topology
from millrace.spark import wire
from millrace.spark.encode import EncodeTask
from millrace.spark.formats import Columns
from millrace.spark.level import LevelTask
from millrace.spark.pickling import pickle_topology
from millrace.spark.runtime import Blueprint, SourceColumns
from millrace.spark.source import Source, native_rows, raw
from millrace.store import HardState
from millrace.windmill.manifest import Manifest, encode_entry
from millrace.windmill.record_ids import injected_origin

#: Rows that Spark hands to Python at once. Ten thousand, its default, makes a batch of a hundred
#: thousand records ten pieces that are put together again.
_ARROW_ROWS = "100000"


class Plan:
    """Builds the frames of a run's epochs.

    Args:
        topology: The pipeline.
        sources: Its checked sources.
        state: The checkpoint.
        cache: Directory for caches on each worker's host.
        tasks: Number of tasks a level.
    """

    def __init__(
        self,
        topology: Topology,
        sources: Sequence[Source],
        state: HardState,
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
        digest = hashlib.blake2b(
            repr((pickled, state.uuid, cache, tasks, columns)).encode(), digest_size=16
        ).hexdigest()
        self._blueprint = Blueprint(digest, pickled, state, cache, tasks, columns)
        self._sink_columns = {
            edge.number: Columns(
                topology.streams[edge.stream].format, topology.streams[edge.stream].coder
            )
            for edge in topology.edges
            if edge.sink is not None
        }
        self._out = ", ".join(
            ["edge int", "report binary"]
            + [f"k{number} {columns.ddl}" for number, columns in self._sink_columns.items()]
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
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ARROW_ROWS)
        # Adaptive execution would plan every stage anew; the plan is known.
        spark.conf.set("spark.sql.adaptive.enabled", "false")
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
            task: Any = LevelTask(self._blueprint, plain, level, latest_us)
            ddl = wire.DDL if level < self._topology.depth else self._out
            frame = frame.repartitionById(self._tasks, "pid").mapInArrow(task, ddl)
        return frame

    def sink_rows(self, frame: DataFrame) -> dict[int, DataFrame]:
        """Return the rows of each sink, by the sink's number."""
        found = {}
        for edge in self._topology.edges:
            if edge.sink is not None:
                rows = frame.filter(F.col("edge") == edge.number)
                found[edge.sink] = rows.select(f"k{edge.number}.*")
        return found

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
