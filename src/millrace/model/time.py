"""Instants and durations: int64 microseconds since the Unix epoch, UTC, and how to write them.

Microseconds are Spark's own unit. Public arguments also take :class:`~datetime.datetime`,
:class:`~datetime.timedelta` and text such as ``"2026-11-22T10:00:00Z"`` and ``"5 min"``; inside,
everything is a plain ``int``.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal, cast

from millrace.model.errors import PipelineError, brief

MICROSECOND: Final = 1
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

#: Before any time: what a low watermark is until somebody knows better. Half of int64, so that
#: adding or subtracting a duration (146,000 years fit) never overflows in numpy, Arrow or Spark.
MIN_TIMESTAMP: Final = -(1 << 62)

#: The end of time: a low watermark that has reached it says that no record will ever come again.
MAX_TIMESTAMP: Final = 1 << 62

#: As a computation's ``may_produce_late``: however old. It is the span of all time.
UNBOUNDED_PAST: Final = MAX_TIMESTAMP

#: Record timestamps lie in ``[EARLIEST_RECORD, LATEST_RECORD]``: from 1970 to the end of what
#: 64-bit nanoseconds (pandas, Parquet's INT96 readers, many sinks) can say, in the year 2262.
EARLIEST_RECORD: Final = 0
LATEST_RECORD: Final = 9_223_372_036_854_775

Instant = int | dt.datetime | str
#: What an integer in a column of times counts, since 1970 (UTC).
TimeUnit = Literal["s", "ms", "us", "ns"]
Duration = int | dt.timedelta | str

_UNITS: Final = {
    "us": MICROSECOND, "usec": MICROSECOND, "microsecond": MICROSECOND,
    "ms": MILLISECOND, "msec": MILLISECOND, "millisecond": MILLISECOND,
    "s": SECOND, "sec": SECOND, "second": SECOND,
    "m": MINUTE, "min": MINUTE, "minute": MINUTE,
    "h": HOUR, "hr": HOUR, "hour": HOUR,
    "d": DAY, "day": DAY,
    "w": 7 * DAY, "week": 7 * DAY,
}  # fmt: skip
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
#: Unit of times -> how many microseconds it has, as a fraction.
_PER_UNIT: Final = {"s": (SECOND, 1), "ms": (MILLISECOND, 1), "us": (1, 1), "ns": (1, 1_000)}
_UNIX_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def duration_us(duration: Duration, where: str = "") -> int:
    """Return a duration in microseconds.

    Args:
        duration: Microseconds as an int, a timedelta, or text: ``"5 min"``, ``"1h 30m"``.
        where: The call and argument, for the message.

    Raises:
        PipelineError: Negative, more than the 146,000 years that fit, or text that is not a number
            and a unit.

    >>> duration_us("5 min"), duration_us("1h 30m") == 90 * MINUTE, duration_us(7)
    (300000000, True, 7)
    """
    if isinstance(duration, bool | enum.Enum):  # mr.WALL_TIME is an int, too
        us = None
    elif isinstance(duration, int):
        us = duration
    elif isinstance(duration, dt.timedelta):
        us = duration // dt.timedelta(microseconds=1)
    elif isinstance(duration, str):
        us = _parse(duration)
    else:
        us = None
    if us is None or us < 0:
        raise PipelineError(
            f"{where}{': ' if where else ''}{duration!r} is not a duration. Expected microseconds "
            'as an int >= 0, a timedelta, or text such as "5 min", "1 h 30 min", "250 ms".'
        )
    if us > MAX_TIMESTAMP:
        raise PipelineError(
            f"{where}{': ' if where else ''}{brief(duration, 60)} is longer than all time. "
            f"Expected at most {MAX_TIMESTAMP} microseconds, which are 146,000 years."
        )
    return us


@lru_cache(maxsize=256)  # a timer may be set so for every record
def _parse(text: str) -> int | None:
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        name = part[2].lower()
        unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
        if unit is None:
            return None
        total += Fraction(part[1]) * unit
        at = part.end()
    return round(total) if text.strip() else None


def timestamp_us(instant: Instant) -> int:
    """Return an instant in microseconds since the Unix epoch, UTC.

    Args:
        instant: Microseconds as an int, a datetime, or text as of ISO 8601; the last two with a
            time zone.

    Raises:
        PipelineError: There is no time zone (whose instant is anybody's guess), or it is none of
            these.

    >>> import datetime as dt
    >>> timestamp_us(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc))
    1000000
    >>> timestamp_us("1970-01-01T00:00:01Z"), timestamp_us("1970-01-01 02:00+02:00")
    (1000000, 0)
    """
    if isinstance(instant, int) and not isinstance(instant, bool | enum.Enum):
        return instant
    at = instant
    if isinstance(at, str):
        with suppress(ValueError):
            at = dt.datetime.fromisoformat(at)
    if isinstance(at, dt.datetime):
        if at.tzinfo is None:
            raise PipelineError(
                f"{brief(instant, 120)} has no time zone, so it names no instant. Write "
                "datetime(..., tzinfo=timezone.utc), or a time and its zone, "
                '"2026-11-22T10:00:00Z"; or give microseconds as an int.'
            )
        return (at - _UNIX_EPOCH) // dt.timedelta(microseconds=1)
    raise PipelineError(
        f"{brief(instant, 120)} is not an instant. Expected microseconds since 1970 (UTC) as an "
        'int, a datetime with a time zone, or text such as "2026-11-22T10:00:00Z".'
    )


def datetime_of(us: int) -> dt.datetime:
    """Return an instant as a datetime, UTC.

    Raises:
        PipelineError: It is beyond the years that a datetime has, as the ends of time are.

    >>> datetime_of(1_500_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=datetime.timezone.utc)
    """
    try:
        return _UNIX_EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        raise PipelineError(
            f"{us} us ({format_timestamp(us)}) is no year of a datetime's. Go by the microseconds."
        ) from None


def time_unit(unit: Any, where: str) -> TimeUnit | None:
    """Return a unit of times as it is, or None for none.

    Args:
        unit: What was given.
        where: The call and argument, for the message.

    Raises:
        PipelineError: It is none.
    """
    if unit is None or unit in _PER_UNIT:
        return cast("TimeUnit | None", unit)
    raise PipelineError(
        f'{where}: {unit!r} is no unit of times. Expected "s", "ms", "us" or "ns": the unit of '
        "the integers in the column, which count from 1970 (UTC)."
    )


def in_microseconds(number: int, unit: TimeUnit | None) -> int:
    """Return an integer of a unit in microseconds, rounded down; without a unit it is as it is.

    >>> in_microseconds(1_795_000_000_123, "ms"), in_microseconds(1_999, "ns")
    (1795000000123000, 1)
    """
    times, per = _PER_UNIT[unit or "us"]
    return number * times // per


def likelier_unit(number: int, latest_us: int) -> TimeUnit | None:
    """Return the unit that an integer is more likely in than microseconds; None if it may be those.

    A time between September 2001, since when seconds have ten digits, and the latest there can be
    is one of January 1970 if its seconds or milliseconds are taken for microseconds.

    Args:
        number: Said to be in microseconds, but only by default.
        latest_us: The latest time there can be: the wall clock, and some allowance.

    >>> likelier_unit(1_700_000_000_000, 1_795_000_000_000_000)
    'ms'
    >>> likelier_unit(1_700_000_000, 1_795_000_000_000_000)
    's'
    >>> likelier_unit(1_700_000_000_000_000, 1_795_000_000_000_000) is None
    True
    """
    for unit, (first, last) in likelier_ranges(latest_us).items():
        if first <= number <= last:
            return unit
    return None


def likelier_ranges(latest_us: int) -> dict[TimeUnit, tuple[int, int]]:
    """Return by unit the first and the last integer for which :func:`likelier_unit` says it."""
    first_s = 1_000_000_000
    return {
        "s": (first_s, latest_us // SECOND),
        "ms": (first_s * 1_000, latest_us // MILLISECOND),
    }


def format_duration(us: int) -> str:
    """Return a duration for a person: its two largest units.

    >>> format_duration(90 * MINUTE), format_duration(61_500_000), format_duration(1_500)
    ('1 h 30 min', '1 min 1.5 s', '1.5 ms')
    """
    if us < MINUTE:
        return f"{us / SECOND:g} s" if us >= SECOND or not us else f"{us / MILLISECOND:g} ms"
    if us < HOUR:
        minutes, rest = divmod(us, MINUTE)
        return f"{minutes} min" + (f" {rest / SECOND:.3g} s" if rest else "")
    big, name, small, less = (DAY, "d", HOUR, "h") if us >= DAY else (HOUR, "h", MINUTE, "min")
    count, rest = divmod(us, big)
    return f"{count} {name}" + (f" {rest // small} {less}" if rest >= small else "")


def duration_literal(us: int) -> str:
    """Return a duration as it would be written in Python, exactly.

    >>> duration_literal(90_000_000), duration_literal(3_600_000_000), duration_literal(7)
    ("'90 s'", "'1 h'", '7')
    """
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLISECOND, "ms"))
    for unit, name in units:
        if us and us % unit == 0:
            return f"'{us // unit} {name}'"
    return str(us)


def is_over(pause_us: int, since_us: int, now_us: int) -> bool:
    """Return whether a pause is over that began at an instant of the wall clock.

    It is, too, where the clock has been set back to before it began.

    >>> is_over(10, 100, 109), is_over(10, 100, 110), is_over(10, 100, 99)
    (False, True, True)
    """
    return not since_us <= now_us < since_us + pause_us


def format_timestamp(us: int) -> str:
    """Return an instant for a person: ISO 8601, or the name of an end of time.

    >>> format_timestamp(0), format_timestamp(MAX_TIMESTAMP), format_timestamp(MIN_TIMESTAMP)
    ('1970-01-01T00:00:00Z', 'end of time', 'before time')
    """
    if us >= MAX_TIMESTAMP:
        return "end of time"
    if us <= MIN_TIMESTAMP:
        return "before time"
    try:
        instant = _UNIX_EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    return instant.isoformat().replace("+00:00", "Z")
