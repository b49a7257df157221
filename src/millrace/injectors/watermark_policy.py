"""Low-watermark policies: the low watermark of one injector process, from its observed records.

A policy is a value and pure: the same observations and the same clock give the same low watermark,
on every restart. :mod:`.watermark_publisher` combines the processes of an injector.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millrace.model.errors import PipelineError
from millrace.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    SECOND,
    Duration,
    TimeUnit,
    duration_literal,
    duration_us,
    time_unit,
)
from millrace.watermark.report import ProcessState


@runtime_checkable
class LowWatermarkPolicy(Protocol):
    """What Millrace asks of a policy. Both methods must be pure."""

    def published_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the low watermark that a process publishes, in microseconds.

        Called for each process before every epoch. What is returned may fall; what is published
        never does.

        Args:
            process: What was seen of it in earlier epochs.
            read_until_us: All that had reached the source by this wall-clock time was read in
                earlier epochs, if the source gives an epoch all that it has; MIN_TIMESTAMP if that
                is not known.
        """
        ...

    def changes_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the ``read_until_us`` from which on another value is published without news.

        MAX_TIMESTAMP if only news of the process can change it.
        """
        ...


class BoundedDelay:
    """Records come at most ``delay`` later than the newest one read: those that do not are late.

    Args:
        delay: Microseconds, a timedelta, or text such as ``"5 s"``.

    >>> BoundedDelay("3 s").published_us(ProcessState(newest_us=10_000_000), 0)
    7000000
    >>> BoundedDelay("3 s")
    BoundedDelay('3 s')
    """

    __slots__ = ("delay_us",)

    def __init__(self, delay: Duration) -> None:
        self.delay_us = duration_us(delay, "BoundedDelay(delay)")

    @property
    def behind_newest_us(self) -> int:
        """How far a process publishes behind its newest record: the delay."""
        return self.delay_us

    def published_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the newest timestamp less the delay."""
        newest_us = process.newest_us
        return MIN_TIMESTAMP if newest_us == MIN_TIMESTAMP else newest_us - self.delay_us

    def changes_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the end of time: the clock is not asked."""
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundedDelay) and other.delay_us == self.delay_us

    def __hash__(self) -> int:
        return hash((BoundedDelay, self.delay_us))

    def __repr__(self) -> str:
        return f"BoundedDelay({duration_literal(self.delay_us)})"


class ArrivalTime:
    """Records reach the source at most ``delay`` after their timestamp, by the driver's clock.

    For timestamps that are given on arrival (a broker's log-append time, a collector's clock), or
    soon before. Unlike :class:`BoundedDelay` it goes on while nothing arrives. It trusts that the
    source gives an epoch all that it has: one that is limited (``maxFilesPerTrigger``) and has a
    backlog makes records late.

    Args:
        delay: How long a record may take.
        every: How often the low watermark moves; each move is an epoch.

    >>> ArrivalTime("2 s").published_us(ProcessState(), 10_300_000)
    8000000
    >>> ArrivalTime("2 s").changes_us(ProcessState(), 10_300_000)
    15000000
    """

    __slots__ = ("delay_us", "every_us")

    def __init__(self, delay: Duration, *, every: Duration = 5 * SECOND) -> None:
        self.delay_us = duration_us(delay, "ArrivalTime(delay)")
        self.every_us = duration_us(every, "ArrivalTime(every)")
        if not self.every_us:
            raise PipelineError(
                'ArrivalTime(every=0): each move is an epoch. Expected, say, every="5 s".'
            )

    def published_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the clock, in steps of ``every``, less the delay."""
        if read_until_us == MIN_TIMESTAMP:
            return MIN_TIMESTAMP
        return read_until_us - read_until_us % self.every_us - self.delay_us

    def changes_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the next step."""
        if read_until_us == MIN_TIMESTAMP:
            return MIN_TIMESTAMP
        return read_until_us - read_until_us % self.every_us + self.every_us

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrivalTime) and (other.delay_us, other.every_us) == (
            self.delay_us,
            self.every_us,
        )

    def __hash__(self) -> int:
        return hash((ArrivalTime, self.delay_us, self.every_us))

    def __repr__(self) -> str:
        delay, every = duration_literal(self.delay_us), duration_literal(self.every_us)
        return f"ArrivalTime({delay}, every={every})"


class WatermarkColumn:
    """The source publishes its own low watermark, in a column of its rows.

    A value says: this process sends nothing before it any more. The highest counts; null says
    nothing. One past the wall clock by more than ``inject(..., ahead=)`` is refused and counted,
    but :data:`~millrace.MAX_TIMESTAMP` says that the process has ended.

    Args:
        column: A Spark timestamp, or an integer.
        unit: What an integer counts: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``; by default
            microseconds.
        punctuation: A boolean column: rows in which it is true are punctuation, they carry a low
            watermark and are no records.

    >>> WatermarkColumn("complete_until").published_us(
    ...     ProcessState(newest_us=9, process_watermark_us=7), 0
    ... )
    7
    """

    __slots__ = ("column", "punctuation", "unit")

    def __init__(
        self, column: str, *, punctuation: str | None = None, unit: TimeUnit | None = None
    ) -> None:
        self.column = column
        self.punctuation = punctuation
        self.unit = time_unit(unit, "WatermarkColumn(unit)")

    def published_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return what the process promised last."""
        return process.process_watermark_us

    def changes_us(self, process: ProcessState, read_until_us: int) -> int:
        """Return the end of time: the clock is not asked."""
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatermarkColumn) and other._settings() == self._settings()

    def __hash__(self) -> int:
        return hash((WatermarkColumn, self._settings()))

    def _settings(self) -> tuple[str | None, ...]:
        return self.column, self.punctuation, self.unit

    def __repr__(self) -> str:
        punctuation = "" if self.punctuation is None else f", punctuation={self.punctuation!r}"
        unit = "" if self.unit is None else f", unit={self.unit!r}"
        return f"WatermarkColumn({self.column!r}{punctuation}{unit})"
