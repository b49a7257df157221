"""Checks of a source's columns: that they are there, and of types that make times, ids and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.compile.explanation import one_field
from millrace.compile.topology import StreamSpec
from millrace.model.errors import PipelineError
from millrace.model.time import TimeUnit
from millrace.spark.compat import TIME_TYPES, VARIANT_TYPES

INTEGERS = (T.LongType, T.IntegerType, T.ShortType, T.ByteType)
#: Types whose values Python has, each as one type of its own.
VALUE_TYPES = (
    *INTEGERS,
    T.BinaryType,
    T.BooleanType,
    T.CharType,
    T.DateType,
    T.DayTimeIntervalType,
    T.DecimalType,
    T.DoubleType,
    T.FloatType,
    T.NullType,
    T.StringType,
    T.TimestampType,
    T.VarcharType,
    *TIME_TYPES,
)
KEY_TYPES = (T.StringType, T.BinaryType, *INTEGERS)


def is_timestamp(frame: DataFrame, name: str) -> bool:
    """Return whether a column holds instants, and not integers."""
    return isinstance(frame.schema[name].dataType, T.TimestampType)


def check_names(stream: str, frame: DataFrame, names: Iterable[str | None]) -> None:
    """Refuse columns of which a DataFrame has several under one name; case makes no difference."""
    for name in names:
        if name is None:
            continue
        alike = [other for other in frame.columns if other.lower() == name.lower()]
        if len(alike) > 1:
            raise PipelineError(
                f"stream {stream!r}: its source has the columns {alike}, and takes its records "
                f"from {name!r}. Spark finds a column whatever the case of its name, so that is "
                "any of them. Give each a name of its own, for example with df.toDF(...)."
            )


def check_key_columns(spec: StreamSpec, frame: DataFrame) -> None:
    """Refuse keys in columns that are not there, up to the first consumer with another key."""
    for edge in spec.edges:
        if (name := one_field(edge)) is None:
            return
        if name not in frame.columns:
            raise PipelineError(
                f"computation {edge.computation!r} takes its key from field {name!r} of stream "
                f"{spec.name!r}, which its source does not have. The source has {frame.columns}."
            )


def check_id(stream: str, name: str | None, frame: DataFrame) -> None:
    """Refuse a column of ids that is not there, or whose values cannot be ids."""
    if name is None:
        return
    if name not in frame.columns:
        raise PipelineError(
            f"stream {stream!r}: its source has no column {name!r} to take ids from. It has "
            f"{frame.columns}."
        )
    kind = frame.schema[name].dataType
    if not isinstance(kind, KEY_TYPES):
        raise PipelineError(
            f"stream {stream!r}: column {name!r}, which names records, is {kind.simpleString()}. "
            f'Expected a string, bytes, or an integer: F.col("{name}").cast("string") makes one.'
        )


def check_processes(
    stream: str,
    frame: DataFrame,
    process: str | None,
    promises: str | None,
    punctuation: str | None,
    unit: TimeUnit | None,
) -> None:
    """Refuse columns that tell of processes and are not there, or of another type."""
    for name, what in (
        (process, "inject(process=)"),
        (promises, "WatermarkColumn(column)"),
        (punctuation, "WatermarkColumn(punctuation=)"),
    ):
        if name is not None and name not in frame.columns:
            raise PipelineError(
                f"stream {stream!r}: its source has no column {name!r}, which {what} names. It has "
                f"{frame.columns}."
            )
    if process is not None:
        kind = frame.schema[process].dataType
        if not isinstance(kind, KEY_TYPES):
            raise PipelineError(
                f"stream {stream!r}: column {process!r}, which names processes, is "
                f"{kind.simpleString()}. Expected a string, bytes, or an integer: the text of "
                f'others goes by settings of the session. F.col("{process}").cast("string") '
                "makes one."
            )
    if promises is not None:
        check_timestamp(stream, promises, frame, unit)
    if punctuation is not None:
        kind = frame.schema[punctuation].dataType
        if not isinstance(kind, T.BooleanType):
            raise PipelineError(
                f"stream {stream!r}: column {punctuation!r}, which says whether a row is "
                f"punctuation, is {kind.simpleString()}. Expected a boolean."
            )


def check_timestamp(stream: str, name: str, frame: DataFrame, unit: TimeUnit | None) -> None:
    """Refuse a column of times that is not there, or from which no instant can be told."""
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
            'timestamp, or an integer since 1970 (UTC) and its unit: unit="ms".'
        )
    if unit is not None and isinstance(kind, T.TimestampType):
        raise PipelineError(
            f"stream {stream!r}: column {name!r} is a timestamp, which says by itself what it "
            f"counts. Leave unit={unit!r} out: it is for integers."
        )


def check_values(stream: str, frame: DataFrame, columns: Sequence[str]) -> None:
    """Refuse columns of a value whose type says that Python has no such values."""
    for name in columns:
        reason = _refusal(frame.schema[name].dataType)
        if reason is not None:
            raise PipelineError(
                f"stream {stream!r}: column {name!r} is "
                f"{frame.schema[name].dataType.simpleString()}, and {reason}. Convert it, or leave "
                "it out of the source."
            )


def _refusal(kind: T.DataType) -> str | None:
    """Return why values of a type cannot be values of Python; None if they can."""
    if isinstance(kind, T.TimestampNTZType):
        return "a timestamp_ntz has no time zone, so it names no instant"
    if isinstance(kind, T.ArrayType):
        return _refusal(kind.elementType)
    if isinstance(kind, T.StructType):
        reasons = (_refusal(field.dataType) for field in kind.fields)
        return next((reason for reason in reasons if reason is not None), None)
    if isinstance(kind, T.MapType):
        if isinstance(kind.keyType, T.ArrayType | T.StructType):
            return f"no dict has keys of {kind.keyType.simpleString()}"
        return _refusal(kind.keyType) or _refusal(kind.valueType)
    if isinstance(kind, VARIANT_TYPES):
        return "a variant does not say what it holds: F.variant_get() takes values of a type out"
    if not isinstance(kind, VALUE_TYPES):
        return f"Python has no values of {kind.simpleString()}"
    return None
