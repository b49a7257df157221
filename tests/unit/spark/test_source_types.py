"""Columns of a source whose type is none of the format's are refused before the first record."""

import datetime as dt
import enum
import uuid
from contextlib import nullcontext
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from millrace.model.errors import PipelineError
from millrace.runtime.values import ValueReader
from millrace.spark.source_checks import check_types


class Color(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


INSTANT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
#: Type of a column -> the same for Arrow, and values of it.
COLUMNS: list[tuple[T.DataType, pa.DataType, list[Any]]] = [
    (T.BooleanType(), pa.bool_(), [True, False]),
    (T.LongType(), pa.int64(), [0, 7]),
    (T.DoubleType(), pa.float64(), [0.5, 1.0]),
    (T.DecimalType(10, 2), pa.decimal128(10, 2), [Decimal("1.50")]),
    (T.DecimalType(10, 0), pa.decimal128(10, 0), [Decimal(3)]),
    (T.StringType(), pa.string(), ["red", "1", "2026-01-02", "2026-01-02T00:00:00Z", "PT1S",
                                   "00:00:00", str(uuid.UUID(int=1)), "aGk="]),
    (T.BinaryType(), pa.binary(), [b"hi", bytes(16)]),
    (T.DateType(), pa.date32(), [dt.date(2026, 1, 2)]),
    (T.TimestampType(), pa.timestamp("us", "UTC"), [INSTANT]),
    (T.DayTimeIntervalType(), pa.duration("us"), [dt.timedelta(seconds=1)]),
    (T.ArrayType(T.LongType()), pa.list_(pa.int64()), [[7], [1, 2]]),
    (T.StructType([T.StructField("x", T.LongType())]), pa.struct([("x", pa.int64())]), [{"x": 7}]),
    (T.MapType(T.StringType(), T.LongType()), pa.map_(pa.string(), pa.int64()), [[("x", 7)]]),
]  # fmt: skip
FIELDS = [
    bool, int, float, str, bytes, Decimal, dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID,
    Color, Literal["red"], Literal[7], Annotated[int, msgspec.Meta(ge=1)], int | str, int | None,
    list[int], tuple[int], tuple[int, ...], set[int], dict[str, int], Point, Any, object,
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column[0].simpleString())
def test_a_column_is_refused_if_none_of_its_values_is_of_the_fields_type(
    column: tuple[T.DataType, pa.DataType, list[Any]], field: Any
) -> None:
    spark, arrow, values = column
    record = msgspec.defstruct("Record", [("field", field)])
    read = ValueReader("in", record, ("field",)).read_columns(
        {"field": pa.array([*values, None], arrow)}, len(values) + 1
    )
    fits = len(read.refused) <= len(values)
    with nullcontext() if fits else pytest.raises(PipelineError, match="no value of that column"):
        check_types("in", record, T.StructType([T.StructField("field", spark)]), ("field",))


def test_both_types_are_named() -> None:
    class Bid(msgspec.Struct):
        price: int

    schema = T.StructType([T.StructField("price", T.StringType())])
    said = r"stream 'bids': column 'price' is string, and Bid\.price is int, which no value of"
    with pytest.raises(PipelineError, match=said):
        check_types("bids", Bid, schema, ("price",))
    with pytest.raises(PipelineError, match="column 'price' is string, and its format is int"):
        check_types("bids", int, schema, ("price",))
