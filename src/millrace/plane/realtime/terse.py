"""Terse rows: what follows from a few numbers is not sent for each row.

Every byte of a packet is copied some ten times on its way to the next task: into sockets and out of
them, and between the rows, buffers and columns of the JVM. In what an injector task sends to a task
a row's task, and mostly its edge and its origin, are those of the row before, and its place and its
time are not far from those around it. A key that is a whole number says its own hash, and the field
of the record that it was taken from. That is up to five sixths of the bytes, and costs some ten
nanoseconds to leave out, and thirty to put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa

from millrace.plane import wire
from millrace.plane.realtime.fields import LeftOutFields, without
from millrace.plane.realtime.near import Near, Wholes, differences, values_of
from millrace.plane.whole_numbers import encoded_numbers, hashes_of_numbers, numbers_of

#: Fewer rows are sent as they are: each terse batch is a stream of its own.
FEW: Final = 1_000
#: Columns that often have one value, and those whose values often lie near each other.
_SAME: Final = ("pid", "edge", "origin")
_KEY, _HASH = "key", "hash"
_TIME: Final = "ts"
_NEAR: Final = (_KEY, _TIME, "sequence")


class LeftOut(msgspec.Struct, array_like=True):
    """What makes terse rows whole.

    Attributes:
        names: Of all columns, in order.
        same: Column -> its one value.
        near: Column of which the differences from its lowest value are sent -> how.
        numbers: Whether keys are sent as the whole numbers that they are, and hashes not at all.
        fields: Column of structs -> what of them is not sent.
    """

    names: list[str]
    same: dict[str, int]
    near: dict[str, Near]
    numbers: bool = False
    fields: dict[str, LeftOutFields] = {}

    def put_back(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they were, but for what a schema says besides names and types."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, value in self.same.items():
            kind = wire.SCHEMA.field(name).type
            columns[name] = pa.array(np.full(rows.num_rows, value, kind.to_pandas_dtype()))
        for name, near in self.near.items():
            columns[name] = pa.array(values_of(columns[name], near))
        if self.fields:
            wholes = _said(columns, numbers=self.numbers)
            for name, fields in self.fields.items():
                columns[name] = fields.put_back(columns.get(name), wholes)
        if self.numbers:
            numbers = columns[_KEY]
            columns[_HASH] = pa.array(hashes_of_numbers(numbers).view(np.int64))
            columns[_KEY] = encoded_numbers(numbers)
        return pa.RecordBatch.from_arrays([columns[one] for one in self.names], names=self.names)


class Terse:
    """Rows to be sent.

    Args:
        rows: What is sent of them.
        left_out: What is not; None if that is nothing.

    >>> rows = pa.RecordBatch.from_pydict(
    ...     {
    ...         "edge": pa.array(np.full(FEW, 3, np.int32)),
    ...         "ts": pa.array(np.arange(FEW)),
    ...         "sequence": pa.array(np.arange(FEW) << 17),
    ...     }
    ... )
    >>> terse = Terse.of(rows)
    >>> rows.nbytes, terse.rows.nbytes
    (20000, 4000)
    >>> terse.left_out.put_back(terse.rows).equals(rows)
    True
    """

    __slots__ = "left_out", "rows"

    def __init__(self, rows: pa.RecordBatch, left_out: LeftOut | None = None) -> None:
        self.rows = rows
        self.left_out = left_out

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Leave out what can be."""
        if rows.num_rows < FEW:
            return cls(rows)
        names = rows.schema.names
        columns: dict[str, Any] = dict(zip(names, rows.columns, strict=True))
        left_out = LeftOut(names, {}, {})
        for name in _SAME:
            column = columns.get(name)
            if column is not None and (value := _one_value(column)) is not None:
                left_out.same[name] = value
                del columns[name]
        if _KEY in columns and _HASH in columns:
            numbers = _numbers(columns[_KEY], columns[_HASH])
            if numbers is not None:
                left_out.numbers = True
                columns[_KEY] = numbers
                del columns[_HASH]
        wholes = _said(columns, numbers=left_out.numbers)
        for name, column in list(columns.items()):
            if pa.types.is_struct(column.type) and (parts := without(column, wholes)) is not None:
                columns[name], left_out.fields[name] = parts
        for name in _NEAR if left_out.numbers else _NEAR[1:]:
            column = columns.get(name)
            if column is None or column.null_count:
                continue
            if (found := differences(column.to_numpy())) is not None:
                columns[name], left_out.near[name] = found
        if len(columns) == len(names) and not left_out.near and not left_out.fields:
            return cls(rows)
        sent = {name: column for name, column in columns.items() if column is not None}
        return cls(pa.RecordBatch.from_arrays([*sent.values()], names=[*sent]), left_out)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of what is sent."""
        return int(self.rows.nbytes)

    def slice(self, first: int, count: int) -> Terse:
        """Return some of the rows."""
        return Terse(self.rows.slice(first, count), self.left_out)

    def goes_with(self, other: Any) -> bool:
        """Return whether both can be in one stream."""
        if not isinstance(other, Terse) or self.left_out is not other.left_out:
            return False
        return bool(self.rows.schema.equals(other.rows.schema))


def _one_value(column: pa.Array) -> int | None:
    if column.null_count:
        return None
    values = column.to_numpy()
    first = values[0]
    # The last one is another where there are several, nearly always.
    return int(first) if values[-1] == first and bool((values == first).all()) else None


def _numbers(keys: pa.Array, hashes: pa.Array) -> pa.Array | None:
    """Return whole numbers of which all keys and hashes were made; None if there are none such."""
    numbers = numbers_of(keys)
    if numbers is None or hashes.null_count:
        return None
    found = pa.array(numbers)
    same = (hashes_of_numbers(found).view(np.int64) == hashes.to_numpy()).all()
    return found if same else None


def _said(columns: Mapping[str, Any], *, numbers: bool) -> dict[str, Wholes]:
    """Return the columns that fields of a record may be found in.

    Args:
        columns: By name.
        numbers: Whether keys are whole numbers, and here as such.
    """
    chosen = [_KEY, _TIME] if numbers else [_TIME]
    found = {name: columns[name] for name in chosen if name in columns}
    return {name: column.to_numpy() for name, column in found.items() if not column.null_count}
