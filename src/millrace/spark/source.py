"""Sources: injected DataFrames as one frame of rows with event times, and rows on edges.

Where every consumer of every stream takes its key from one column, Spark encodes and hashes the
keys itself. Otherwise (key functions, several fields, stateless steps, sinks on a stream) a Python
stage does, in the same Spark stage as the scan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses
from pyspark.sql import types as T

from millrace.model.errors import PipelineError
from millrace.model.stream import ByFields
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD
from millrace.model.topology import Edge, StreamSpec, Topology
from millrace.spark import wire
from millrace.spark.values import check_format, value_columns

_KEY_TYPES = (T.StringType, T.LongType, T.IntegerType, T.ShortType, T.ByteType, T.BinaryType)


@dataclass(frozen=True)
class Source:
    """One injected stream's source.

    Attributes:
        number: Position among the injected streams; part of its records' ids.
        stream: The stream.
        frame: Its DataFrame.
        columns: The columns that make a value.
        column: Name of the struct column that holds them on the wire.
        native: Whether Spark encodes its keys; otherwise Python does. The same for all sources.
    """

    number: int
    stream: StreamSpec
    frame: DataFrame
    columns: tuple[str, ...]
    native: bool

    @property
    def column(self) -> str:
        """Return the name of the struct column that holds this source's values."""
        return f"s{self.number}"


def sources_of(topology: Topology) -> list[Source]:
    """Return the checked sources of a topology.

    Raises:
        PipelineError: A stream has no source, or one that cannot make its records.
    """
    found = []
    for number, spec in enumerate(topology.injected()):
        injection = spec.injection
        assert injection is not None, "injected() returns injected streams"
        frame = injection.source
        if frame is None:
            raise PipelineError(
                f"stream {spec.name!r} has no source to run on Spark. Give it one, "
                f'p.inject("{spec.name}", df, timestamp="..."), or drive the pipeline in a '
                "Harness."
            )
        if not isinstance(frame, DataFrame):
            raise PipelineError(
                f"stream {spec.name!r}: its source is {type(frame).__name__}; expected a Spark "
                "DataFrame, streaming or bounded."
            )
        _check_timestamp(spec.name, str(injection.timestamp), frame)
        check_format(spec.name, spec.coder, spec.format)
        columns = value_columns(spec.name, spec.format, frame.columns, str(injection.timestamp))
        found.append(Source(number, spec, frame, columns, _is_native(topology, spec, frame)))
    # One pass over the input serves all sources, so one that needs Python takes the others along.
    native = all(source.native for source in found)
    return [dataclasses.replace(source, native=native) for source in found]


def python_rows(source: Source) -> DataFrame:
    """Return a source as (stream, ts, sequence, struct of the value's columns), for Python."""
    return _timed(source).select(F.lit(source.number).alias("stream"), "*")


def native_rows(source: Source, *, tasks: int, intervals: Mapping[str, int]) -> DataFrame:
    """Return a native source as rows on edges, made by Spark alone.

    Nothing in them depends on the epoch, so the query has them from its first batch to its last;
    who reads them knows the epoch, and with it the record's origin.

    Args:
        source: The source.
        tasks: Number of tasks a level.
        intervals: Computation -> number of its (uniform) intervals.
    """
    edges = [_Edge(edge, source) for edge in source.stream.edges]
    in_range = F.col("ts").between(EARLIEST_RECORD, LATEST_RECORD)  # null for a null time
    rows = _timed(source)
    if len(edges) == 1:
        targets = rows.withColumn("to", edges[0].target(in_range))
    else:
        # A record whose time is refused is refused once, not once a consumer.
        every = F.array(*(edge.target(in_range) for edge in edges))
        first = F.array(edges[0].target(in_range))
        targets = rows.withColumn("to", F.explode(F.when(in_range, every).otherwise(first)))
    return targets.withColumn("hash", F.xxhash64("to.key")).select(
        _pid([edge.edge for edge in edges], intervals, tasks).alias("pid"),
        F.col("to.edge").alias("edge"),
        "hash",
        F.col("to.key").alias("key"),
        F.lit(None).cast("binary").alias("value"),
        "ts",
        F.lit(None).cast("long").alias("origin"),
        "sequence",
        source.column,
    )


