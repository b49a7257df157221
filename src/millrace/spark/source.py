"""Sources: injected DataFrames as one frame of rows with event times, and rows on edges.

Where every consumer of every stream takes its key from one column, Spark encodes and hashes the
keys itself. Otherwise (key functions, several fields, stateless steps, sinks on a stream) a Python
stage does, in the same Spark stage as the scan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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


def raw(source: Source) -> DataFrame:
    """Return a source as (stream, ts, struct of the value's columns)."""
    injection = source.stream.injection
    assert injection is not None, "only injected streams have sources"
    name = str(injection.timestamp)
    at = F.col(f"`{name}`")
    if isinstance(source.frame.schema[name].dataType, T.TimestampType):
        at = F.unix_micros(at)
    return source.frame.select(
        F.lit(source.number).alias("stream"),
        at.cast("long").alias("ts"),
        F.struct(*(F.col(f"`{column}`") for column in source.columns)).alias(source.column),
    )


def native_rows(
    sources: Sequence[Source],
    rows: DataFrame,
    *,
    origins: Mapping[str, int],
    latest_us: Mapping[str, int],
    tasks: int,
    intervals: Mapping[str, int],
) -> DataFrame:
    """Return raw rows of native sources as rows on edges, made by Spark alone, in one pass.

    Args:
        sources: All of them, native.
        rows: Raw rows with a column ``sequence``.
        origins: Injected stream -> first half of its records' ids.
        latest_us: Injected stream -> timestamps after this are refused.
        tasks: Number of tasks a level.
        intervals: Computation -> number of its (uniform) intervals.
    """
    edges = [(source, [_Edge(edge, source) for edge in source.stream.edges]) for source in sources]

    def by_source(column: Callable[[Source, list[_Edge]], Column]) -> Column:
        chosen = column(*edges[-1])
        for source, its_edges in edges[:-1]:
            here = F.col("stream") == source.number
            chosen = F.when(here, column(source, its_edges)).otherwise(chosen)
        return chosen

    def in_range(source: Source) -> Column:
        latest = min(latest_us[source.stream.name], LATEST_RECORD)
        return F.col("ts").between(EARLIEST_RECORD, latest)  # null for a null time

    def one(source: Source, its_edges: list[_Edge]) -> Column:
        return its_edges[0].target(in_range(source))

    def several(source: Source, its_edges: list[_Edge]) -> Column:
        # A record whose time is refused is refused once, not once a consumer.
        accepted = in_range(source)
        every = F.array(*(edge.target(accepted) for edge in its_edges))
        return F.when(accepted, every).otherwise(F.array(its_edges[0].target(accepted)))

    if all(len(its_edges) == 1 for _, its_edges in edges):
        targets = rows.withColumn("to", by_source(one))
    else:
        targets = rows.withColumn("to", F.explode(by_source(several)))
    every_edge = [edge.edge for _, its_edges in edges for edge in its_edges]
    return targets.withColumn("hash", F.xxhash64("to.key")).select(
        _pid(every_edge, intervals, tasks).alias("pid"),
        F.col("to.edge").alias("edge"),
        "hash",
        F.col("to.key").alias("key"),
        F.lit(None).cast("binary").alias("value"),
        "ts",
        by_source(lambda source, _: F.lit(origins[source.stream.name])).alias("origin"),
        "sequence",
        *(F.col(source.column) for source in sources),
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
