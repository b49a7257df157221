"""Typed values: Python values as a column of a declared type, or a refusal; none is coerced.

The same rules of what a type can represent apply to lines of JSON, to the results of a ``parse=``
function, and to the rows of any injector.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.model.errors import brief

#: Returns an instant as an aware datetime or in microseconds; raises ValueError if it is none.
ToInstant = Callable[[Any], dt.datetime | int]

#: Names of the floating-point numbers that JSON has no numbers for, as Spark reads and writes them.
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: Digits of the largest decimal that Spark has, and so of any number: more take long to write out.
_DIGITS: Final = 38
#: Types of keys that stand within the text of a key in JSON as they stand elsewhere without quotes.
_KEYS_OF_JSON: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
)
_NUMBER_OF_JSON: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_TEXT_OF_JSON: Final = msgspec.json.Encoder(decimal_format="number").encode


def array_of(values: Sequence[Any], kind: pa.DataType, instant: ToInstant) -> pa.Array:
    """Return Python values as a column.

    Args:
        values: Or an array, which is of the type already.
        kind: The column's type.
        instant: Reads what stands for an instant.

    Raises:
        ValueError: The type cannot hold a value without loss.

    >>> array_of([1, Decimal("2.0")], pa.int8(), microsecond_instant).to_pylist()
    [1, 2]
    >>> array_of([Decimal("19.99")], pa.int64(), microsecond_instant)
    Traceback (most recent call last):
    ...
    ValueError: Decimal('19.99') is not a whole number
    """
    if isinstance(values, pa.Array):
        return values
    kinds = set() if isinstance(values, np.ndarray) else set(map(type, values))
    if not kinds <= _exact(kind):
        convert = _converter(kind, instant)
        values = [None if value is None else convert(value) for value in values]
    elif dt.datetime in kinds:
        there = values if NoneType not in kinds else [each for each in values if each is not None]
        if None in map(_zone, there):
            for value in there:
                _aware(value)
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as refused:
        raise ValueError(str(refused)) from refused
    if pa.types.is_float32(kind):
        _refuse_overflow(values, array)
    return array


def microsecond_instant(value: Any) -> dt.datetime | int:
    """Return an instant that is a datetime with a zone, or an integer of microseconds.

    >>> microsecond_instant(5)
    5
    """
    if isinstance(value, dt.datetime):
        return _aware(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _refusal(value, "a datetime with a time zone, or an integer of microseconds")


_zone = attrgetter("tzinfo")


def _aware(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        raise ValueError(
            f"{value.isoformat()} has no time zone: without a time zone, so it names no instant"
        )
    return value


def _refusal(value: Any, expected: str) -> ValueError:
    return ValueError(f"{brief(value, 120)} is not {expected}")


def _exact(kind: pa.DataType) -> set[type]:
    """Return the Python types whose values Arrow takes for a type as they are, or refuses."""
    if pa.types.is_boolean(kind):
        return {bool, NoneType}
    if pa.types.is_integer(kind):
        return {int, NoneType}
    if pa.types.is_floating(kind):
        return {float, int, NoneType}  # integers that a float cannot hold are refused by Arrow
    if pa.types.is_string(kind):
        return {str, NoneType}
    if pa.types.is_binary(kind):
        return {bytes, NoneType}
    if pa.types.is_timestamp(kind):
        return {dt.datetime, NoneType}
    if pa.types.is_date(kind):
        return {dt.date, NoneType}
    return {NoneType}


def _converter(kind: pa.DataType, instant: ToInstant) -> Callable[[Any], Any]:
    """Return what makes of a value that is not None one that Arrow takes for a type as it is."""
    if pa.types.is_timestamp(kind):
        return lambda value: instant(_plain(value))
    if pa.types.is_list(kind):
        return _list_converter(kind, instant)
    if pa.types.is_struct(kind):
        return _struct_converter(kind, instant)
    if pa.types.is_map(kind):
        return _map_converter(kind, instant)
    scalar = next(convert for holds, convert in _SCALARS if holds(kind))
    return lambda value: scalar(_plain(value))


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _refusal(value, "true or false")


def whole(value: Any) -> int:
    """Return a whole number as an integer.

    Raises:
        ValueError: It is none, or of more digits than any integer type has.

    >>> whole(Decimal("2.0"))
    2
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        value = Decimal(value)
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() <= _DIGITS:
        number = int(value)
        if number == value:
            return number
    raise _refusal(value, "a whole number")


