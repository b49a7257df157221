"""From the columns of a source to values of a stream's record format, whole columns at a time.

A value that its format refuses is found here, and the others of its batch are not touched by it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.coder import Coder, MsgpackCoder
from millrace.model.errors import PipelineError
from millrace.plane.formats import fields_of

#: Arrow types whose Python values are of a field's type by construction, so that a column without
#: nulls needs no check of its values.
_TRUSTED: dict[Any, Callable[[pa.DataType], bool]] = {
    int: pa.types.is_integer,
    float: pa.types.is_floating,
    str: lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    bytes: lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    bool: pa.types.is_boolean,
}


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
        if self._format is Any:
            names = list(arrays)
            rows = zip(*(_untyped(array) for array in arrays.values()), strict=True)
            return Values([dict(zip(names, row, strict=True)) for row in rows], {})
        (array,) = arrays.values()
        trusted = _TRUSTED.get(self._format)
        if trusted is not None and trusted(array.type) and not array.null_count:
            return Values(_to_list(array), {})
        return self._convert(_to_list(_plain(array, self._format)))

    def accepted(self, struct: pa.StructArray) -> npt.NDArray[np.bool_]:
        """Return of each row whether its value is of the format."""
        count = len(struct)
        if self._format is Any:
            return np.ones(count, dtype=bool)
        arrays = dict(zip(struct.type.names, struct.flatten(), strict=True))
        if hasattr(self._format, "__post_init__"):
            return self._converted(struct)
        fields = self._fields
        if fields is None:
            fields = dict.fromkeys(arrays, self._format)
        accepted = np.ones(count, dtype=bool)
        for name, array in arrays.items():
            kind = fields.get(name, Any)
            if kind is Any:
                continue
            if not _is_of(_plain(array, kind).type, kind):
                return self._converted(struct)
            if array.null_count and type(None) not in typing.get_args(kind):
                accepted &= array.is_valid().to_numpy(zero_copy_only=False)
        return accepted

    def _converted(self, struct: pa.StructArray) -> npt.NDArray[np.bool_]:
        accepted = np.ones(len(struct), dtype=bool)
        accepted[list(self.read(struct).refused)] = False
        return accepted

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
        sure = len(names) == len(self._fields)
        columns = []
        for name in names:
            array = _plain(arrays[name], self._fields[name])
            trusted = _TRUSTED.get(self._fields[name])
            sure = sure and trusted is not None and trusted(array.type) and not array.null_count
            columns.append(_to_list(array))
        if sure and self._make is not None:
            return Values(self._make(columns), {})
        return self._convert(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            if columns
            else [{}] * count
        )

    def _convert(self, plain: list[Any]) -> Values:
        values, refused = [], {}
        if self._encoded:
            # msgspec converts from the names that a Struct has on the wire, see its `rename=`.
            plain = [{self._encoded.get(k, k): v for k, v in row.items()} for row in plain]
        for position, value in enumerate(plain):
            try:
                values.append(msgspec.convert(value, self._format))
            except msgspec.ValidationError as error:
                values.append(None)
                refused[position] = f"stream {self._stream!r}: {error}"
        return Values(values, refused)


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
    if format is Any:
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


def _to_list(array: pa.Array) -> list[Any]:
    if array.null_count == 0 and (
        pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ):
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


def _untyped(array: pa.Array) -> list[Any]:
    """Return a column's values as an untyped stream carries them: as msgpack reads them back."""
    values = _to_list(array)
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_nested(kind):
        return [msgspec.to_builtins(value, builtin_types=(bytes, dt.datetime)) for value in values]
    return values


def _plain(array: pa.Array, field: Any) -> pa.Array:
    """Return a timestamp column as microseconds where the format wants an int."""
    if pa.types.is_timestamp(array.type) and not _wants_datetime(field):
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    return array


def _wants_datetime(field: Any) -> bool:
    return field is dt.datetime or dt.datetime in getattr(field, "__args__", ())


def _positional(format: Any) -> Callable[[list[list[Any]]], list[Any]]:
    return lambda columns: list(itertools.starmap(format, zip(*columns, strict=True)))


def _by_name(format: Any, names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Any]]:
    return lambda columns: [
        format(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
    ]


def _infos(format: Any) -> tuple[Any, ...]:
    return msgspec.structs.fields(format)


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
