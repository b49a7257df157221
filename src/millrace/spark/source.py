"""Sources: injected DataFrames as one frame of rows with event times, and rows on edges.

Where every consumer of every stream takes its key from one column, Spark encodes and hashes the
keys itself. Otherwise (key functions, several fields, stateless steps, sinks on a stream) a Python
stage does, in the same Spark stage as the scan.

The place of a row in a source that Spark reads is the second half of its id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses
from pyspark.sql import types as T

from millrace.compile.explanation import one_field, python_reason
from millrace.compile.sink_limits import fields_of
from millrace.compile.topology import Edge, StreamSpec, Topology
from millrace.injectors.columns import arrow_schema
from millrace.injectors.injector import Injector
from millrace.injectors.watermark_policy import WatermarkColumn
from millrace.kernel.record_ids import FINGERPRINT_BYTES, LAST_ROW, ROW_BITS
from millrace.model.declarations import Injection
from millrace.model.errors import PipelineError
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD, TimeUnit, in_microseconds
from millrace.runtime import wire
from millrace.runtime.values import ROWS, check_format, value_columns
from millrace.spark.compat import quoted_name
from millrace.spark.data_types import struct_type
from millrace.spark.source_checks import (
    INTEGERS,
    KEY_TYPES,
    check_id,
    check_key_columns,
    check_names,
    check_processes,
    check_timestamp,
    check_types,
    check_values,
    is_timestamp,
)

#: Column with the first part of a row's place in its source.
_PARTITION = "partition"


class Numbering:
    """Gives a batch's rows a column ``sequence``, the second half of the record ids.

    It is the partition of the row's own source, not of all sources together, which one that is cut
    otherwise would shift; and the row in it. Every consumer of a record sees the same id, so rows
    are numbered before they are multiplied. The columns are made at the first batch, as making one
    takes several calls to the JVM.
    """

    def __init__(self) -> None:
        row = F.monotonically_increasing_id().bitwiseAND(F.lit(LAST_ROW))
        partition = F.col(_PARTITION).cast("long")
        self._sequence = F.shiftleft(partition, ROW_BITS).bitwiseOR(row)
        self._single: list[Column] | None = None

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return a batch's rows, numbered, one for each edge."""
        if _PARTITION not in rows.columns:
            return rows  # only pieces, whose rows are numbered by who reads them
        rows = rows.withColumn("sequence", self._sequence).drop(_PARTITION)
        if self._single is None:
            self._single = []
            if "to" in rows.columns:
                others = [name for name in rows.columns if name != "to"]
                # A row that stands for a piece is for no edge, and stays.
                inline = F.inline_outer if "piece" in others else F.inline
                self._single = [inline("to"), *map(F.col, others)]
        return rows.select(*self._single) if self._single else rows


def partition() -> Column:
    """Return the number of the partition of a row's own source."""
    return F.spark_partition_id().alias(_PARTITION)


#: Types of a format's field -> types of a column from which Spark makes the same key.
_KEY_TYPES_OF: dict[Any, tuple[type, ...]] = {
    str: (T.StringType,),
    bytes: (T.BinaryType,),
    int: INTEGERS,
}


@dataclass(frozen=True)
class Source:
    """One injected stream's source.

    Attributes:
        stream: The stream.
        frame: Its DataFrame; of an injector's rows an empty one, that says their columns.
        columns: The columns that make a value.
        column: Name of the struct column that holds them on the wire.
        bare: Whether its event times are integers without a declared unit.
        reason: Why Python has to encode its keys, record by record; None if they are in columns. By
            epochs one pass over the input serves all sources, so all have a reason or none.
        promises: Column in which its processes promise a low watermark; None if they do not.
        punctuation: Boolean column: whether a row is no record but only carries such a promise.
        injector: What reads it, in the first stage; None if Spark does.
        process: Column that names the process that a row came by; None if it has but one.
    """

    stream: StreamSpec
    frame: DataFrame
    columns: tuple[str, ...]
    promises: str | None = None
    punctuation: str | None = None
    process: str | None = None
    bare: bool = False
    reason: str | None = None
    injector: Injector | None = None

    def of(self, topology: Topology) -> Source:
        """Return it as the source of the same stream of a topology with other numbers."""
        return dataclasses.replace(self, stream=topology.streams[self.stream.name])

    @property
    def native(self) -> bool:
        """Return whether keys are encoded and hashed column by column."""
        return self.reason is None

    @property
    def number(self) -> int:
        """Return the stream's number, which its records' ids carry."""
        return self.stream.number

    @property
    def names_processes(self) -> bool:
        """Return whether its rows tell more of their processes than the time of a record."""
        return bool(self.promises or self.process or self.injector is not None)

    @property
    def injection(self) -> Injection:
        """Return how the stream is injected."""
        assert self.stream.injection is not None, "only injected streams have sources"
        return self.stream.injection

    @property
    def column(self) -> str:
        """Return the name of the struct column that holds this source's values."""
        return f"s{self.number}"