def _timed(source: Source) -> DataFrame:
    injection = source.stream.injection
    assert injection is not None, "only injected streams have sources"
    name = str(injection.timestamp)
    at = F.col(f"`{name}`")
    if isinstance(source.frame.schema[name].dataType, T.TimestampType):
        at = F.unix_micros(at)
    return source.frame.select(
        at.cast("long").alias("ts"),
        F.monotonically_increasing_id().alias("sequence"),
        F.struct(*(F.col(f"`{column}`") for column in source.columns)).alias(source.column),
    )


class _Edge:
    """An edge from a native source: how Spark makes its key."""

    def __init__(self, edge: Edge, source: Source) -> None:
        assert isinstance(edge.extractor, ByFields)
        self.edge = edge
        name = edge.extractor.fields[0]
        kind = source.frame.schema[name].dataType
        column = F.col(f"{source.column}.`{name}`")
        if isinstance(kind, T.StringType):
            self.key = F.concat(F.lit(b"s"), column.cast("binary"))
        elif isinstance(kind, T.BinaryType):
            self.key = F.concat(F.lit(b"b"), column)
        else:
            shifted = column.cast("long").bitwiseXOR(F.lit(-(1 << 63)))
            self.key = F.concat(F.lit(b"i"), F.unhex(F.lpad(F.hex(shifted), 16, "0")))

    def target(self, in_range: Column) -> Column:
        """Return where a row goes: its edge, or the edge's refusals, and its key."""
        number = self.edge.number
        accepted = in_range & self.key.isNotNull()
        return F.struct(
            F.when(accepted, F.lit(number)).otherwise(F.lit(wire.REFUSED - number)).alias("edge"),
            self.key.alias("key"),
        )


def _pid(edges: Sequence[Edge], intervals: Mapping[str, int], tasks: int) -> Column:
    """Return the task that owns a row's hash; the same as ``IntervalMap.task_of``."""

    def owner(count: int) -> Column:
        if count == 1:
            return F.lit(0)
        position = F.shiftrightunsigned(F.col("hash"), 64 - (count.bit_length() - 1))
        return F.floor(position * tasks / count).cast("int")

    counts = {intervals[str(edge.computation)] for edge in edges}
    chosen = owner(counts.pop())
    if counts:
        for edge in edges:
            here = F.col("to.edge") == edge.number
            chosen = F.when(here, owner(intervals[str(edge.computation)])).otherwise(chosen)
    return chosen


def _is_native(topology: Topology, spec: StreamSpec, frame: DataFrame) -> bool:
    if spec.steps or not spec.edges:
        return False
    for edge in spec.edges:
        extractor = edge.extractor
        if not isinstance(extractor, ByFields) or len(extractor.fields) != 1:
            return False
        name = extractor.fields[0]
        if name not in frame.columns:
            raise PipelineError(
                f"computation {edge.computation!r} takes its key from field {name!r} of stream "
                f"{spec.name!r}, which its source does not have. The source has {frame.columns}."
            )
        if not isinstance(frame.schema[name].dataType, _KEY_TYPES):
            return False
        if topology.computation(str(edge.computation)).level > 1:
            return False
    return True


def _check_timestamp(stream: str, name: str, frame: DataFrame) -> None:
    if name not in frame.columns:
        raise PipelineError(
            f"stream {stream!r}: its source has no column {name!r} to take event times from. "
            f"It has {frame.columns}."
        )
    kind = frame.schema[name].dataType
    if not isinstance(kind, T.TimestampType | T.LongType | T.IntegerType):
        hint = (
            "it has no time zone; cast it to a timestamp where you know the zone"
            if isinstance(kind, T.TimestampNTZType)
            else 'parse it first, for example with F.to_timestamp("time")'
        )
        raise PipelineError(
            f"stream {stream!r}: column {name!r} is {kind.simpleString()}: {hint}. Expected a "
            "timestamp, or microseconds since 1970 (UTC) as a 64-bit integer."
        )
