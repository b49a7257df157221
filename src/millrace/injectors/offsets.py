"""Offsets of an injector's processes: what the next epoch reads, and in which pieces.

They are plain data, written down by whoever runs the injector before anything is read: on Spark in
the offset log of Structured Streaming.

Remaining: whether an injector has something that was not read yet.

Source offset: how far a process of an injector was read, where Millrace keeps the offsets.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from millrace.injectors.advance import Advances, is_within, process_watermark
from millrace.injectors.injector import Injector
from millrace.model.time import MAX_TIMESTAMP, Instant


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


#: Injected stream -> process of its injector -> how far it was read.
SourceOffsets = Mapping[str, Mapping[str, SourceOffset]]


def offsets_after(
    known: SourceOffsets,
    reached: Mapping[str, Mapping[str, tuple[Any, int | None]]],
) -> dict[str, dict[str, SourceOffset]]:
    """Return the offsets of processes that an epoch has read.

    Its records were numbered by epoch, so what live tasks count goes on where it was.

    Args:
        known: Injected stream -> process -> its offset before.
        reached: Injected stream -> process -> offset, and what it has promised.

    >>> after = offsets_after(
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


def over(offsets: Mapping[str, SourceOffset], listed: Container[str]) -> set[str]:
    """Return the processes of a stream of which nothing can come any more: they have ended.

    The last one stays: the number of one that is new is after its, so that none is given twice.

    Args:
        offsets: Of all processes that are known.
        listed: Names of those that are to stay, as they are there.

    >>> ended = {name: SourceOffset(n, 5, 5, MAX_TIMESTAMP) for n, name in enumerate("abcd")}
    >>> sorted(over(ended | {"e": SourceOffset(4)}, {"b"})), sorted(over(ended, {"b"}))
    (['a', 'c', 'd'], ['a', 'c'])
    """
    last = max((offset.number for offset in offsets.values()), default=-1)
    return {
        name
        for name, offset in offsets.items()
        if offset.process_watermark_us == MAX_TIMESTAMP
        and offset.number != last
        and name not in listed
        and not is_within(offset.offset)
    }


#: Process -> [offset, the low watermark that it promises there or None].
Offsets = dict[str, list[Any]]

#: Columns that follow those of the injector's schema: what the process of a row promises, and
#: whether the row is no record.
PROMISE = "_low_watermark"
PUNCTUATION = "_punctuation"

#: The column of a row that stands for a piece.
PIECE_DDL = "piece binary"


class Piece(NamedTuple):
    """What one task reads of a process: rows between two offsets, if any, then a promise, if any.

    Attributes:
        process: Its name.
        between: The offsets (start, end); None if there is nothing to read.
        process_watermark_us: What the process promises after it.
        last: Whether it is the last of its process in the epoch.
        number: Of those of the injector that the epoch reads, from 0: with the row in it a
            record's place in the source.
        reached: Of the last: the offset of the process after the epoch.
    """

    process: str
    between: tuple[Any, Any] | None
    process_watermark_us: int | None
    last: bool
    number: int = 0
    reached: Any = None


def advanced(
    name: str,
    injector: Injector,
    start: Offsets,
    held_back: Collection[str],
    processes: Iterable[str] | None = None,
) -> Offsets:
    """Return the offsets at which the next epoch ends.

    Args:
        name: Of the injected stream, for messages.
        injector: The injector.
        start: Where it begins.
        held_back: Processes that must stay where they are.
        processes: Those that there are now; None: the injector is asked.

    Raises:
        WatermarkRegression: A process promises less than before.
    """
    found = dict(start)
    for process in injector.processes() if processes is None else processes:
        offset, before_us = start.get(process, (None, None))
        if process in held_back:
            continue
        advance = injector.advance(process, offset)
        who = f"injector of {name!r}"
        process_watermark_us = process_watermark(who, process, advance.low_watermark, before_us)
        found[process] = [advance.offset, process_watermark_us]
    return found


def pieces(injector: Injector, start: Offsets, end: Offsets) -> list[Piece]:
    """Return what has to be read between two states, and what the processes then promise."""
    found, number = list[Piece](), 0
    for process, (offset, process_watermark_us) in end.items():
        begun, before_us = start.get(process, (None, None))
        if process in start and (begun, before_us) == (offset, process_watermark_us):
            continue
        between = [] if begun == offset else list(injector.split(process, begun, offset))
        for one in between[:-1]:
            found.append(Piece(process, one, None, last=False, number=number))
            number += 1
        last = between[-1] if between else None
        found.append(
            Piece(process, last, process_watermark_us, last=True, number=number, reached=offset)
        )
        number += last is not None
    return found


def packed_piece(stream: str, piece: Piece) -> bytes:
    """Return a piece as a row has it. Written by the driver of a run, read by its own tasks."""
    return pickle.dumps((stream, piece))


def unpacked_piece(packed: bytes) -> tuple[str, Piece]:
    """Return the injected stream and the piece of a row."""
    stream, piece = pickle.loads(packed)
    return stream, piece


def pieces_until_now(
    name: str, injector: Injector, before: Instant | None = None
) -> Iterator[Piece]:
    """Yield what has to be read of an injector from its beginning to where it ends now.

    Args:
        name: Of the injected stream, for messages.
        injector: The injector.
        before: To go only as far as what was written before this instant.

    Raises:
        WatermarkRegression: A process promises less than before.
        PipelineError: A process has no end, or the instant cannot be told.
    """
    number = 0
    for process in injector.processes():
        start, process_watermark_us = None, None
        for advance in injector.until_now(process, before):
            who = f"injector of {name!r}"
            process_watermark_us = process_watermark(
                who, process, advance.low_watermark, process_watermark_us
            )
            if advance.offset != start:
                for between in injector.split(process, start, advance.offset):
                    yield Piece(process, between, None, last=False, number=number)
                    number += 1
            start = advance.offset
        yield Piece(process, None, process_watermark_us, last=True, number=number, reached=start)


def nothing_left(
    injector: Injector, offsets: Mapping[str, SourceOffset], paused: Collection[str] = ()
) -> bool:
    """Return whether an injector would stay where it was read to, and promise nothing new.

    A follower must therefore come to every offset that :meth:`Injector.advance` gives, also where
    there is no record before it.

    Args:
        injector: Is asked for its processes, and how far each can go.
        offsets: Process -> where it stands; one that is not there was not read at all.
        paused: Processes that are not read, for they are too far ahead of others.

    Raises:
        InputLost: What is to be read next is gone.
    """
    for process in injector.processes():
        if process in paused:
            continue
        place = offsets.get(process, SourceOffset(0))
        advances = Advances.of(place.offset)
        if advances.ahead:
            return False
        offset, process_watermark_us = injector.advance(process, advances.start)
        if offset != advances.start:
            return False
        if process_watermark_us is not None and (
            place.process_watermark_us is None or process_watermark_us > place.process_watermark_us
        ):
            return False
    return True