def sources_of(
    topology: Topology,
    spark: SparkSession,
    *,
    batch: bool = False,
    realtime: bool = False,
) -> list[Source]:
    """Return the checked sources of a topology.

    Args:
        topology: The pipeline.
        spark: A session.
        batch: Whether it is for a batch, where rows that an injector reads leave in no packets.
        realtime: Whether it is for live tasks, which read each source by itself.

    Raises:
        PipelineError: A stream has no source, or one that cannot make its records.
    """
    sources = []
    for spec in topology.injected():
        if batch and spec.name == topology.again:
            continue  # dead letters are sent again to a checkpoint, which a batch has not
        frame, injector = spec.injection and spec.injection.source, None
        if isinstance(frame, Injector):
            injector = frame
            arrow_schema(injector.schema)
            frame = spark.createDataFrame([], struct_type(injector.schema))
        source = _source(topology, spec, frame, realtime=realtime)
        sources.append(dataclasses.replace(source, injector=injector))
    if batch:
        sources = [source if source.injector is None else _in_a_batch(source) for source in sources]
    # One pass over the input serves all sources, so one that needs Python takes the others along.
    slow = next((source.stream.name for source in sources if not source.native), None)
    if slow is None or realtime:
        return sources
    return [_because(source, f"{source.stream.name!r} is read with {slow!r}") for source in sources]


def _in_a_batch(source: Source) -> Source:
    return _because(source, f"a batch reads {source.stream.name!r} by its injector")


def _because(source: Source, reason: str) -> Source:
    """Return a source whose keys Python has to encode, for a reason unless it has one."""
    return dataclasses.replace(source, reason=source.reason or reason)


def python_reasons(topology: Topology) -> dict[str, str | None]:
    """Return why injected streams need Python before the first shuffle; None of those that do not.

    Streams whose source is an injector, or missing, are left out: their columns are known when a
    run has begun. Starts nothing.

    Raises:
        PipelineError: A source cannot make its stream's records.
    """
    return {
        spec.name: _source(topology, spec, spec.injection.source).reason
        for spec in topology.injected()
        if spec.injection is not None
        and spec.injection.source is not None
        and not isinstance(spec.injection.source, Injector)
    }


