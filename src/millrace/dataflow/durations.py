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
