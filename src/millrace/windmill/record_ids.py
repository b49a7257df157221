"""Record ids: 128 bits in two int64 halves, unique in a checkpoint and the same on every attempt.

::

    injected    stream number + 2**14 : 15 | epoch : 48     source partition : 31 | row : 33
    produced    computation number    : 15 | commit : 48    interval id : 30 | index : 33

The first half is the origin, the second the place in it, so sorting by id puts records in the order
in which their sender sent them.

Source: MillWheel 6.1.1: the system assigns unique ids to all records at production time.

Ids of weak productions: made from the id of the record that caused them.

What a weak computation sends has left before its commit is durable. After a failure user code runs
again, in bundles cut otherwise, so an id that says commit and index would be another's. What comes
again is the input, and the id of an injected record is its place in its process, however often it
is read. So a production's id is the place of the record that it was made of, and which one of those
it is; its sender is the process, as far as one task of the computation read it::

    computation : 15 | 1 : 1 | place, upper bits : 47
    stream : 10 | process : 12 | task : 8 | place, lower bits, row of the record : 16 | index : 17

Between such a sender and an interval order holds as it does for others: one task reads a process in
order, and what a turn makes of it leaves in one packet. So consumers know what they had by one
number a sender (:mod:`.channels`), and keep no ids.

Source: MillWheel 6.1.3 (weak productions); docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.model.errors import InvariantViolation, PipelineError

#: Numbers from here on, in the upper part of an origin, are of injected streams.
FIRST_INJECTED = 1 << 14
#: How many bits of the second half count rows, as in Spark's ``monotonically_increasing_id``.
ROW_BITS = 33
LAST_ROW = (1 << ROW_BITS) - 1
#: In the lower part of the origin of what live tasks inject; no epoch has that number.
LIVE_ORIGIN: Final = 1 << 47
#: How many bits say which of a live record's rows one is: steps may make many of one.
MADE_BITS: Final = 17


def record_id(origin: int, sequence: int) -> bytes:
    """Return an id's two halves as the 16 bytes that user code and sinks get."""
    return struct.pack(">qq", origin, sequence)


def injected_origin(stream: int, epoch: int) -> int:
    """Return the first half of the ids of the records that a stream gets in an epoch."""
    return ((FIRST_INJECTED + stream) << 48) | epoch


