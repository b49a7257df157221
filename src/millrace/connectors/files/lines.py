"""Lines: what is in the lines of text that files and messages carry, as columns of a schema."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import MappingProxyType, NoneType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.injectors.columns import arrow_schema, batch_of, check_schema, rows_batch
from millrace.injectors.refusals import Refusal, with_refusals
from millrace.injectors.typed_values import microsecond_instant, whole
from millrace.model.errors import PipelineError
from millrace.model.time import (
    DAY,
    TimeUnit,
    in_microseconds,
    likelier_ranges,
    likelier_unit,
    time_unit,
)

#: Takes a line or message, returns its columns: by name, or in order of the schema.
Parse = Callable[[bytes], Mapping[str, Any] | tuple[Any, ...]]

#: What ``parse=`` raises where it is not the line that is wrong: a schema registry does not answer.
_AWAY: Final = (ConnectionError, TimeoutError)

#: Characters of 2026-11-27T10:00:00Z: text of a time without seconds is left to Python.
_TO_THE_SECOND: Final = 20
_YEAR_1_US: Final = -62_135_596_800_000_000

#: What JSON has for a column that many lines are decoded to at once. All others are decoded value
#: by value. Text of times is not left to msgspec, which rounds what is finer than a microsecond.
_AT_ONCE: Final[list[tuple[Callable[[pa.DataType], bool], Any]]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, int | float),
    (pa.types.is_string, str),
    (pa.types.is_timestamp, str | int),
]
#: A 32-bit float would become infinite where a number does not fit.
_PLAIN: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float64,
    pa.types.is_string,
)
#: Digits of the largest number that may be an instant, in nanoseconds.
_DIGITS: Final = 20
#: Fractions keep every digit until it is known which type they are for.
_decode_exactly: Final = msgspec.json.Decoder(float_hook=Decimal).decode
#: What a null message of Kafka stands for: a JSON object in which every column is missing.
_NO_FIELDS: Final = b"{}"
#: Integers within this are microseconds that fit into 64 bits, whatever their unit.
_WITHIN: Final = 1 << 43


def json_object(line: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object; a number with a fraction is a Decimal, digit by digit.

    >>> json_object(b'{"query": "tea", "at": 5}')
    {'query': 'tea', 'at': 5}
    """
    fields = _decode_exactly(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    return fields


def as_it_is(data: bytes) -> Mapping[str, Any]:
    """Return a message as the column ``value``."""
    return {"value": data}


def _no_key(_: int) -> None:
    return None


class _Microseconds(int):
    """An instant that stands beside a line: in microseconds, whatever the line's unit is.

    It is no datetime, as a producer may give a message any time: Python has none after year 9999.
    """


class RowMaker:
    """Makes rows of a schema from bytes, many at once.

    What a line means depends on nothing but the line: many that are plain are read together, each
    other one by itself, and both ways give the same. A timestamp column takes a datetime with a
    zone, ISO 8601 text with one, or a number; what is finer than a microsecond is cut off. A column
    that is missing is null. What a column's type cannot hold without loss is refused.

    Args:
        schema: As Spark writes it.
        parse: What is in the bytes.
        unit: What a number in a timestamp column counts; None: whole microseconds, and none that is
            a time up to now in seconds or milliseconds.
        where: The call, for messages.

    Raises:
        PipelineError: The schema has a type that nothing can fill.

    >>> maker = RowMaker("query string, at timestamp", json_object)
    >>> lines = [b'{"query": "tea"}', b'{"query": "milk", "at": 5}']
    >>> maker.batch(lines, lambda n: f"line {n}").column("query").to_pylist()
    ['tea', 'milk']
    """

    def __init__(
        self, schema: str, parse: Parse, unit: TimeUnit | None = None, where: str = "RowMaker"
    ) -> None:
        self._parse = parse
        self._unit = time_unit(unit, f"{where}(unit)")
        self._where = where
        # Only to tell milliseconds from microseconds: that this goes with an instance, and not with
        # the clock, keeps what is read the same for as long as it is read.
        self._latest_us = time.time_ns() // 1000 + DAY
        check_schema(schema)
        self._schema = schema
        columns = arrow_schema(schema)
        self._names = columns.names
        self._times = {field.name for field in columns if pa.types.is_timestamp(field.type)}
        #: Those of which decoding has checked the types that Arrow is given.
        self._plain: dict[str, pa.DataType] = {
            field.name: field.type
            for field in columns
            if any(holds(field.type) for holds in _PLAIN)
        }

    def batch(
        self,
        lines: Sequence[bytes | None],
        where: Callable[[int], str],
        beside: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        key: Callable[[int], bytes | None] = _no_key,
    ) -> pa.RecordBatch:
        """Return the rows of many lines or messages.

        One that cannot be read is refused; see :mod:`millrace.injectors.refusals`.

        Raises:
            ConnectionError: ``parse`` cannot reach what it needs; or ``TimeoutError``.

        Args:
            lines: The lines or messages; None, a null message of Kafka, has null in every column.
            where: Returns where the n-th of them came from, if it is refused.
            beside: Columns that stand where a line has nothing for them, a value a line, as Arrow
                takes it: a timestamp in microseconds.
            key: Returns the key of the n-th message as it came, if it is refused.
        """
        schema = arrow_schema(self._schema)
        columns = self._at_once(lines, beside)
        if columns is not None:
            try:
                return batch_of(columns, schema, "", self._instant)
            except PipelineError:
                pass  # one by one it is found which it is
        rows, reasons = list[tuple[Any, ...] | None](), dict[int, str]()
        for n, line in enumerate(lines):
            try:
                rows.append(self._row(line, {name: each[n] for name, each in beside.items()}))
            except _AWAY:
                raise
            except Exception as error:  # noqa: BLE001  parse= may raise anything
                rows.append(None)
                reasons[n] = f"{type(error).__name__}: {error}"
        batch, misfits = rows_batch(rows, schema, self._instant)
        refusals = {
            n: Refusal.of_bytes(reason, where(n), lines[n], key(n))
            for n, reason in (reasons | misfits).items()
        }
        return with_refusals(batch, refusals)

    def _row(self, data: bytes | None, beside: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of a line, as they are before they are of their types."""
        fields: Mapping[str, Any]
        if self._parse is json_object:
            decode, attributes, _ = _decoder(self._schema, exact=True)
            struct = decode(_NO_FIELDS if data is None else data)
            given = zip(self._names, attributes, strict=True)
            fields = {name: _exactly(getattr(struct, attribute)) for name, attribute in given}
        else:
            parsed = {} if data is None else self._parse(data)
            if isinstance(parsed, Mapping):
                fields = parsed
            else:
                names = self._names
                if len(parsed) != len(names):
                    names = [name for name in names if name not in beside]
                fields = dict(zip(names, parsed, strict=True))
        return tuple(
            self._beside(name, beside[name])
            if name in beside and fields.get(name) is None
            else fields.get(name)
            for name in self._names
        )

    def _beside(self, name: str, value: Any) -> Any:
        """Return a value that stands beside a line; a time is not counted in the line's unit."""
        if isinstance(value, pa.Scalar):
            return value.as_py()
        return _Microseconds(value) if name in self._times and value is not None else value

    def _instant(self, value: Any) -> dt.datetime | int:
        """Return what stands for an instant as a datetime or in microseconds."""
        if isinstance(value, _Microseconds):
            return int(value)
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, float):
            value = Decimal(repr(value))  # the shortest that reads as that: what was written
        if isinstance(value, Decimal):
            if value.is_finite() and value.adjusted() <= _DIGITS and value != int(value):
                return self._fraction(value)
            value = whole(value)
        if isinstance(value, int) and not isinstance(value, bool):
            likelier = None if self._unit else likelier_unit(value, self._latest_us)
            if likelier is not None:
                raise ValueError(
                    f"{value} is in January 1970 in microseconds; is it of another unit? Say "
                    f'{self._where}(unit="{likelier}"), or unit="us" if it is right'
                )
            return in_microseconds(value, self._unit)
        return microsecond_instant(value)

    def _fraction(self, value: Decimal) -> int:
        """Return a number with a fraction in microseconds; what is finer is cut off."""
        if self._unit is None:
            raise ValueError(
                f"{value} has a fraction, and no unit is given. Say "
                f'{self._where}(unit="s") if it is in seconds'
            )
        return math.floor(Fraction(value) * Fraction(in_microseconds(1000, self._unit), 1000))

    def _at_once(
        self, lines: Sequence[bytes | None], beside: Mapping[str, Sequence[Any]]
    ) -> list[Sequence[Any]] | None:
        """Return the columns of all lines; None if each has to be looked at by itself.

        Of JSON, types are checked while it is read, and no object but the values themselves is made
        that lives on. What is not as it should be is left to :meth:`_row`.
        """
        if self._parse is as_it_is:
            nothing = [None] * len(lines)
            values = {"value": lines}
            return [values.get(name, beside.get(name, nothing)) for name in self._names]
        if self._parse is not json_object:
            return self._parsed(lines, beside)
        decode, attributes, raw = _decoder(self._schema)
        try:
            structs = [decode(_NO_FIELDS if line is None else line) for line in lines]
            # A column at a time: tuples of all columns, turned about, take five times as long.
            columns: dict[str, Sequence[Any]] = {
                name: list(map(attrgetter(attribute), structs))
                for name, attribute in zip(self._names, attributes, strict=True)
            }
            for name in raw:
                columns[name] = list(map(_exactly, columns[name]))
            for name in self._plain.keys() - beside.keys():
                columns[name] = _column(columns[name], self._plain[name])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return self._columns_of(columns, beside)

    def _parsed(
        self, lines: Sequence[bytes | None], beside: Mapping[str, Sequence[Any]]
    ) -> list[Sequence[Any]] | None:
        """Return the columns of what a function gives of each line."""
        try:
            parsed: list[Any] = [{} if line is None else self._parse(line) for line in lines]
        except _AWAY:
            raise
        except Exception:  # noqa: BLE001  :meth:`_row` meets it too, and can say in which line
            return None
        kinds = set(map(type, parsed))
        columns: dict[str, Sequence[Any]]
        if kinds == {dict}:
            columns = {name: [fields.get(name) for fields in parsed] for name in self._names}
        elif kinds == {tuple}:
            names = self._names
            if len(parsed[0]) != len(names):
                names = [name for name in names if name not in beside]
            if set(map(len, parsed)) != {len(names)}:
                return None
            columns = {name: list(map(itemgetter(n), parsed)) for n, name in enumerate(names)}
        else:
            return None
        return self._columns_of(columns, beside)

    def _columns_of(
        self, values: Mapping[str, Sequence[Any]], beside: Mapping[str, Sequence[Any]]
    ) -> list[Sequence[Any]] | None:
        """Return columns in order; None if each line has to be looked at by itself.

        Some have themselves what stands beside them, or a time there has more than 64 bits.
        """
        columns = list[Sequence[Any]]()
        for name in self._names:
            own = [value is not None for value in values.get(name, ())]
            if name in beside and not (own and all(own)):
                if any(own):
                    return None
                if name in self._times:
                    try:
                        columns.append(pa.array(beside[name], pa.timestamp("us", "UTC")))
                    except OverflowError:
                        return None
                else:
                    columns.append(beside[name])
            else:
                columns.append(
                    self._instants(values[name]) if name in self._times else values[name]
                )
        return columns

    def _instants(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return a column of times as datetimes or microseconds; as it is if it is not plain."""
        kinds = set(map(type, values))
        if str in kinds and kinds <= {str, NoneType}:
            read = dt.datetime.fromisoformat
            if (plain := _in_utc(values)) is not None:
                return plain  # type: ignore[no-any-return]
            try:
                return [None if value is None else read(value) for value in values]
            except ValueError:
                return values
        if kinds != {int}:
            return values
        try:
            whole = np.array(values, dtype=np.int64)
        except OverflowError:
            return values
        if self._unit in (None, "us"):
            ranges = likelier_ranges(self._latest_us).values() if self._unit is None else ()
            if any(((whole >= first) & (whole <= last)).any() for first, last in ranges):
                return values
            return whole  # type: ignore[return-value]  # Arrow takes it for a sequence
        if self._unit != "ns" and (np.abs(whole) > _WITHIN).any():
            return values
        times: Any = whole  # whole columns are counted as single numbers are
        counted: Any = in_microseconds(times, self._unit)
        return counted  # type: ignore[no-any-return]


def _column(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Return decoded values as a column; as they are if the type does not hold one of them."""
    try:
        return pa.array(values, kind)  # type: ignore[no-any-return]
    except (pa.ArrowException, OverflowError, UnicodeError):
        return values


def _in_utc(values: Sequence[Any]) -> pa.Array | None:
    """Return ISO 8601 texts that all end with Z as a column; None if that is not what they are.

    What Arrow reads of those, Python reads to the same, but for the year 0. It refuses more.
    """
    try:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.ends_with(texts, "Z")).as_py():
            return None
        if pc.min(pc.binary_length(texts)).as_py() < _TO_THE_SECOND:
            return None
        times = texts.cast(pa.timestamp("us", "UTC"))
    except (pa.ArrowException, UnicodeError):
        return None
    return times if pc.min(times.view(pa.int64())).as_py() >= _YEAR_1_US else None


@lru_cache(maxsize=128)
def _decoder(
    schema: str, *, exact: bool = False
) -> tuple[Callable[[bytes], Any], list[str], list[str]]:
    """Return what decodes an object to a struct.

    It is kept here and not with a maker, which is sent to workers: a class made here cannot be.
    Fields that the schema does not have are passed over, whatever is in them.

    Args:
        schema: As Spark writes it.
        exact: Whether all columns are left as the JSON that they are.

    Returns:
        The function; the struct's attributes, one a column; and the columns left as JSON.
    """
    fields, raw = list[Any](), list[str]()
    for n, field in enumerate(arrow_schema(schema)):
        kind = next((python for holds, python in _AT_ONCE if holds(field.type)), None)
        if kind is None or exact:
            raw.append(field.name)
        json = msgspec.Raw if kind is None or exact else kind | None
        fields.append((f"c{n}", json, msgspec.field(name=field.name, default=None)))
    struct = msgspec.defstruct("Row", fields, gc=False)
    attributes = [attribute for attribute, _, _ in fields]
    return msgspec.json.Decoder(struct).decode, attributes, raw


def _exactly(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else _decode_exactly(raw)
