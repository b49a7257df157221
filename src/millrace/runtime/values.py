"""Columns and values: of a source to a stream's record format, and of that to a sink's DataFrame.

A value is made here once, as its coder reads it back: steps, computations and sinks get the same,
from every source, on both planes and in the Harness. An instant is a datetime in UTC, or integer
microseconds where the format has an integer; a map is a dict. A value that its format refuses is
found here, and the others of its batch are not touched by it. Whole columns at a time.

A stream that comes out of a grouping has columns of its panes in a sink; a value without a pane has
nulls there.

JSON text: values in a form from which their type has them again, numbers that JSON lacks too.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import itertools
import math
import types
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.sink_limits import (
    DECIMAL_DIGITS,
    DECIMAL_SCALE,
    JSON,
    ColumnType,
    bare,
    column_type,
    fields_of,
)
from millrace.model.coder import Coder, MsgpackCoder, struct_fields
from millrace.model.errors import PipelineError
from millrace.model.expression import column_type_of, value_type
from millrace.model.pane import Pane, PanedCoder, decode_pane

#: Arrow types whose Python values are of a field's type by construction, so that a column without
#: nulls needs no check of its values.
_TRUSTED: dict[Any, Callable[[pa.DataType], bool]] = {
    int: pa.types.is_integer,
    float: pa.types.is_floating,
    str: lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    bytes: lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    bool: pa.types.is_boolean,
}


#: Formats whose values are rows as they are: a dict, column -> value.
ROWS: tuple[Any, ...] = (Any, dict)
#: What Python raises for a value that it cannot hold.
_UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, ArithmeticError)


@dataclass
class Values:
    """Values of a batch; a refused one is None there, with the reason by its position."""

    values: list[Any]
    refused: dict[int, str]


class ValueReader:
    """Reads one injected stream's values.

    Args:
        stream: The stream's name, for messages.
        format: Its record format.
        columns: Names of the source's columns that make a value.
    """

    def __init__(self, stream: str, format: Any, columns: Sequence[str]) -> None:
        self._stream = stream
        self._format = format
        self._columns = tuple(columns)
        self._fields = fields_of(format)
        self._encoded: dict[str, str] = {}
        if isinstance(format, type) and issubclass(format, msgspec.Struct):
            self._encoded = {
                info.name: info.encode_name
                for info in _infos(format)
                if info.name != info.encode_name
            }
        self._make: Callable[[list[list[Any]]], list[Any]] | None
        if isinstance(format, type) and issubclass(format, msgspec.Struct):
            positional = not any(info.required and _kw_only(format) for info in _infos(format))
            self._make = _positional(format) if positional else _by_name(format, self._columns)
        elif self._fields is not None:
            self._make = _by_name(format, self._columns)
        else:
            self._make = None

    def read(self, struct: pa.StructArray) -> Values:
        """Return the values of a struct column, one a row."""
        arrays = dict(zip(struct.type.names, struct.flatten(), strict=True))
        return self.read_columns(arrays, len(struct))

    def read_columns(self, arrays: dict[str, pa.Array], count: int) -> Values:
        """Return the values that columns of such a length make, one a row."""
        if self._fields is not None:
            return self._structs(arrays, count)
        refused = dict[int, str]()
        if self._format in ROWS:
            columns = [self._list(array, Any, name, refused) for name, array in arrays.items()]
            rows = zip(*columns, strict=True) if columns else [()] * count
            return _without([dict(zip(arrays, row, strict=True)) for row in rows], refused)
        ((name, array),) = arrays.items()
        trusted = _TRUSTED.get(self._format)
        array = _plain(array, self._format)
        values = self._list(array, self._format, name, refused)
        if trusted is not None and trusted(array.type) and not array.null_count and not refused:
            return Values(values, {})
        return self._convert(values, refused)

    def _list(self, array: pa.Array, kind: Any, name: str, refused: dict[int, str]) -> list[Any]:
        """Return a column's values for a field of a type; note those that Python cannot hold."""
        array = _plain(array, kind)
        try:
            values = _to_list(array)
        except _UNREADABLE:
            values = list[Any]()
            for n in range(len(array)):
                try:
                    values += _to_list(array.slice(n, 1))
                except _UNREADABLE as error:
                    values.append(None)
                    reason = f"column {name!r} ({array.type}): {error}"
                    refused[n] = f"stream {self._stream!r}: {reason}"
        return _shaped(values, array.type, kind)

    def accepted(self, struct: pa.StructArray) -> npt.NDArray[np.bool_]:
        """Return of each row whether its value is of the format."""
        count = len(struct)
        arrays = dict(zip(struct.type.names, struct.flatten(), strict=True))
        if self._format in ROWS:
            fields: dict[str, Any] | None = {}
        elif hasattr(self._format, "__post_init__"):
            return self._converted(struct)
        else:
            fields = self._fields
        if fields is None:
            fields = dict.fromkeys(arrays, self._format)
        accepted = np.ones(count, dtype=bool)
        for name, array in arrays.items():
            kind = fields.get(name, Any)
            if kind is Any and _is_readable(array.type):
                continue
            if not _is_of(_plain(array, kind).type, kind) or not _is_text(array):
                return self._converted(struct)
            if array.null_count and type(None) not in typing.get_args(kind):
                accepted &= array.is_valid().to_numpy(zero_copy_only=False)
        return accepted

    def _converted(self, struct: pa.StructArray) -> npt.NDArray[np.bool_]:
        accepted = np.ones(len(struct), dtype=bool)
        accepted[list(self.read(struct).refused)] = False
        return accepted

    def field_columns(self, struct: pa.StructArray) -> dict[str, pa.Array] | None:
        """Return the fields of values as columns of the types that expressions know.

        Fields of other types are left out.

        Returns:
            None if that does not tell all of the values: one is refused, or a class is made of it.
        """
        arrays = dict(zip(struct.type.names, struct.flatten(), strict=True))
        if self._format not in ROWS:
            if self._fields is None or self._fields.keys() - arrays.keys():
                return None
            if hasattr(self._format, "__post_init__") or not self.accepted(struct).all():
                return None
        found = dict[str, pa.Array]()
        for name, array in arrays.items():
            kind = Any if self._fields is None else self._fields.get(name, Any)
            array = _plain(array, kind)
            known = column_type_of(kind)
            if kind is Any:
                known = None if (own := value_type(array.type)) is None else column_type_of(own)
            if kind is Any and not _is_text(array):  # else it was looked at with the others
                return None
            if known is not None:
                wanted, _ = known
                safe = not pa.types.is_floating(wanted)
                found[name] = array if array.type == wanted else array.cast(wanted, safe=safe)
        return found

    def column(self, struct: pa.StructArray, name: str | None) -> pa.Array | None:
        """Return a field of the values, as a column; None if it is none.

        Args:
            struct: Accepted values, and others.
            name: Of the field; None: the values themselves.
        """
        names = struct.type.names
        if name is None and self._fields is None and self._format is not Any:
            (name,) = names
        if name is None or name not in names:
            return None
        kind = self._format if self._fields is None else self._fields.get(name, Any)
        array = _plain(pc.struct_field(struct, name), kind)
        if kind is float and pa.types.is_integer(array.type):
            return array.cast(pa.float64())
        return array if kind is Any or _is_of(array.type, kind) else None

    def _structs(self, arrays: dict[str, pa.Array], count: int) -> Values:
        assert self._fields is not None
        names = [name for name in self._columns if name in arrays]
        sure = len(names) == len(self._fields) and not hasattr(self._format, "__post_init__")
        columns, refused = [], dict[int, str]()
        for name in names:
            kind = self._fields[name]
            array = _plain(arrays[name], kind)
            trusted = _TRUSTED.get(kind)
            sure = sure and trusted is not None and trusted(array.type) and not array.null_count
            columns.append(self._list(array, kind, name, refused))
        if sure and not refused and self._make is not None:
            return Values(self._make(columns), {})
        return self._convert(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            if columns
            else [{}] * count,
            refused,
        )

    def _convert(self, plain: list[Any], refused: dict[int, str]) -> Values:
        values = list[Any]()
        if self._encoded:
            # msgspec converts from the names that a Struct has on the wire, see its `rename=`.
            plain = [{self._encoded.get(k, k): v for k, v in row.items()} for row in plain]
        for position, value in enumerate(plain):
            if position in refused:
                values.append(None)
                continue
            try:
                values.append(msgspec.convert(value, self._format))
            except Exception as error:  # noqa: BLE001  a __post_init__ may raise anything
                values.append(None)
                refused[position] = f"stream {self._stream!r}: {error}"
        return Values(values, refused)


