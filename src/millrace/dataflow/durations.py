"""Durations that windows and triggers are made with, checked where they are written."""

from __future__ import annotations

from millrace.model.errors import PipelineError
from millrace.model.time import Duration, duration_us


def positive_us(duration: Duration, where: str) -> int:
    """Return a duration above zero in microseconds.

    Args:
        duration: As given.
        where: The call and argument, for the message.

    Raises:
        PipelineError: Zero, negative, or no duration.

    >>> positive_us("1 s", "Sessions(gap)")
    1000000
    """
    us = duration_us(duration, where)
    if us == 0:
        raise PipelineError(f'{where}: {duration!r} is no time at all. Expected more, as "5 min".')
    return us


def shown(us: int) -> str:
    """Return a duration as it would be written.

    >>> shown(90_000_000), shown(3_600_000_000), shown(7)
    ("'90 s'", "'1 h'", '7')
    """
    for unit, name in ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min")):
        if us and us % unit == 0:
            return f"'{us // unit} {name}'"
    if us and us % 1_000_000 == 0:
        return f"'{us // 1_000_000} s'"
    return str(us)
