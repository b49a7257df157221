"""Terse rows: what follows from a few numbers is not sent for each row.

Every byte of a packet is copied some ten times on its way to the next task: into sockets and out of
them, and between the rows, buffers and columns of the JVM. In what an injector task sends to a task
a row's task, and mostly its edge and its origin, are those of the row before, and its place is not
far from those around it. That is a third of the bytes, and costs some nanoseconds to leave out and
to put back.
"""

from __future__ import annotations

from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa

from millrace.plane import wire

#: Fewer rows are sent as they are: each terse batch is a stream of its own.
FEW: Final = 1_000
#: Columns that often have one value, and those whose values often lie near each other.
_SAME: Final = ("pid", "edge", "origin")
_NEAR: Final = "sequence"
#: So many zeros may end the differences of near values; a place has those bits for itself.
_ZEROS: Final = 17


class LeftOut(msgspec.Struct, array_like=True):
    """What makes terse rows whole.

    Attributes:
        names: Of all columns, in order.
        same: Column -> its one value.
        near: The lowest value of the column of places, and by how many bits the differences from it
            are shifted; None if the column is sent as it is.
    """

    names: list[str]
    same: dict[str, int]
    near: tuple[int, int] | None = None

    def put_back(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they were."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, value in self.same.items():
            kind = wire.SCHEMA.field(name).type
            columns[name] = pa.array(np.full(rows.num_rows, value, kind.to_pandas_dtype()))
        if self.near is not None:
            lowest, zeros = self.near
            columns[_NEAR] = pa.array(
                (columns[_NEAR].to_numpy().astype(np.int64) << zeros) + lowest
            )
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
    (20000, 10000)
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
        left_out = LeftOut(names, {})
        for name in _SAME:
            column = columns.get(name)
            if column is not None and (value := _one_value(column)) is not None:
                left_out.same[name] = value
                del columns[name]
        if _NEAR in columns and (found := _near(columns[_NEAR])) is not None:
            columns[_NEAR], left_out.near = found
        if len(columns) == len(names) and left_out.near is None:
            return cls(rows)
        sent = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return cls(sent, left_out)

    def slice(self, first: int, count: int) -> Terse:
        """Return some of the rows."""
        return Terse(self.rows.slice(first, count), self.left_out)

    def goes_with(self, other: Terse) -> bool:
        """Return whether both can be in one stream."""
        same = self.left_out is other.left_out
        return same and bool(self.rows.schema.equals(other.rows.schema))


def _one_value(column: pa.Array) -> int | None:
    if column.null_count:
        return None
    values = column.to_numpy()
    first = values[0]
    # The last one is another where there are several, nearly always.
    return int(first) if values[-1] == first and bool((values == first).all()) else None


def _near(column: pa.Array) -> tuple[pa.Array, tuple[int, int]] | None:
    """Return the differences from the lowest value in as few bytes as they need, and how."""
    if column.null_count:
        return None
    values = column.to_numpy()
    lowest = int(values.min())
    # As a number without a sign it is true, however far apart they are.
    far = (values - lowest).view(np.uint64)
    zeros = 0 if (far & np.uint64((1 << _ZEROS) - 1)).any() else _ZEROS
    far >>= np.uint64(zeros)
    most = int(far.max())
    if most >= 1 << 32:
        return None
    return pa.array(far.astype(np.uint16 if most < 1 << 16 else np.uint32)), (lowest, zeros)
