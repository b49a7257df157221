"""Ids of weak productions: made from the id of the record that caused them.

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

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.model.errors import InvariantViolation, PipelineError
from millrace.windmill.record_ids import FIRST_INJECTED, ROW_BITS

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
