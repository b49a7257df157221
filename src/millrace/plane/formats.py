"""Record formats as Arrow types: what a stream's values look like as columns.

Into the pipeline: columns of a source become values of the declared format. Out of it: values
become columns of the sink's DataFrame.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from typing import Any

import msgspec
import pyarrow as pa

from millrace.dataflow.aggregations.fields import FieldsCoder
from millrace.model.coder import Coder
from millrace.model.pane import PanedCoder
from millrace.plane import panes

_SCALARS: dict[Any, tuple[pa.DataType, str]] = {
    bool: (pa.bool_(), "boolean"),
    int: (pa.int64(), "bigint"),
    float: (pa.float64(), "double"),
    str: (pa.string(), "string"),
    bytes: (pa.binary(), "binary"),
    dt.datetime: (pa.timestamp("us", tz="UTC"), "timestamp"),
    dt.date: (pa.date32(), "date"),
}


class SinkColumns:
    """The columns of a stream's records in a sink's DataFrame.

    Attributes:
        arrow: The struct type of a record.
        ddl: The same for Spark.
        json: Names of the columns whose text is JSON.
        retracts: Whether records may be retractions, which ``_retraction`` says.
    """

    def __init__(self, format: Any, coder: Coder) -> None:
        self._coder = coder
        self.retracts = isinstance(coder, PanedCoder) and coder.retracts
        if isinstance(coder, PanedCoder):
            format = coder.format
        fields = fields_of(format)
        self._flat = fields is not None
        named = fields if fields is not None else {"value": format}
        self.json = {name for name, kind in named.items() if _types(kind) is _JSON}
        parts = [(name, *_types(kind)) for name, kind in named.items()]
        extras = [("_key", *_SCALARS[str]), ("_timestamp", *_SCALARS[dt.datetime])]
        extras.append(("_id", *_SCALARS[bytes]))
        if isinstance(coder, PanedCoder):
            extras += [(name, arrow, ddl) for name, arrow, ddl, _ in panes.COLUMNS]
        self.names = [name for name, _, _ in parts]
        self.arrow = pa.struct([(name, arrow) for name, arrow, _ in parts + extras])
        declared = [f"`{name}`: {ddl}" for name, _, ddl in parts + extras]
        self.ddl = f"struct<{', '.join(declared)}>"

    def array(
        self, values: list[bytes], keys: list[str | None], timestamps: pa.Array, ids: pa.Array
    ) -> pa.StructArray:
        """Return records as one struct array."""
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
            elif pa.types.is_nested(kind):
                column = [
                    msgspec.to_builtins(v, builtin_types=(bytes, dt.datetime)) for v in column
                ]
            arrays.append(pa.array(column, kind))
        arrays += [
            pa.array(keys, pa.string()),
            timestamps.cast(pa.timestamp("us", tz="UTC")),
            ids,
            *of_panes,
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))


def fields_of(format: Any) -> dict[str, Any] | None:
    """Return the fields of a record format by name; None if it has none that are known."""
    if isinstance(format, FieldsCoder):
        return dict(format.fields)
    if isinstance(format, type) and issubclass(format, msgspec.Struct):
        return {info.name: info.type for info in msgspec.structs.fields(format)}
    if isinstance(format, type) and dataclasses.is_dataclass(format):
        hints = typing.get_type_hints(format)
        return {info.name: hints[info.name] for info in dataclasses.fields(format)}
    return None


#: What has no Arrow type of its own travels as JSON text. Compared by identity, for text is text.
_JSON = (pa.string(), "string")


def _types(kind: Any) -> tuple[pa.DataType, str]:
    """Return a Python type's Arrow type and Spark type; what has none becomes JSON text."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _types(arguments[0])
    if origin is typing.Literal:
        kinds = {type(argument) for argument in arguments}
        return _types(kinds.pop()) if len(kinds) == 1 else _JSON
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        return _types(present[0]) if len(present) == 1 else _JSON
    if origin in (list, set, frozenset) and arguments:
        element = arrow, ddl = _types(arguments[0])
        if element is _JSON:
            return _JSON
        return pa.list_(arrow), f"array<{ddl}>"
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        arrow, ddl = _types(arguments[0])
        return pa.list_(arrow), f"array<{ddl}>"
    fields = fields_of(kind)
    if fields:
        parts = [(name, *_types(field)) for name, field in fields.items()]
        if not any(_types(field) is _JSON for field in fields.values()):
            return (
                pa.struct([(name, arrow) for name, arrow, _ in parts]),
                f"struct<{', '.join(f'`{name}`: {ddl}' for name, _, ddl in parts)}>",
            )
    return _JSON
