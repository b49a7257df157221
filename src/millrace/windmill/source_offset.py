"""Source offset: how far a process of an injector was read, where Millrace keeps the offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class SourceOffset(msgspec.Struct, frozen=True):
    """How far a process of an injector was read.

    Attributes:
        number: Of the process among those of its stream, from 0; it is never given again.
        offset: Where to go on reading; None at the beginning. Anything that JSON can say.
        count: The number of the next record: how many came before, or what the source says.
        process_watermark_us: What the process has promised; None if nothing.
    """

    number: int
    offset: Any = None
    count: int = 0
    process_watermark_us: int | None = None


def places_after(
    known: Mapping[str, Mapping[str, SourceOffset]],
    reached: Mapping[str, Mapping[str, tuple[Any, int | None]]],
) -> dict[str, dict[str, SourceOffset]]:
    """Return the places of processes that an epoch has read.

    Its records were numbered by epoch, so what live tasks count goes on where it was.

    Args:
        known: Injected stream -> process -> its place before.
        reached: Injected stream -> process -> offset, and what it has promised.

    >>> after = places_after(
    ...     {"s": {"a": SourceOffset(0, 5, 70)}}, {"s": {"a": (9, None), "b": (1, None)}}
    ... )
    >>> [(place.number, place.offset, place.count) for place in after["s"].values()]
    [(0, 9, 70), (1, 1, 0)]
    """
    found: dict[str, dict[str, SourceOffset]] = {}
    for stream, processes in reached.items():
        places = dict(known.get(stream, {}))
        following = 1 + max((place.number for place in places.values()), default=-1)
        for name, (offset, process_watermark_us) in sorted(processes.items()):
            place = places.get(name)
            if place is None:
                place, following = SourceOffset(following), following + 1
            found.setdefault(stream, {})[name] = SourceOffset(
                place.number, offset, place.count, process_watermark_us
            )
    return found
