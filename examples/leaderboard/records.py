"""What the streams carry. Times are microseconds since 1970, UTC."""

from __future__ import annotations

import msgspec

import millrace as mr


class Score(msgspec.Struct, frozen=True):
    """Points that a player made, and when: by the phone's clock, not when we heard of it."""

    user: str
    team: str
    points: int
    at: int


class Total(msgspec.Struct, frozen=True):
    """What a team has made in an hour."""

    team: str
    points: int


class Session(msgspec.Struct, frozen=True):
    """A while in which a player played without a pause."""

    user: str
    first: int
    last: int
    scores: int

    @property
    def seconds(self) -> int:
        """From the first to the last score."""
        return (self.last - self.first) // mr.SECOND
