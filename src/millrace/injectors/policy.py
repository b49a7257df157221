"""Low-watermark policies: what an injector publishes, given what it has read.

A policy is a value and pure: the same observations give the same low watermark, on every restart.

Source: MillWheel, "Injector and low watermark API" (5.2).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millrace.model.time import MIN_TIMESTAMP, Duration, duration_us


@runtime_checkable
class LowWatermarkPolicy(Protocol):
    """What Millrace asks of a policy."""

    def published_us(self, newest_us: int) -> int:
        """Return the low watermark to publish, in microseconds.

        Called once an epoch, before it. What is returned may fall; what is published never does.

        Args:
            newest_us: Latest timestamp read in earlier epochs; MIN_TIMESTAMP before the first.
        """
        ...


class BoundedDelay:
    """Records come at most ``delay`` later than the newest one read: those that do not are late.

    Args:
        delay: Microseconds, a timedelta, or text such as ``"5 s"``.

    >>> BoundedDelay("3 s").published_us(10_000_000)
    7000000
    >>> BoundedDelay("3 s")
    BoundedDelay(3000000)
    """

    __slots__ = ("delay_us",)

    def __init__(self, delay: Duration) -> None:
        self.delay_us = duration_us(delay)

    def published_us(self, newest_us: int) -> int:
        """Return the newest timestamp less the delay."""
        return MIN_TIMESTAMP if newest_us == MIN_TIMESTAMP else newest_us - self.delay_us

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundedDelay) and other.delay_us == self.delay_us

    def __hash__(self) -> int:
        return hash((BoundedDelay, self.delay_us))

    def __repr__(self) -> str:
        return f"BoundedDelay({self.delay_us})"