def _is_text(array: pa.Array) -> bool:
    """Return whether a column, if it is of text, is UTF-8 throughout: Spark does not see to it."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def value_columns(
    stream: str,
    format: Any,
    available: Sequence[str],
    timestamp: str,
    apart: Collection[str | None] = (),
) -> tuple[str, ...]:
    """Return the source's columns that make a value of a format.

    Args:
        stream: The stream's name, for messages.
        format: Its record format.
        available: The source's columns.
        timestamp: The one with the event time: of a value only where its format names it.
        apart: Those that say which way a record came: the same.

    Raises:
        PipelineError: The format needs a column that the source has not.
    """
    fields = fields_of(format)
    if fields is not None:
        required = _required(format)
        missing = [name for name in fields if name not in available and name in required]
        if missing:
            raise PipelineError(
                f"stream {stream!r}: its format {format.__name__} needs columns {missing}, which "
                f"its source does not have. The source has {list(available)}."
            )
        return tuple(name for name in fields if name in available)
    if format in ROWS:
        # The time is in record.timestamp; as a datetime it would cost more than all else here.
        return tuple(name for name in available if name not in {timestamp, *apart})
    rest = [name for name in available if name not in {timestamp, *apart}]
    if len(rest) == 1:
        return (rest[0],)
    if not rest:
        return (timestamp,)
    raise PipelineError(
        f"stream {stream!r}: its format {format!r} is a single value, but its source has columns "
        f"{rest} besides the timestamp. Select one, or declare a msgspec.Struct with these fields."
    )


def _is_of(column: pa.DataType, kind: Any) -> bool:
    """Return whether a column's values are of a field's type by construction, but for nulls."""
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    trusted = _TRUSTED.get(options[0] if len(options) == 1 else kind)
    return trusted is not None and trusted(column)


def display_value(array: pa.Array, n: int) -> Any:
    """Return a value for a message: what Python cannot hold is text, or bytes if it is no text."""
    if pa.types.is_struct(array.type):
        parts = zip(array.type.names, array.flatten(), strict=True)
        return {name: display_value(part, n) for name, part in parts}
    try:
        (value,) = _to_list(array.slice(n, 1))
    except UnicodeDecodeError as error:
        return error.object
    except _UNREADABLE as error:
        whole = pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)
        return array.slice(n, 1).view(_whole(array.type))[0].as_py() if whole else str(error)
    return value


def _whole(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _without(values: list[Any], refused: dict[int, str]) -> Values:
    for n in refused:
        values[n] = None
    return Values(values, refused)


def _to_list(array: pa.Array) -> list[Any]:
    if array.null_count == 0 and (
        pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ):
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    if pa.types.is_nested(array.type):
        return array.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


def _shaped(values: list[Any], column: pa.DataType, kind: Any) -> list[Any]:
    """Return a column's values as a field's coder reads them back."""
    if pa.types.is_decimal(column) and column.scale == 0 and _option(kind) is int:
        return [None if value is None else int(value) for value in values]
    tuples = _tuples(column, kind)
    if tuples is not None:
        values = [None if value is None else tuples(value) for value in values]
    if not _is_plain(column) and _says_little(kind):
        return [msgspec.to_builtins(value, builtin_types=(bytes, dt.datetime)) for value in values]
    return values


def _tuples(column: pa.DataType, kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes tuples of structs where a type has tuples; None if it has none."""
    kind = _option(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if pa.types.is_struct(column) and origin is tuple and Ellipsis not in arguments:
        inner = [
            _tuples(field.type, argument)
            for field, argument in zip(column, arguments, strict=False)
        ]
        every = [*inner, *[None] * (column.num_fields - len(inner))]
        return lambda value: [
            each if make is None or each is None else make(each)
            for make, each in zip(every, value.values(), strict=True)
        ]
    if pa.types.is_list(column) and len(set(arguments) - {Ellipsis}) == 1:
        item = _tuples(column.value_type, arguments[0])
        if item is not None:
            return lambda value: [None if each is None else item(each) for each in value]
    if pa.types.is_map(column) and len(arguments) == 2:
        make = _tuples(column.item_type, arguments[1])
        if make is not None:
            return lambda value: {
                key: None if each is None else make(each) for key, each in value.items()
            }
    return None


def _option(kind: Any) -> Any:
    """Return the type that a field has beside null."""
    if typing.get_origin(kind) is typing.Annotated:
        return _option(typing.get_args(kind)[0])
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return _option(options[0]) if is_union and len(options) == 1 else kind


def _is_plain(column: pa.DataType) -> bool:
    """Return whether msgpack reads a column's values back as they are, whoever reads them."""
    return any(holds(column) for holds in _TRUSTED.values()) or pa.types.is_timestamp(column)


def _is_readable(column: pa.DataType) -> bool:
    """Return whether Python surely holds a column's values."""
    return any(holds(column) for holds in _TRUSTED.values())


def _says_little(kind: Any) -> bool:
    """Return whether a type leaves open what a part of a value is."""
    return kind in (Any, object, dict, list, tuple, set, frozenset) or any(
        map(_says_little, typing.get_args(kind))
    )


def _plain(array: pa.Array, field: Any) -> pa.Array:
    """Return a column with its instants in UTC, or in microseconds where the format has an int.

    Spark hands them out in the zone of its session; they are the same instants.
    """
    if pa.types.is_timestamp(array.type):
        if array.type.tz is not None and _option(field) is int:
            return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
        return array if array.type.tz is None else array.cast(_INSTANT)
    utc = _in_utc(array.type)
    return array if utc == array.type else array.cast(utc)


#: By this name of the zone Python's values have ``timezone.utc``, as msgspec's have; by "UTC" they
#: have a ``ZoneInfo``.
_INSTANT = pa.timestamp("us", "+00:00")


@lru_cache(maxsize=1024)
def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with its instants in UTC."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else _INSTANT
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    return kind


def _positional(format: Any) -> Callable[[list[list[Any]]], list[Any]]:
    return lambda columns: list(itertools.starmap(format, zip(*columns, strict=True)))


def _by_name(format: Any, names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Any]]:
    return lambda columns: [
        format(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
    ]


def _infos(format: Any) -> tuple[Any, ...]:
    return struct_fields(format)


def _kw_only(format: Any) -> bool:
    try:
        format(*([None] * len(_infos(format))))
    except TypeError:
        return True
    return False


def _required(format: Any) -> set[str]:
    if issubclass(format, msgspec.Struct):
        return {info.name for info in _infos(format) if info.required}
    import dataclasses

    return {
        info.name
        for info in dataclasses.fields(format)
        if info.default is dataclasses.MISSING and info.default_factory is dataclasses.MISSING
    }


def check_format(stream: str, coder: Coder, format: Any) -> None:
    """Refuse formats that a source's columns cannot become."""
    if isinstance(format, Coder) and not isinstance(coder, MsgpackCoder):
        raise PipelineError(
            f"stream {stream!r} has a source of columns and a coder of bytes, {format!r}. Declare "
            "a type as its format: a msgspec.Struct, a dataclass, or a builtin type."
        )


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
            extras += [(name, arrow, ddl) for name, arrow, ddl, _ in PANE_COLUMNS]
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
            decoded, of_panes = decode_panes(coder, values)
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

    def of_columns(
        self,
        columns: pa.RecordBatch,
        keys: list[Any],
        timestamps: pa.Array,
        ids: pa.Array,
    ) -> pa.StructArray:
        """Return records whose fields are columns as one struct array; see :meth:`array`."""
        fields = list(self.arrow)
        arrays = [
            columns.column(name).cast(field.type)
            for name, field in zip(self.names, fields, strict=False)
        ]
        arrays += [
            pa.array(keys, self.arrow.field("_key").type),
            timestamps.cast(pa.timestamp("us", tz="UTC")),
            ids,
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _is_enum(kind: Any) -> bool:
    kinds = [bare(kind), *map(bare, typing.get_args(bare(kind)))]
    return any(isinstance(kind, type) and issubclass(kind, enum.Enum) for kind in kinds)


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


_PANE_TIME = (pa.timestamp("us", tz="UTC"), "timestamp")

_TRUTH = (pa.bool_(), "boolean")

#: Name, Arrow type, Spark type, and how to get it from a pane. A global window has no start and no
#: end: nulls.
PANE_COLUMNS: list[tuple[str, pa.DataType, str, Callable[[Pane], Any]]] = [
    ("_window_start", *_PANE_TIME, lambda pane: pane.window.start),
    ("_window_end", *_PANE_TIME, lambda pane: pane.window.end),
    ("_pane_index", pa.int64(), "bigint", lambda pane: pane.index),
    ("_pane_timing", *_TEXT, lambda pane: str(pane.timing)),
    ("_is_first", *_TRUTH, lambda pane: pane.is_first),
    ("_is_last", *_TRUTH, lambda pane: pane.is_last),
    ("_retraction", *_TRUTH, lambda pane: pane.retraction),
    ("_production_time", *_PANE_TIME, lambda pane: pane.production_time),
    ("_percentile", pa.int64(), "bigint", lambda pane: pane.percentile),
    ("_trigger", *_TEXT, lambda pane: pane.trigger),
]


def decode_panes(coder: PanedCoder, values: Sequence[bytes]) -> tuple[list[Any], list[pa.Array]]:
    """Return plain values, and a column of their panes for each of :data:`PANE_COLUMNS`.

    The panes of a batch are mostly those of a few windows, so each different one is read once.

    >>> from millrace.model.pane import Paned, Window
    >>> coder = PanedCoder(int)
    >>> encoded = [coder.encode(Paned(3, Pane(Window(0, 10)))), coder.encode(4)]
    >>> plain, columns = decode_panes(coder, encoded)
    >>> plain, columns[1].cast(pa.int64()).to_pylist()
    ([3, 4], [10, None])
    """
    index: dict[bytes, int] = {}
    plain, which = [], []
    for inner, pane in map(coder.parts, values):
        plain.append(inner)
        which.append(index.setdefault(pane, len(index)))
    panes = [decode_pane(pane) for pane in index]
    positions = pa.array(which, pa.int32())
    columns = []
    for _, kind, _, get in PANE_COLUMNS:
        distinct = pa.array([None if pane is None else get(pane) for pane in panes], kind)
        columns.append(distinct.take(positions))
    return plain, columns


_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """Return a value of Arrow or a key as JSON.

    JSON has no number for NaN and the infinities. They are the texts ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``, as Spark's ``to_json`` and Protocol Buffers write them.

    >>> to_json({"count": 2, "mean": float("nan"), "last": None})
    b'{"count":2,"mean":"NaN","last":null}'
    """
    data = _encode(value)
    # msgspec writes null for such a number, so what has no null has none of them.
    return _encode(_spelled(value)) if b"null" in data else data


def _spelled(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value