def injector_of(origins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of the injected stream that records came from; negative if from none.

    >>> injector_of(np.array([injected_origin(3, 7), (5 << 48) | 7])).tolist()
    [3, -16379]
    """
    return (origins >> 48) - FIRST_INJECTED


def production_ids(computation: int, commit: int, interval: int, count: int) -> tuple[int, range]:
    """Return the first half and the second halves of the ids of a commit's productions.

    >>> production_ids(1, 7, 0, 2)
    (281474976710663, range(0, 2))
    """
    first = interval << ROW_BITS
    return (computation << 48) | commit, range(first, first + count)


def injected_count(number: tuple[int, int]) -> int:
    """Return a record's place in its process, by the id of one of the rows that it became live.

    >>> injected_count((injected_origin(3, LIVE_ORIGIN), place(2, 5 << MADE_BITS)))
    5
    """
    low, row = number[0] & ((1 << 48) - 1) & ~LIVE_ORIGIN, number[1] & LAST_ROW
    return (low << (ROW_BITS - MADE_BITS)) | (row >> MADE_BITS)


def place_in_words(
    origin: int,
    sequence: int,
    computations: Mapping[int, str],
    streams: Mapping[int, str],
) -> str:
    """Return where a record comes from.

    Args:
        origin: The first half of its id.
        sequence: The second.
        computations: Number -> computation.
        streams: Number -> injected stream.

    >>> place_in_words(*[injected_origin(3, 7), place(2, 5)], {}, {3: "clicks"})
    "stream 'clicks', epoch 7, partition 2, row 5"
    >>> live = injected_origin(3, LIVE_ORIGIN)
    >>> place_in_words(live, place(2, 5 << MADE_BITS), {}, {3: "clicks"})
    "stream 'clicks', process number 2, record 5"
    >>> place_in_words((1 << 48) | 7, 0, {1: "Count"}, {})
    "computation 'Count', commit 7, interval 0"
    """
    number, low = origin >> 48, origin & ((1 << 48) - 1)
    part, row = sequence >> ROW_BITS, sequence & LAST_ROW
    if number < FIRST_INJECTED:
        name = computations.get(number, str(number))
        return f"computation {name!r}, commit {low}, interval {part}"
    stream = f"stream {streams.get(number - FIRST_INJECTED, '')!r}"
    if low & LIVE_ORIGIN:
        count = injected_count((origin, sequence))
        return f"{stream}, process number {part}, record {count}"
    return f"{stream}, epoch {low}, partition {part}, row {row}"


def place(partition: Any, row: Any) -> Any:
    """Return the second half of an id, given a partition of the source and a row in it."""
    return (partition << ROW_BITS) | row


#: In the origin of a weak production; no commit has such a number.
WEAK_ORIGIN: Final = 1 << 47
#: From here on, first halves are of what was injected.
_FIRST_INJECTED_ORIGIN: Final = FIRST_INJECTED << 48
_LOW_ORIGIN: Final = WEAK_ORIGIN - 1
_LOW_ROW: Final = (1 << ROW_BITS) - 1

_INDEX_BITS: Final = 17
_TASK_BITS: Final = 8
_PROCESS_BITS: Final = 12
#: How many streams, processes of one and tasks can be told apart, and productions of one record.
STREAMS_MAX: Final = 1 << 10
TASKS_MAX: Final = 1 << _TASK_BITS
_PROCESSES_MAX: Final = 1 << _PROCESS_BITS
_INDEX_MAX: Final = 1 << _INDEX_BITS
_PLACES_MAX: Final = 1 << 63

#: Both halves of an id.
Id = tuple[int, int]


def is_weak(origin: int) -> bool:
    """Return whether the first half of an id is a weak production's.

    >>> is_weak((3 << 48) | WEAK_ORIGIN | 5), is_weak((3 << 48) | 5)
    (True, False)
    """
    return origin < _FIRST_INJECTED_ORIGIN and bool(origin & WEAK_ORIGIN)


def are_weak(origins: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Do the same for many."""
    found: npt.NDArray[np.bool_] = (origins < _FIRST_INJECTED_ORIGIN) & (
        (origins & WEAK_ORIGIN) != 0
    )
    return found


def ids_of_causes(computation: int, task: int, causes: Iterable[Id]) -> tuple[list[int], list[int]]:
    """Return both halves of the ids of productions.

    Args:
        computation: Number of the computation that made them.
        task: Of the task that it runs in.
        causes: Of each, the id of the record that it was made of; injected in real time.

    Raises:
        PipelineError: A record became more productions than can be told apart, or there are more
            processes.

    >>> cause = (FIRST_INJECTED + 2 << 48) | WEAK_ORIGIN | 1, (5 << 33) | 7
    >>> origins, sequences = ids_of_causes(3, 1, [cause, cause])
    >>> [cause_of(*id) == cause for id in zip(origins, sequences)], sequences[1] - sequences[0]
    ([True, True], 1)
    """
    origins, sequences, made = list[int](), list[int](), dict[Id, int]()
    for cause in causes:
        origin, sequence = cause
        stream, process = (origin >> 48) - FIRST_INJECTED, sequence >> ROW_BITS
        if stream < 0 or not origin & WEAK_ORIGIN:
            raise InvariantViolation(f"a weak production was made of {cause}, which no process has")
        place = (origin & _LOW_ORIGIN) << ROW_BITS | sequence & _LOW_ROW
        nth = made[cause] = made.get(cause, -1) + 1
        if nth >= _INDEX_MAX or process >= _PROCESSES_MAX or place >= _PLACES_MAX:
            raise PipelineError(
                f"process {process} of an injector is read by a computation with weak productions, "
                f"which made {nth + 1:,} of the row at place {place:,}. At most {_INDEX_MAX:,} of "
                f"one row and {_PROCESSES_MAX:,} processes can be told apart. Give the computation "
                "productions=mr.STRONG."
            )
        number = place << _INDEX_BITS | nth
        sender = (stream << _PROCESS_BITS | process) << _TASK_BITS | task
        origins.append(computation << 48 | WEAK_ORIGIN | number >> ROW_BITS)
        sequences.append(sender << ROW_BITS | number & _LOW_ROW)
    return origins, sequences


def cause_of(origin: int, sequence: int) -> Id:
    """Return the id of the record that a weak production with such an id was made of."""
    sender = sequence >> ROW_BITS >> _TASK_BITS
    stream, process = sender >> _PROCESS_BITS, sender & (_PROCESSES_MAX - 1)
    place = ((origin & _LOW_ORIGIN) << ROW_BITS | sequence & _LOW_ROW) >> _INDEX_BITS
    return (
        FIRST_INJECTED + stream << 48 | WEAK_ORIGIN | place >> ROW_BITS,
        process << ROW_BITS | place & _LOW_ROW,
    )
