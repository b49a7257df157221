"""Remaining: whether an injector has something that was not read yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.injectors.advance import Advances
from millrace.injectors.injector import Injector
from millrace.windmill.place import Place


def nothing_left(
    injector: Injector, places: Mapping[str, Place], held: Collection[str] = ()
) -> bool:
    """Return whether an injector would stay where it was read to, and promise nothing new.

    A follower must therefore come to every offset that :meth:`Injector.advance` gives, also where
    there is no record before it.

    Args:
        injector: Is asked for its processes, and how far each can go.
        places: Process -> where it stands; one that is not there was not read at all.
        held: Processes that are not read, for they are too far ahead of others.

    Raises:
        InputLost: What is to be read next is gone.
    """
    for process in injector.processes():
        if process in held:
            continue
        place = places.get(process, Place(0))
        standing = Advances.of(place.offset)
        if standing.ahead:
            return False
        offset, process_watermark_us = injector.advance(process, standing.start)
        if offset != standing.start:
            return False
        if process_watermark_us is not None and (
            place.process_watermark_us is None or process_watermark_us > place.process_watermark_us
        ):
            return False
    return True