def _source(topology: Topology, spec: StreamSpec, frame: Any, *, realtime: bool = False) -> Source:
    """Return a checked source, given its DataFrame."""
    injection = spec.injection
    assert injection is not None, "injected() returns injected streams"
    injector = injection.source if isinstance(injection.source, Injector) else None
    if injector is None and injection.skew_us is not None:
        raise PipelineError(
            f"inject({spec.name!r}, skew=...): how far Spark reads a source of its own cannot "
            "be said while it runs. Read it with an mr.sources.Injector, or leave skew out."
        )
    if frame is None:
        raise PipelineError(
            f"stream {spec.name!r} has no source to run on Spark. Give it one, "
            f'p.inject("{spec.name}", df, timestamp="..."), or drive the pipeline in a '
            "Harness."
        )
    if not isinstance(frame, DataFrame):
        raise PipelineError(
            f"stream {spec.name!r}: its source is {type(frame).__name__}; expected a Spark "
            "DataFrame, streaming or bounded, or an mr.sources.Injector."
        )
    if not injection.ingress:
        check_timestamp(spec.name, str(injection.timestamp), frame, injection.unit)
    check_format(spec.name, spec.coder, spec.format)
    process, policy = injection.process, injection.low_watermark
    promises, punctuation, promises_unit = None, None, None
    if injector is not None:
        process = None  # it has processes of its own, which no column names
    elif isinstance(policy, WatermarkColumn):
        promises, punctuation, promises_unit = policy.column, policy.punctuation, policy.unit
    check_processes(spec.name, frame, process, promises, punctuation, promises_unit)
    check_id(spec.name, injection.id, frame)
    # Without a format, a value is all there is to know of a record; its id is data.
    apart = None if spec.format in ROWS else injection.id
    columns = value_columns(
        spec.name,
        spec.format,
        frame.columns,
        str(injection.timestamp),
        (process, promises, punctuation, apart),
    )
    check_values(spec.name, frame, columns)
    check_types(spec.name, spec.format, frame.schema, columns)
    if injector is None:  # Python reads the columns of its rows
        time = None if injection.ingress else injection.timestamp
        check_names(spec.name, frame, (*columns, time, process, promises, punctuation, apart))
    reason = _python_reason(topology, spec, frame, columns, realtime=realtime)
    bare = (
        injection.unit is None
        and not injection.ingress
        and not is_timestamp(frame, str(injection.timestamp))
    )
    return Source(spec, frame, columns, promises, punctuation, process, bare, reason)


def python_rows(source: Source) -> DataFrame:
    """Return a source as (stream, ts, struct of the value's columns), for the encode stage."""
    return source.frame.select(
        F.lit(source.number).alias("stream"),
        _time(source).alias("ts"),
        partition(),
        _value(source),
        *_fingerprint(source),
        *_process(source),
        *([_is_punctuation(source).alias("punctuation")] if source.names_processes else []),
    )


def native_rows(source: Source, *, several: bool) -> DataFrame:
    """Return a native source as rows on edges, made by Spark alone.

    Nothing in them depends on the epoch, so the query has them from its first batch to its last.
    Who reads them knows the epoch, and with it the record's origin, and the task it goes to.

    Args:
        source: The source.
        several: Whether a row may be for several edges: then a column ``to`` holds an array of
            (edge, hash, key), else these three are columns.
    """
    time = _time(source)
    edges = source.stream.edges
    keys = [_key(edge, source) for edge in edges]
    # A record is refused whole and once, whoever its consumers are: by its first edge.
    accepted = time.between(EARLIEST_RECORD, LATEST_RECORD)  # null for a null time
    for needed in (*_fingerprint(source), *keys):
        accepted = accepted & needed.isNotNull()
    targets = [_target(key, F.lit(edge.number)) for key, edge in zip(keys, edges, strict=True)]
    first = F.when(accepted, F.lit(edges[0].number)).otherwise(F.lit(wire.REFUSED))
    if source.punctuation is not None:
        first = F.when(_is_punctuation(source), F.lit(wire.PUNCTUATION)).otherwise(first)
        accepted = accepted & ~_is_punctuation(source)
    refusable = _target(keys[0], first)
    others = [partition(), _value(source), *_fingerprint(source), *_process(source)]
    if not several:
        return source.frame.select(*refusable, time.alias("ts"), *others)
    every = F.array(*(F.struct(*target) for target in targets))
    to = F.when(accepted, every).otherwise(F.array(F.struct(*refusable)))
    return source.frame.select(to.alias("to"), time.alias("ts"), *others)


def _time(source: Source) -> Column:
    if source.injection.ingress:
        return F.lit(None).cast("long")  # the encode stage knows the epoch, and so the time
    at = _micros(source.frame, str(source.injection.timestamp), source.injection.unit)
    return at if source.punctuation is None else F.when(~_is_punctuation(source), at)


