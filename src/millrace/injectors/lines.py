"""Lines: what is in the lines of text that files and messages carry, as columns of a schema."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import MappingProxyType, NoneType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.injectors.schema import arrow_schema, batch_of, columns
from millrace.model.errors import PipelineError, RecordRejected
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

#: What JSON has for the columns of a type, where it is one that msgspec checks.
_JSON_TYPES: Final = {
    "string": str,
    "boolean": bool,
    **dict.fromkeys(
        ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"), int
    ),
    **dict.fromkeys(("float", "real", "double"), float),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), dt.datetime | int),
}
#: Integers within this are microseconds that fit into 64 bits, whatever their unit.
_WITHIN: Final = 1 << 43


def json_object(line: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object.

    >>> json_object(b'{"query": "tea", "at": 5}')
    {'query': 'tea', 'at': 5}
    """
    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    return fields


def as_it_is(data: bytes) -> Mapping[str, Any]:
    """Return a message as the column ``value``."""
    return {"value": data}


class RowMaker:
    """Makes rows of a schema from bytes, one by one or many at once.

    A timestamp column takes a datetime with a zone, ISO 8601 text with one, or an integer. A column
    that is missing is null.

    Args:
        schema: As Spark writes it.
        parse: What is in the bytes.
        unit: What an integer in a timestamp column counts; None: microseconds, and no number that
            is a time up to now in seconds or milliseconds.
        where: The call, for messages.

    >>> maker = RowMaker("query string, at timestamp", json_object)
    >>> maker.row(b'{"query": "tea"}', "here")
    ('tea', None)
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
        self._schema = schema
        self._columns = [(name, kind.startswith("timestamp")) for name, kind in columns(schema)]
        self._names = [name for name, _ in self._columns]

    def batch(
        self,
        lines: Sequence[bytes],
        where: Callable[[int], str],
        beside: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    ) -> pa.RecordBatch:
        """Return the rows of many lines or messages.

        Args:
            lines: What :meth:`row` takes.
            where: Returns where the n-th of them came from, for messages.
            beside: Columns that may be asked for besides what is in them, a value each, as Arrow
                takes it: a timestamp in microseconds.

        Raises:
            RecordRejected: One of them cannot be read.
        """
        schema = arrow_schema(self._schema)
        values = self._at_once(lines, beside)
        if values is not None:
            try:
                return batch_of(values, schema, "")
            except PipelineError:
                pass  # one by one it is found which it is
        rows = [
            self.row(line, where(n), {name: column[n] for name, column in beside.items()})
            for n, line in enumerate(lines)
        ]
        try:
            return batch_of(list(zip(*rows, strict=True)) or [()] * len(schema), schema, "")
        except PipelineError:
            for n, row in enumerate(rows):
                try:
                    batch_of([[value] for value in row], schema, where(n))
                except PipelineError as refused:
                    raise _rejected(where(n), refused, lines[n]) from refused
            raise

    def row(
        self, data: bytes, where: str, beside: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Any, ...]:
        """Return the row.

        Args:
            data: The line or message.
            where: It came from, for messages.
            beside: Columns that may be asked for besides what is in it.

        Raises:
            RecordRejected: It cannot be read.
        """
        try:
            found = self._parse(data)
            if not isinstance(found, Mapping):
                given = [(name, at) for name, at in self._columns if name not in beside]
                found = {name: v for (name, _), v in zip(given, found, strict=True)}
            return tuple(
                beside[name]
                if name in beside and name not in found
                else self._time(found.get(name))
                if at
                else found.get(name)
                for name, at in self._columns
            )
        except Exception as error:
            raise _rejected(where, error, data) from error

    def _time(self, value: Any) -> Any:
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime) and value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone, so it names no instant")
        if isinstance(value, int):
            likelier = None if self._unit else likelier_unit(value, self._latest_us)
            if likelier is not None:
                raise ValueError(
                    f"{value} is in January 1970 in microseconds; is it of another unit? Say "
                    f'{self._where}(unit="{likelier}"), or unit="us" if it is right'
                )
            us = in_microseconds(value, self._unit)
            return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
        return value

    def _at_once(
        self, lines: Sequence[bytes], beside: Mapping[str, Sequence[Any]]
    ) -> list[Sequence[Any]] | None:
        """Return the columns of all lines; None if each has to be looked at by itself.

        Of JSON, types are checked while it is read, and no object but the values themselves is made
        that lives on. What is not as it should be is left to :meth:`row`, which says so.
        """
        if self._parse is as_it_is:
            nothing = [None] * len(lines)
            found = {**beside, "value": lines}
            return [found.get(name, nothing) for name, _ in self._columns]
        if self._parse is not json_object:
            return self._parsed(lines, beside)
        decode, names = _decoder(self._schema)
        try:
            structs = [decode(line) for line in lines]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        # A column at a time: tuples of all columns, turned about, take five times as long.
        made = {
            name: list(map(attrgetter(n), structs))
            for name, n in zip(self._names, names, strict=True)
        }
        if any(value is not None for name in beside for value in made[name]):
            return None
        return self._columns_of({**made, **beside}, beside)

    def _parsed(
        self, lines: Sequence[bytes], beside: Mapping[str, Sequence[Any]]
    ) -> list[Sequence[Any]] | None:
        """Return the columns of what a function gives of each line."""
        try:
            found: list[Any] = list(map(self._parse, lines))
        except Exception:  # noqa: BLE001  :meth:`row` meets it too, and can say in which line
            return None
        kinds = set(map(type, found))
        if kinds == {dict}:
            if any(name in fields for name in beside for fields in found):
                return None
            made = {name: [fields.get(name) for fields in found] for name in self._names}
        elif kinds == {tuple}:
            names = [name for name in self._names if name not in beside]
            if set(map(len, found)) != {len(names)}:
                return None
            made = {name: list(map(itemgetter(n), found)) for n, name in enumerate(names)}
        else:
            return None
        return self._columns_of({**made, **beside}, beside)

    def _columns_of(
        self, values: Mapping[str, Sequence[Any]], beside: Collection[str]
    ) -> list[Sequence[Any]] | None:
        """Return columns in order, times as they are to be; None if one is not as it should be."""
        made = list[Sequence[Any]]()
        for name, at in self._columns:
            column = self._times(values[name]) if at and name not in beside else values[name]
            if column is None:
                return None
            made.append(column)
        return made

    def _times(self, values: Sequence[Any]) -> Any:
        """Return a column of times, as datetimes or microseconds; None if one is not one."""
        kinds = set(map(type, values))
        if not kinds <= {int, dt.datetime, NoneType}:
            return None
        if int not in kinds:
            return values if all(v is None or v.tzinfo is not None for v in values) else None
        if kinds != {int}:
            return None
        try:
            whole = np.array(values, dtype=np.int64)
        except OverflowError:
            return None
        if self._unit in (None, "us"):
            ranges = likelier_ranges(self._latest_us).values() if self._unit is None else ()
            if any(((whole >= first) & (whole <= last)).any() for first, last in ranges):
                return None
            return whole
        if self._unit != "ns" and (np.abs(whole) > _WITHIN).any():
            return None
        times: Any = whole  # whole columns are counted as single numbers are
        return in_microseconds(times, self._unit)


@lru_cache(maxsize=64)
def _decoder(schema: str) -> tuple[Callable[[bytes], Any], list[str]]:
    """Return what decodes an object to a struct, and the struct's attributes, one a column.

    It is kept here and not with a maker, which is sent to workers: a class made here cannot be.
    """
    fields = [
        (f"c{n}", _JSON_TYPES.get(kind, Any) | None, msgspec.field(name=name, default=None))
        for n, (name, kind) in enumerate(columns(schema))
    ]
    struct = msgspec.defstruct("Row", fields, gc=False)
    return msgspec.json.Decoder(struct).decode, [attribute for attribute, _, _ in fields]


def _rejected(where: str, error: Exception, data: bytes) -> RecordRejected:
    shown = data if len(data) <= 200 else data[:200] + b"..."
    return RecordRejected(
        f"{where}: {type(error).__name__}: {error}\n  {shown!r}\nMend the input, or give a "
        "parse= that returns a row without a time for such data: that is a dead letter "
        "where the pipeline declares a stream for them."
    )