def _float(value: Any) -> float | int:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, Decimal):
        found = float(value)
        if math.isfinite(found) or not value.is_finite():
            return found
        raise ValueError(f"{brief(value, 120)} is out of range")
    raise _refusal(value, "a number")


def _text(value: Any) -> str:
    """Return text as it is, and what else JSON has as its JSON, as Spark reads it."""
    if isinstance(value, str):
        return str.__str__(value)  # of an enum, too: str() gives its name
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool | int | float | Decimal | Mapping | list):
        try:
            return _TEXT_OF_JSON(value).decode()
        except (TypeError, RecursionError, OverflowError, UnicodeError) as refused:
            raise ValueError(f"it has no JSON: {refused}") from refused
    raise _refusal(value, "text, or a value that JSON has")


def _bytes(value: Any) -> bytes:
    """Return bytes as they are, and text as the base64 that JSON has for bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as refused:
            raise ValueError(f"{brief(value, 120)} is no base64: {refused}") from None
    raise _refusal(value, "bytes, or text in base64")


def _date(value: Any) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    raise _refusal(value, "a date")


def _decimal(value: Any) -> Decimal:
    if isinstance(value, float):
        value = Decimal(repr(value))
    elif isinstance(value, str | int) and not isinstance(value, bool):
        try:
            value = Decimal(value)
        except ArithmeticError:
            raise _refusal(value, "a decimal number") from None
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() <= _DIGITS:
        return value
    raise _refusal(value, "a decimal number")


def _list_converter(kind: pa.DataType, instant: ToInstant) -> Callable[[Any], Any]:
    element = _converter(kind.value_type, instant)

    def convert(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise _refusal(value, "a list")
        return _checked([None if each is None else element(each) for each in value], kind)

    return convert


def _struct_converter(kind: pa.DataType, instant: ToInstant) -> Callable[[Any], Any]:
    fields = [(field.name, _converter(field.type, instant), field.type) for field in kind]

    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple | list) and len(value) == len(fields):
            value = {name: each for (name, _, _), each in zip(fields, value, strict=True)}
        if not isinstance(value, Mapping):
            raise _refusal(value, f"an object with the fields {[name for name, _, _ in fields]}")
        found = {name: (value.get(name), field, of) for name, field, of in fields}
        return {
            name: None if each is None else _fitting(field(each), of)
            for name, (each, field, of) in found.items()
        }

    return convert


def _map_converter(kind: pa.DataType, instant: ToInstant) -> Callable[[Any], Any]:
    key, item = _converter(kind.key_type, instant), _converter(kind.item_type, instant)
    text = any(holds(kind.key_type) for holds in _KEYS_OF_JSON)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            value = list(value.items())
        if not isinstance(value, list):
            raise _refusal(value, "an object")
        pairs = []
        for name, each in value:
            if name is None:
                raise ValueError("a key of a map is null")
            if text and isinstance(name, str):
                name = _NUMBER_OF_JSON(name)  # JSON has keys of text only
            made = None if each is None else _fitting(item(each), kind.item_type)
            pairs.append((_fitting(key(name), kind.key_type), made))
        return pairs

    return convert


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value within another; refuse what a 32-bit float would make infinite."""
    return _checked([value], kind)[0] if pa.types.is_float32(kind) else value


def _checked(values: list[Any], kind: pa.DataType) -> list[Any]:
    element = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_float32(element):
        _refuse_overflow(values, pa.array(values, element))
    return values


def _refuse_overflow(values: Sequence[Any], array: pa.Array) -> None:
    for value, stored in zip(values, array.to_pylist(), strict=True):
        if stored is not None and math.isinf(stored) and not math.isinf(value):
            raise ValueError(f"{brief(value, 120)} is out of range of a 32-bit float")


_SCALARS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]]] = [
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, whole),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _bytes),
    (pa.types.is_date, _date),
    (pa.types.is_decimal, _decimal),
]