def _micros(frame: DataFrame, name: str, unit: TimeUnit | None) -> Column:
    at = F.col(quoted_name(name))
    if is_timestamp(frame, name):
        return F.unix_micros(at)
    if unit == "ns":
        # Down, also before 1970, where ``div`` goes up; and without a difference that may overflow.
        column = quoted_name(name)
        return F.expr(f"{column} div 1000 - if({column} % 1000 < 0, 1, 0)")
    per = in_microseconds(1, unit)
    if per == 1:
        return at.cast("long")
    # What would overflow is far out of range, and so is the nearest that does not.
    most = LATEST_RECORD // per + 1
    within = F.least(F.greatest(at.cast("long"), F.lit(-most)), F.lit(most))
    return F.when(at.isNotNull(), within * F.lit(per))  # these two pass over nulls


def _process(source: Source) -> list[Column]:
    """Return the columns that tell of the process a row came by, if the source has them."""
    if not source.names_processes:
        return []
    name, promises = source.process, source.promises
    process = F.lit(None) if name is None else F.col(quoted_name(name))
    policy = source.injection.low_watermark
    unit = policy.unit if isinstance(policy, WatermarkColumn) else None
    promised = F.lit(None) if promises is None else _micros(source.frame, promises, unit)
    return [process.cast("string").alias("process"), promised.cast("long").alias("promised")]


def _is_punctuation(source: Source) -> Column:
    if source.punctuation is None:
        return F.lit(False)
    return F.coalesce(F.col(quoted_name(source.punctuation)), F.lit(False))


def _value(source: Source) -> Column:
    return F.struct(*(F.col(quoted_name(name)) for name in source.columns)).alias(source.column)


def _key(edge: Edge, source: Source) -> Column:
    """Return a consumer's encoded key, as ``encode_key`` makes it; null for a null."""
    name = one_field(edge)
    assert name is not None, "native sources have keys in columns"
    return _encoded(source.frame, name)


def _fingerprint(source: Source) -> list[Column]:
    """Return the column with the fingerprints of the records' ids, if the source has ids.

    They are those of :func:`millrace.kernel.record_ids.fingerprint`; null for a null id.
    """
    if source.injection.id is None:
        return []
    digest = F.sha2(_encoded(source.frame, source.injection.id), 256)
    return [F.unhex(F.substring(digest, 1, 2 * FINGERPRINT_BYTES)).alias(wire.FINGERPRINT)]


def _encoded(frame: DataFrame, name: str) -> Column:
    """Return a column as ``encode_key`` encodes its values; null for a null."""
    kind, column = frame.schema[name].dataType, F.col(quoted_name(name))
    if isinstance(kind, T.StringType):
        return F.concat(F.lit(b"s"), column.cast("binary"))
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit(b"b"), column)
    shifted = column.cast("long").bitwiseXOR(F.lit(-(1 << 63)))
    return F.concat(F.lit(b"i"), F.unhex(F.lpad(F.hex(shifted), 16, "0")))


def _target(key: Column, edge: Column) -> list[Column]:
    """Return where a row goes: edge, the key's hash, and the key."""
    return [edge.alias("edge"), F.xxhash64(key).alias("hash"), key.alias("key")]


def _python_reason(
    topology: Topology,
    spec: StreamSpec,
    frame: DataFrame,
    columns: Sequence[str],
    *,
    realtime: bool,
) -> str | None:
    """Return why a source's keys cannot be encoded by Spark; None if they can."""
    if not spec.steps:
        check_key_columns(spec, frame)
    if spec.injection is not None and spec.injection.ingress and not realtime:
        return f"the event time of {spec.name!r} is that of its epoch"
    if (reason := python_reason(topology, spec)) is not None:
        return reason
    fields = fields_of(spec.format)
    for edge in spec.edges:
        name = one_field(edge)
        assert name is not None, "else it was said to need Python"
        kind = frame.schema[name].dataType
        if not isinstance(kind, KEY_TYPES):
            return f"column {name!r} of {spec.name!r} is {kind.simpleString()}"
        if name not in columns:
            return f"column {name!r} of {spec.name!r} is no part of its values"
        if fields is not None and not isinstance(kind, _KEY_TYPES_OF.get(fields[name], ())):
            # The key would be the column's value, and not the field's.
            return f"column {name!r} of {spec.name!r} is {kind.simpleString()}, its field is not"
    return None
