"""Column types: which column of a sink the values of a Python type become.

One mapping for all sinks with columns. Instants are microseconds in UTC. A ``Decimal`` is
``decimal(38,18)``, as in Spark: what has more digits is refused where it is produced, never
rounded. UUIDs, durations and times of day are text. What has no column type is JSON text.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from typing import Any, Final, NamedTuple

import msgspec

from millrace.dataflow.aggregations.fields import FieldsCoder
from millrace.model.coder import struct_fields

#: Digits of a Decimal's column, and how many of them are behind the point.
DECIMAL_DIGITS, DECIMAL_SCALE = 38, 18


class ColumnType(NamedTuple):
    """The type of a column.

    Attributes:
        name: ``boolean``, ``bigint``, ``double``, ``string``, ``binary``, ``timestamp``, ``date``,
            ``decimal``, ``uuid``, ``text`` (that is not the value itself), ``json``, ``array`` or
            ``struct``.
        parts: Name and type of the element of an array (``element``), or of each field.
    """

    name: str
    parts: tuple[tuple[str, ColumnType], ...] = ()


JSON: Final = ColumnType("json")

_SCALARS: Final[dict[Any, ColumnType]] = {
    bool: ColumnType("boolean"),
    int: ColumnType("bigint"),
    float: ColumnType("double"),
    str: ColumnType("string"),
    bytes: ColumnType("binary"),
    dt.datetime: ColumnType("timestamp"),
    dt.date: ColumnType("date"),
    decimal.Decimal: ColumnType("decimal"),
    uuid.UUID: ColumnType("uuid"),
    dt.timedelta: ColumnType("text"),
    dt.time: ColumnType("text"),
}


def fields_of(format: Any) -> dict[str, Any] | None:
    """Return the fields of a record format by name; None if it has none that are known."""
    if isinstance(format, FieldsCoder):
        return dict(format.fields)
    if isinstance(format, type) and issubclass(format, msgspec.Struct):
        return {info.name: info.type for info in struct_fields(format)}
    if isinstance(format, type) and dataclasses.is_dataclass(format):
        hints = typing.get_type_hints(format)
        return {info.name: hints[info.name] for info in dataclasses.fields(format)}
    return None


def column_type(kind: Any) -> ColumnType:
    """Return the type of the column for a Python type.

    >>> column_type(int | None).name, column_type(list[str])
    ('bigint', ColumnType(name='array', parts=(('element', ColumnType(name='string', parts=())),)))
    >>> column_type(dict[str, int]).name
    'json'
    """
    return _column_type(kind, ())


def bare(kind: Any) -> Any:
    """Return a type without its annotations and names."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        else:
            return kind


def _column_type(kind: Any, within: tuple[Any, ...]) -> ColumnType:
    kind = bare(kind)
    try:
        if kind in _SCALARS:
            return _SCALARS[kind]
    except TypeError:  # not hashable
        return JSON
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _common(member.value for member in kind)
    if origin is typing.Literal:
        return _common(arguments)
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        return _column_type(present[0], within) if len(present) == 1 else JSON
    variadic = origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
    if variadic or (origin in (list, set, frozenset) and arguments):
        element = _column_type(arguments[0], within)
        return JSON if element is JSON else ColumnType("array", (("element", element),))
    fields = fields_of(kind)
    if not fields or kind in within or _written_otherwise(kind):
        return JSON
    parts = tuple((name, _column_type(field, (*within, kind))) for name, field in fields.items())
    return JSON if any(part is JSON for _, part in parts) else ColumnType("struct", parts)


def _common(values: Any) -> ColumnType:
    found = {_SCALARS.get(type(value), JSON) for value in values if value is not None}
    return found.pop() if len(found) == 1 else JSON


def _written_otherwise(kind: Any) -> bool:
    """Return whether msgspec writes a record as something else than all its fields by name."""
    config = getattr(kind, "__struct_config__", None)
    return config is not None and (
        config.array_like
        or config.omit_defaults
        or config.tag is not None
        or kind.__struct_encode_fields__ != kind.__struct_fields__
    )
