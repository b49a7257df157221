"""Fields of records that are said elsewhere in a row, or lie near each other.

A record of a native source travels as a struct, of which one field mostly is its key, and another
its time. Both are columns of the wire besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from millrace.plane.realtime.near import Near, Wholes, differences, values_of

_FIELD: Final = "of"


class LeftOutFields(msgspec.Struct, array_like=True):
    """What makes a column of terse structs whole.

    Attributes:
        type: Of the column as it was: an Arrow schema of one field.
        same: Place of a field that is not sent -> the column that has the same numbers.
        near: Place of a field of which the differences are sent -> how.
    """

    type: bytes
    same: dict[int, str] = {}
    near: dict[int, Near] = {}

    def put_back(self, sent: pa.StructArray | None, wholes: Mapping[str, Wholes]) -> pa.StructArray:
        """Return the structs as they were.

        Args:
            sent: Without the fields that were left out; None if that were all.
            wholes: The numbers of other columns.
        """
        (of,) = ipc.read_schema(pa.py_buffer(self.type))
        children = iter(() if sent is None else sent.flatten())
        fields = list(of.type)
        return pa.StructArray.from_arrays(
            list(self._fields(fields, children, wholes)), fields=fields
        )

    def _fields(
        self, fields: Iterable[pa.Field], sent: Iterator[pa.Array], wholes: Mapping[str, Wholes]
    ) -> Iterator[pa.Array]:
        for place, field in enumerate(fields):
            if place in self.same:
                yield _typed(wholes[self.same[place]], field.type)
            elif place in self.near:
                yield _typed(values_of(next(sent), self.near[place]), field.type)
            else:
                yield next(sent)


def without(
    structs: pa.StructArray, wholes: Mapping[str, Wholes]
) -> tuple[pa.StructArray | None, LeftOutFields] | None:
    """Return structs without what can be left out, and that; None if nothing can.

    Args:
        structs: A column of the wire.
        wholes: Column -> its numbers, which travel anyhow.

    >>> at = pa.array([5, 70_000])
    >>> found, left_out = without(
    ...     pa.StructArray.from_arrays([at, pa.array([7, 8]), pa.array("ab")], ["at", "n", "s"]),
    ...     {"ts": at.to_numpy()},
    ... )
    >>> str(found.type), left_out.same, left_out.near
    ('struct<n: uint16, s: string>', {0: 'ts'}, {1: (7, 0)})
    >>> left_out.put_back(found, {"ts": at.to_numpy()}).to_pylist()
    [{'at': 5, 'n': 7, 's': 'a'}, {'at': 70000, 'n': 8, 's': 'b'}]
    """
    if structs.null_count:
        return None
    left_out = LeftOutFields(b"")
    fields, children = list[pa.Field](), list[pa.Array]()
    for place, (field, child) in enumerate(zip(structs.type, structs.flatten(), strict=True)):
        values = _wholes(child)
        if values is not None:
            same = (name for name, others in wholes.items() if (values == others).all())
            if (name := next(same, None)) is not None:
                left_out.same[place] = name
                continue
            if values.dtype == np.int64 and (found := differences(values)) is not None:
                child, left_out.near[place] = found
                field = pa.field(field.name, child.type)
        fields.append(field)
        children.append(child)
    if not left_out.same and not left_out.near:
        return None
    left_out.type = pa.schema([pa.field(_FIELD, structs.type)]).serialize().to_pybytes()
    sent = pa.StructArray.from_arrays(children, fields=fields) if fields else None
    return sent, left_out


def _wholes(column: pa.Array) -> Wholes | None:
    """Return a column's numbers if they are whole, have a sign, and are all there."""
    if column.null_count:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.to_numpy() if pa.types.is_signed_integer(column.type) else None


def _typed(values: Wholes, type: pa.DataType) -> pa.Array:
    """Return numbers as a column of a type."""
    if pa.types.is_timestamp(type):
        return pa.array(values).view(type)
    return pa.array(values.astype(type.to_pandas_dtype()))
