"""Checks of a source's columns: that they are there, and of types that make times, ids and keys."""

from __future__ import annotations

import datetime as dt
import re
import typing
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.compile.explanation import one_field
from millrace.compile.sink_limits import bare, fields_of
from millrace.compile.topology import StreamSpec
from millrace.model.coder import Coder, type_name
from millrace.model.errors import PipelineError
from millrace.model.time import TimeUnit
from millrace.runtime.values import ROWS
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


#: Of each type a value as Python has it; whether it is of a field's type goes by its class.
_SAMPLES: Sequence[tuple[tuple[type[T.DataType], ...], Any]] = (
    ((T.BooleanType,), True),
    (INTEGERS, 0),
    ((T.FloatType, T.DoubleType), 0.5),
    ((T.DecimalType,), Decimal(0)),
    ((T.StringType, T.CharType, T.VarcharType), ""),
    ((T.BinaryType,), b""),
    ((T.DateType,), dt.date(2000, 1, 1)),
    ((T.TimestampType,), dt.datetime(2000, 1, 1, tzinfo=dt.UTC)),
    ((T.DayTimeIntervalType,), dt.timedelta()),
    (TIME_TYPES, dt.time()),
    ((T.ArrayType,), []),
    ((T.MapType, T.StructType), {}),
)
#: What msgspec says of a value that is refused for its class, and not for what is in it.
_OF_ANOTHER_CLASS = re.compile(r"Expected `[^`]*`, got `[^`]*`")


def check_types(stream: str, format: Any, schema: T.StructType, columns: Sequence[str]) -> None:
    """Refuse columns of types of which no value can be one of the format's fields.

    A field that may be None is left to its records: in a column of nulls alone any type will do.

    Args:
        stream: Its name.
        format: The type of its records.
        schema: Of the source.
        columns: Those that make a record.
    """
    if format in ROWS or isinstance(format, Coder):
        return
    fields = fields_of(format)
    for name in columns:
        field = format if fields is None else fields[name]
        column = schema[name].dataType
        if _fits(column, field):
            continue
        where = "its format" if fields is None else f"{format.__name__}.{name}"
        raise PipelineError(
            f"stream {stream!r}: column {name!r} is {column.simpleString()}, and {where} is "
            f"{type_name(field)}, which no value of that column is. Cast the column, or change "
            "the type of the field."
        )


def _fits(column: T.DataType, field: Any) -> bool:
    """Return whether some value of a column may be one of a field's type."""
    sample = next((value for kinds, value in _SAMPLES if isinstance(column, kinds)), None)
    if sample is None:
        return True
    if isinstance(column, T.StructType) and typing.get_origin(field) is tuple:
        return Ellipsis not in typing.get_args(field)  # its items are those of the tuple
    whole = isinstance(column, T.DecimalType) and column.scale == 0
    if bare(field) is int and (whole or isinstance(column, T.TimestampType)):
        return True  # they are made integers first
    reasons = (_reason(None, field), _reason(sample, field))
    return not all(reason and _OF_ANOTHER_CLASS.fullmatch(reason) for reason in reasons)


def _reason(value: Any, field: Any) -> str | None:
    """Return why a value is none of a field's type; None if it is one, or nothing is."""
    try:
        msgspec.convert(value, field)
    except msgspec.ValidationError as refused:
        return str(refused)
    except TypeError:  # as the first record will say
        return None
    return None


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
