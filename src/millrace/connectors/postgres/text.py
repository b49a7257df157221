"""Columns as text that PostgreSQL reads: of a COPY, and of arrays in parameters."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millrace.compile.sink_limits import ColumnLimit
from millrace.connectors.postgres.tables import Column
from millrace.runtime.values import to_json

#: Byte -> its two hexadecimal digits, as one number of two bytes.
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)

#: Types that raise an error of their own, which says more.
_RAISES = re.compile("smallint|integer")


def as_csv(attempt: int, rows: pa.RecordBatch, columns: Sequence[Column]) -> bytes:
    """Return rows for the staging table: the attempt, the id, whether retracted, the columns."""
    arrays = [
        pa.array(np.full(rows.num_rows, attempt)),
        _text(rows.column("_id"), False),
        _retracted(rows),
        *(_text(_exact(rows.column(column.name), column), column.array) for column in columns),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(n) for n in range(len(arrays))])
    out = io.BytesIO()
    # Texts are quoted and nulls are not, which is how PostgreSQL tells '' from NULL.
    csv.write_csv(batch, out, csv.WriteOptions(include_header=False))
    return out.getvalue()


def as_arrays(rows: pa.RecordBatch, columns: Sequence[Column]) -> dict[str, str]:
    """Return rows as the parameters of :func:`~millrace.connectors.postgres.tables.given`.

    Not a ``COPY``, which took 1.4 of the time for 10,000 rows and no less for 10: a copy needs a
    table to go into, and exchanges of its own.
    """
    retracted = _retracted(rows).to_pylist()
    texts = [
        _text(_exact(rows.column(column.name), column), column.array).cast(pa.string()).to_pylist()
        for column in columns
    ]
    literals = {f"c{n}": _array_literal(column) for n, column in enumerate(texts)}
    return literals | {"retracted": as_array(retracted)}


def as_array(values: Sequence[int] | Sequence[bool]) -> str:
    """Return numbers or truth values as PostgreSQL writes arrays.

    >>> as_array([1, 2]), as_array([True])
    ('{1,2}', '{True}')
    """
    return f"{{{','.join(map(str, values))}}}"


def _retracted(batch: pa.RecordBatch) -> pa.Array:
    if "_retraction" not in batch.schema.names:
        return pa.repeat(False, batch.num_rows)
    return batch.column("_retraction").fill_null(False)


def _exact(array: pa.Array, column: Column) -> pa.Array:
    """Return a column as it is, if the table neither rounds nor cuts it, nor lacks a key.

    Most values that would be are refused where they are produced. These are not: keys, and what an
    earlier run has committed for a table that has changed since.

    Raises:
        psycopg.DataError: PostgreSQL would bend a value in silence, or never find a row again: to
            a unique index all nulls differ.
    """
    from psycopg import DataError

    if column.is_of_key and array.null_count:
        raise DataError(
            f"column {column.name!r} is of the key, and null. Filter such records out, or name "
            "another key: a global window has no start and no end"
        )
    limit, values = column.limit, array
    while pa.types.is_list(values.type):
        values = values.flatten()
    if limit is None or _RAISES.match(column.type) or not _is_beyond(values, limit):
        return array
    raise DataError(f"column {column.name!r} is {column.type}, and would round or cut a value")


def _is_beyond(values: pa.Array, limit: ColumnLimit) -> bool:
    """Return whether one of the values would be bent."""
    if limit.length is not None and pa.types.is_string(values.type):
        return bool(pc.any(pc.greater(pc.utf8_length(values), limit.length)).as_py())
    if limit.text is not None and pa.types.is_string(values.type):
        return not pc.all(pc.match_substring_regex(values, limit.text)).as_py()
    if limit.whole is not None:
        low, high = limit.whole
        return bool(pc.any(pc.or_(pc.less(values, low), pc.greater(values, high))).as_py())
    if limit.digits is not None and pa.types.is_decimal(values.type):
        try:
            values.cast(pa.decimal128(values.type.precision, limit.digits[1]))
        except pa.ArrowInvalid:
            return True
    return False


def _text(array: pa.Array, as_array: bool) -> pa.Array:
    """Return a column as what Arrow writes in CSV and PostgreSQL reads."""
    kind = array.type
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise("\\x", _hexadecimal(array), "")
    if pa.types.is_decimal(kind):
        # As Python writes it, without the zeros that fill the scale: a column may be text.
        text = pc.replace_substring_regex(array.cast(pa.string()), r"(\.\d*?)0+$", r"\1")
        return pc.replace_substring_regex(text, r"\.$", "")
    if pa.types.is_list(kind) and as_array:
        return _each(array, _array_literal)
    if pa.types.is_nested(kind):
        return _each(array, lambda value: to_json(value).decode())
    return array


def _hexadecimal(array: pa.Array) -> pa.StringArray:
    """Return the digits of bytes.

    >>> _hexadecimal(pa.array([bytes([0, 255]), None, b""])).to_pylist()
    ['00ff', None, '']
    """
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    data = array.buffers()[2]
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    digits = _HEX[held[offsets[0] : offsets[-1]]]
    starts = ((offsets - offsets[0]) * 2).astype(np.int32)
    there = None if not array.null_count else pc.is_valid(array).buffers()[1]
    return pa.StringArray.from_buffers(
        len(array), pa.py_buffer(starts.tobytes()), pa.py_buffer(digits.tobytes()), there
    )


def _each(array: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array(
        [None if value is None else write(value) for value in array.to_pylist()], pa.string()
    )


def _array_literal(values: list[Any]) -> str:
    """Return a list as PostgreSQL writes arrays.

    >>> print(_array_literal([1, None, "a, b"]))
    {"1",NULL,"a, b"}
    """
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array_literal(value)
    if isinstance(value, bytes):
        value = f"\\x{value.hex()}"
    elif isinstance(value, dict):
        value = to_json(value).decode()
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
