"""Backfill: a stream whose past is read from somewhere else, parted from it at an instant.

The instant has not come when both begin, so each record comes by one of the two: what is before it
from the past, however late, and what is at it or after from the stream.

Source: docs/changing.md; docs/design/2026-11-23-parted-at-an-instant.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.model.element import Element
from millrace.model.time import format_timestamp


@dataclass(frozen=True)
class Before:
    """Whether a record is of the past.

    Attributes:
        at_us: The instant, in microseconds since 1970, UTC.
    """

    at_us: int

    def __call__(self, record: Element) -> bool:
        """Return whether its time is before the instant."""
        return record.timestamp < self.at_us

    def __repr__(self) -> str:
        return f"before {format_timestamp(self.at_us)}"


@dataclass(frozen=True)
class Since:
    """Whether a record is not of the past.

    Attributes:
        at_us: The instant, in microseconds since 1970, UTC.
        past: The stream that has what is before.
    """

    at_us: int
    past: str

    def __call__(self, record: Element) -> bool:
        """Return whether its time is the instant or later."""
        return record.timestamp >= self.at_us

    def __repr__(self) -> str:
        return f"since {format_timestamp(self.at_us)}"
