"""Backlog: what waits in a source, and was not read yet.

Source: MillWheel, "Injector and Low Watermark API" (5.2): an injector knows what it has not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Backlog(NamedTuple):
    """What waits in a source and was not read yet; about, and of none of it more than it knows.

    Attributes:
        records: How many records; None if the source cannot tell.
        files: How many files of which something was not read; None where there are none to count.
        size: How many bytes, as they lie there; None if the source cannot tell.

    >>> Backlog.together([Backlog(records=5), Backlog(records=2, size=80)])
    Backlog(records=7, files=None, size=None)
    """

    records: int | None = None
    files: int | None = None
    size: int | None = None

    @classmethod
    def together(cls, parts: Iterable[Backlog]) -> Backlog:
        """Return what several processes have together; what one cannot tell, all cannot."""
        return cls(*map(_sum, zip(*parts, strict=True)))


NO_BACKLOG = Backlog()


def _sum(values: tuple[int | None, ...]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
