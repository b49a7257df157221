"""Nearness: which values of two sides meet in a join without windows, and how long they are kept.

Times of the right side are counted from the left one's: a pair has ``first <= right - left < end``.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from millrace.dataflow.durations import positive_us
from millrace.model.errors import PipelineError
from millrace.model.time import MAX_TIMESTAMP, Duration, duration_literal, duration_us

#: A duration that may be negative (``"-5 s"``), or None: without end.
Offset = Duration | None

LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class Nearness:
    """How near in time two values meet.

    Attributes:
        first_us: The least that a right value is after a left one; None: nothing is too little.
        end_us: What it is after a left one at most, and never reaches; None: nothing is too much.
        lateness_us: For how long the low watermark must have passed what a value could meet, until
            it is forgotten.
        at_once: Whether a value without a partner is paired with None at once, and not when it is
            sure that none will come.
    """

    first_us: int | None = None
    end_us: int | None = None
    lateness_us: int = 0
    at_once: bool = True

    def offsets(self, side: int) -> tuple[int | None, int | None]:
        """Return what partners of a value of a side lie after it: the first, and past the last.

        >>> Nearness(-5, 10).offsets(LEFT), Nearness(-5, 10).offsets(RIGHT)
        ((-5, 10), (-9, 6))
        """
        if side == LEFT:
            return self.first_us, self.end_us
        return (
            None if self.end_us is None else 1 - self.end_us,
            None if self.first_us is None else 1 - self.first_us,
        )

    def __str__(self) -> str:
        said = (
            "for ever"
            if self.first_us is None and self.end_us is None
            else f"{_shown(self.first_us)} <= right - left < {_shown(self.end_us)}"
        )
        if not self.lateness_us:
            return said
        return f"{said}, allowed lateness {duration_literal(self.lateness_us)}"


def nearness(
    within: Any, expires: Duration | None, allowed_lateness: Duration, call: str
) -> Nearness:
    """Return what a join says of times.

    Args:
        within: From when until when a right value meets a left one, counted from that.
        expires: For how long values are kept.
        allowed_lateness: See :class:`Nearness`.
        call: For the messages.

    Raises:
        PipelineError: It is not to be understood, or nothing could meet.
    """
    lateness_us = duration_us(allowed_lateness, f"{call}(allowed_lateness)")
    if within is not None and expires is not None:
        raise PipelineError(
            f"{call}(within={within!r}, expires={expires!r}): what is further apart than within "
            "says is forgotten anyway. Leave one of them out."
        )
    if expires is not None:
        apart_us = positive_us(expires, f"{call}(expires)")
        return Nearness(1 - apart_us, apart_us, lateness_us)
    if within is None:
        if lateness_us:
            raise PipelineError(
                f"{call}(allowed_lateness={allowed_lateness!r}): a join for ever forgets nothing, "
                "so nothing comes too late for it. Leave it out, or say within= or expires=."
            )
        return Nearness()
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise PipelineError(
            f"{call}(within={within!r}): expected from when until when a right value meets a left "
            'one, counted from that: within=("-5 s", "10 min").'
        )
    first_us, end_us = (_offset_us(each, f"{call}(within)") for each in within)
    if first_us is not None and end_us is not None and first_us >= end_us:
        raise PipelineError(
            f"{call}(within={within!r}): nothing is in there. Expected an instant, and a later "
            'one, at which it ends: within=("-5 s", "10 min").'
        )
    return Nearness(first_us, end_us, lateness_us, at_once=False)


def _offset_us(offset: Any, where: str) -> int | None:
    """Return a duration in microseconds that may be negative."""
    if offset is None:
        return None
    if isinstance(offset, str) and offset.strip().startswith("-"):
        us = -duration_us(offset.strip()[1:], where)
    elif isinstance(offset, dt.timedelta) and offset < dt.timedelta(0):
        us = -duration_us(-offset, where)
    elif type(offset) is int and offset < 0:
        us = offset
    else:
        us = duration_us(offset, where)
    if abs(us) >= MAX_TIMESTAMP:
        raise PipelineError(f"{where}: {offset!r} is longer than time is. For no end, say None.")
    return us


def _shown(us: int | None) -> str:
    if us is None:
        return "any"
    return f"-{duration_literal(-us)}" if us < 0 else duration_literal(us)
