"""Record formats as Arrow types: what a stream's values look like as columns.

Into the pipeline: columns of a source become values of the declared format. Out of it: values
become columns of the sink's DataFrame.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import typing
from typing import Any

import msgspec
import pyarrow as pa

from millrace.compile.sink_limits import (
    DECIMAL_DIGITS,
    DECIMAL_SCALE,
    JSON,
    ColumnType,
    bare,
    column_type,
    fields_of,
)
from millrace.model.coder import Coder
from millrace.model.pane import PanedCoder
from millrace.plane import panes

_TEXT = (pa.string(), "string")
_SCALARS: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), "boolean"),
    "bigint": (pa.int64(), "bigint"),
    "double": (pa.float64(), "double"),
    "string": _TEXT,
    "binary": (pa.binary(), "binary"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "date": (pa.date32(), "date"),
    "decimal": (
        pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE),
        f"decimal({DECIMAL_DIGITS},{DECIMAL_SCALE})",
    ),
    "uuid": _TEXT,
    "text": _TEXT,
    "json": _TEXT,
}
#: Types that Arrow takes as they are; msgspec makes the text of the others.
_ARROW_TAKES = (bytes, dt.datetime, dt.date, decimal.Decimal)


#: What marks a field of an Arrow type whose text is JSON.
JSON_FIELD: typing.Final = {b"millrace": b"json"}


class SinkColumns:
    """The columns of a stream's records in a sink's DataFrame.

    Args:
        format: The stream's record format.
        coder: The same as a coder.
        key_type: What the column ``_key`` is: text (``str``), or the key's own bytes (``bytes``).

    Attributes:
        key_type: The same.
        arrow: The struct type of a record.
        ddl: The same for Spark.
        json: Names of the columns whose text is JSON.
        uuids: Names of the columns whose text is a UUID.
        retracts: Whether records may be retractions, which ``_retraction`` says.
    """

    def __init__(self, format: Any, coder: Coder, key_type: type = str) -> None:
        self._coder = coder
        self.key_type = key_type
        self.retracts = isinstance(coder, PanedCoder) and coder.retracts
        if isinstance(coder, PanedCoder):
            format = coder.format
        fields = fields_of(format)
        self._flat = fields is not None
        named = fields if fields is not None else {"value": format}
        columns = {name: column_type(kind) for name, kind in named.items()}
        self.json = {name for name, column in columns.items() if column is JSON}
        self.uuids = {name for name, column in columns.items() if column.name == "uuid"}
        # Arrow takes these values as they are; enums have the type of their values.
        self._plain = {
            name
            for name, column in columns.items()
            if column.name in _SCALARS
            and column.name not in ("uuid", "text", "json")
            and not _is_enum(named[name])
        }
        parts = [(name, *_types(column)) for name, column in columns.items()]
        key = _SCALARS["binary"] if key_type is bytes else _TEXT
        extras = [("_key", *key), ("_timestamp", *_SCALARS["timestamp"])]
        extras.append(("_id", *_SCALARS["binary"]))
        if isinstance(coder, PanedCoder):
            extras += [(name, arrow, ddl) for name, arrow, ddl, _ in panes.COLUMNS]
        self.names = [name for name, _, _ in parts]
        self.arrow = pa.struct(
            [
                pa.field(name, arrow, metadata=JSON_FIELD if name in self.json else None)
                for name, arrow, _ in parts + extras
            ]
        )
        self.ddl = _struct_ddl(parts + extras)

    def array(
        self, values: list[bytes], keys: list[Any], timestamps: pa.Array, ids: pa.Array
    ) -> pa.StructArray:
        """Return records as one struct array; their keys are of :attr:`key_type`, or None."""
        coder, of_panes = self._coder, list[pa.Array]()
        if isinstance(coder, PanedCoder):
            decoded, of_panes = panes.decode(coder, values)
        else:
            decoded = [coder.decode(value) for value in values]
        if self._flat:
            columns = [
                [
                    value[name] if isinstance(value, dict) else getattr(value, name)
                    for value in decoded
                ]
                for name in self.names
            ]
        else:
            columns = [decoded]
        arrays = []
        for position, name in enumerate(self.names):
            kind = self.arrow.field(position).type
            column = columns[position]
            if name in self.json:
                column = [None if v is None else msgspec.json.encode(v).decode() for v in column]
            elif name not in self._plain:
                column = [msgspec.to_builtins(v, builtin_types=_ARROW_TAKES) for v in column]
            arrays.append(pa.array(column, kind))
        arrays += [
            pa.array(keys, self.arrow.field("_key").type),
            timestamps.cast(pa.timestamp("us", tz="UTC")),
            ids,
            *of_panes,
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))


def _is_enum(kind: Any) -> bool:
    kinds = [bare(kind), *map(bare, typing.get_args(bare(kind)))]
    return any(isinstance(one, type) and issubclass(one, enum.Enum) for one in kinds)


def _types(column: ColumnType) -> tuple[pa.DataType, str]:
    """Return the Arrow type and the Spark type of a column."""
    if column.name in _SCALARS:
        return _SCALARS[column.name]
    if column.name == "array":
        arrow, ddl = _types(column.parts[0][1])
        return pa.list_(arrow), f"array<{ddl}>"
    parts = [(name, *_types(part)) for name, part in column.parts]
    return pa.struct([(name, arrow) for name, arrow, _ in parts]), _struct_ddl(parts)


def _struct_ddl(parts: list[tuple[str, pa.DataType, str]]) -> str:
    declared = ("`{}`: {}".format(name.replace("`", "``"), ddl) for name, _, ddl in parts)
    return f"struct<{', '.join(declared)}>"
