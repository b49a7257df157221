"""Lines: what is in the lines of text that files and messages carry, as rows of a schema."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from millrace.injectors.schema import columns
from millrace.model.errors import RecordRejected
from millrace.model.time import DAY, TimeUnit, in_microseconds, likelier_unit, time_unit

#: Takes a line or message, returns its columns: by name, or in order of the schema.
Parse = Callable[[bytes], Mapping[str, Any] | tuple[Any, ...]]


def json_object(line: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object.

    >>> json_object(b'{"query": "tea", "at": 5}')
    {'query': 'tea', 'at': 5}
    """
    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    return fields


class RowMaker:
    """Makes rows of a schema from bytes.

    A timestamp column takes a datetime with a zone, ISO 8601 text with one, or an integer. A column
    that is missing is null.

    Args:
        schema: As Spark writes it.
        parse: What is in the bytes.
        unit: What an integer in a timestamp column counts; None: microseconds, and no number that
            is a time up to now in seconds or milliseconds.
        where: The call, for messages.

    >>> RowMaker("query string, at timestamp", json_object).row(b'{"query": "tea"}', "here")
    ('tea', None)
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
        self._columns = [(name, kind.startswith("timestamp")) for name, kind in columns(schema)]

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
            fields = {**beside, **found}
            return tuple(
                self._time(fields.get(name)) if at else fields.get(name)
                for name, at in self._columns
            )
        except Exception as error:
            shown = data if len(data) <= 200 else data[:200] + b"..."
            raise RecordRejected(
                f"{where}: {type(error).__name__}: {error}\n  {shown!r}\nMend the input, or give a "
                "parse= that returns a row without a time for such data: that is a dead letter "
                "where the pipeline declares a stream for them."
            ) from error

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
