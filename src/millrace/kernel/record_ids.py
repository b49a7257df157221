"""Ids of records: the engine's own, and those that sources give.

**Record ids** are 128 bits in two int64 halves, unique in a checkpoint and the same on every
attempt::

    injected    stream number + 2**14 : 15 | epoch : 48     source partition : 31 | row : 33
    produced    computation number    : 15 | commit : 48    interval id : 30 | index : 33

The first half is the origin, the second the place in it, so sorting by id puts records in the order
in which their sender sent them.

Source: MillWheel 6.1.1: the system assigns unique ids to all records at production time.

**Ids of weak productions** are made from the id of the record that caused them. Productions of a
weak computation leave before its commit is durable. After a failure user code runs again, in other
bundles, so an id of commit and index could name another production. But the same input is read
again, and the id of an injected record is its offset in its process, however often it is read. So a
production's id consists of the offset of its cause, and its index among the productions of that
record. Its sender is the process, as far as one task of the computation read it::

    computation : 15 | 1 : 1 | place, upper bits : 47
    stream : 10 | process : 12 | task : 8 | place, lower bits, row of the record : 16 | index : 17

Between such a sender and an interval order holds as it does for others: one task reads a process in
order, and what a turn makes of it leaves in one packet. So consumers know what they had by one
number a sender (:mod:`.channels`), and keep no ids.

Source: MillWheel 6.1.3 (weak productions); docs/design/2026-11-22-weak-productions-in-real-time.md.

**Source ids** are what an injector's id column becomes on its way to those who filter duplicates.
An id of any length is a *fingerprint* of 128 bits from where the source is read, made by Spark or,
in the Harness, here. Two ids with one fingerprint would be taken for one: for a billion live ids
the odds are 1 in 10**21, and SHA-256 leaves nobody a way to make such a pair. On the wire it stands
before the value of a record, on edges where somebody wants it; records that were not injected with
an id carry none, and their origin says so.

Source: MillWheel 6.1.1 ("a Bloom filter of known record fingerprints"); docs/architecture.md,
"Record ids".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from millrace.model.errors import InvariantViolation, PipelineError
from millrace.model.keys import encode_key
from millrace.model.time import MAX_TIMESTAMP

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
    weak: npt.NDArray[np.bool_] = (origins < _FIRST_INJECTED_ORIGIN) & (
        (origins & WEAK_ORIGIN) != 0
    )
    return weak


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
    origins, sequences, counts = list[int](), list[int](), dict[Id, int]()
    for cause in causes:
        origin, sequence = cause
        stream, process = (origin >> 48) - FIRST_INJECTED, sequence >> ROW_BITS
        if stream < 0 or not origin & WEAK_ORIGIN:
            raise InvariantViolation(f"a weak production was made of {cause}, which no process has")
        place = (origin & _LOW_ORIGIN) << ROW_BITS | sequence & _LOW_ROW
        nth = counts[cause] = counts.get(cause, -1) + 1
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


FINGERPRINT_BYTES = 16
#: The fingerprint of a record that has no id: a refused one, on its way to be a dead letter.
NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)

#: The first half of a fingerprint is left alone, the second differs from stream to stream and, for
#: the records that a step made of one, from record to record.
_SECOND = slice(8, 16)
_WRAP = (1 << 64) - 1

Halves = npt.NDArray[np.uint64]


def fingerprint(id: Any) -> bytes:
    """Return the fingerprint of an id: of its encoding as a key, so ``5`` and ``"5"`` are two.

    >>> fingerprint("event-1").hex()
    'a945a389aa4b0da955ab596c6ede1d6a'
    """
    return hashlib.sha256(encode_key(id)).digest()[:FINGERPRINT_BYTES]


def null_id(column: str) -> str:
    """Return why a record without an id is refused."""
    return f"the id, column {column!r}, is null"


def nth(fingerprint: bytes, n: int) -> bytes:
    """Return the fingerprint of the n-th record that steps made of one, for one consumer.

    >>> nth(bytes([7] * 16), 2).hex()
    '07070707070707070707070707070709'
    """
    if n == 0 or fingerprint == NO_FINGERPRINT:
        return fingerprint
    second = (int.from_bytes(fingerprint[_SECOND], "big") + n) & _WRAP
    return fingerprint[:8] + second.to_bytes(8, "big")


class SourceIds:
    """The source ids of some records, as columns.

    Attributes:
        halves: uint64, one row of two a record: the fingerprint, as this stream has it. Zeros where
            a record has no id.
        slack_us: int64: how long past the timestamp an id is kept; -1 where a record has none.
    """

    __slots__ = ("halves", "slack_us")

    def __init__(self, halves: Halves, slack_us: npt.NDArray[np.int64]) -> None:
        self.halves = halves
        self.slack_us = slack_us

    @classmethod
    def of(
        cls,
        scope: str,
        fingerprints: bytes,
        origins: npt.NDArray[np.int64],
        slacks: Mapping[int, int],
    ) -> SourceIds:
        """Return the ids of records that came by one edge.

        Args:
            scope: Of the ids on that edge.
            fingerprints: Of all records, 16 bytes each.
            origins: Of all records.
            slacks: Number of an injector with ids -> its slack in microseconds.
        """
        halves = np.frombuffer(fingerprints, dtype=">u8").astype(np.uint64).reshape(-1, 2)
        slack_us = np.full(len(halves), -1, dtype=np.int64)
        injectors = injector_of(origins)
        for number, us in slacks.items():
            slack_us[injectors == number] = us
        slack_us[(halves == 0).all(axis=1)] = -1
        halves[:, 1] ^= np.uint64(xxhash.xxh64_intdigest(scope.encode()))
        halves[slack_us < 0] = 0
        return cls(halves, slack_us)

    @classmethod
    def none(cls, count: int) -> SourceIds:
        """Return the ids of records that have none."""
        return cls(np.zeros((count, 2), dtype=np.uint64), np.full(count, -1, dtype=np.int64))

    @classmethod
    def concat(cls, parts: Sequence[SourceIds]) -> SourceIds:
        """Return several lots as one."""
        return cls(
            np.concatenate([part.halves for part in parts]),
            np.concatenate([part.slack_us for part in parts]),
        )

    def take(self, positions: Any) -> SourceIds:
        """Return the ids at some positions, or of a slice."""
        return SourceIds(self.halves[positions], self.slack_us[positions])

    def present(self) -> npt.NDArray[np.bool_]:
        """Return which records have an id."""
        return self.slack_us >= 0

    def halves_over(
        self, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the halves of the records' ids: their source's, or what they were numbered by."""
        halves, present = self.halves.view(np.int64), self.present()
        return (
            np.where(present, halves[:, 0], origins),
            np.where(present, halves[:, 1], sequences),
        )

    def expiries_us(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the low watermarks at which the ids may be forgotten, of records with an id.

        They are rounded up, by a sixteenth of the slack or a second, so that ids expire by the lot.
        At its expiry an id's record would be late if it came again.
        """
        step_us = np.maximum(self.slack_us // 16, 1_000_000)
        at_us = timestamps + self.slack_us + step_us
        return np.minimum(at_us - at_us % step_us, MAX_TIMESTAMP)


def unseal(
    scope: str,
    values: list[bytes],
    origins: npt.NDArray[np.int64],
    slacks: Mapping[int, int],
) -> tuple[list[bytes], SourceIds]:
    """Return the values that came by an edge with source ids, and the ids, parted."""
    injectors = injector_of(origins)
    sealed = np.isin(injectors, list(slacks))
    size = FINGERPRINT_BYTES
    if sealed.all():
        prefixes = b"".join([value[:size] for value in values])
        return [value[size:] for value in values], SourceIds.of(scope, prefixes, origins, slacks)
    flags = sealed.tolist()
    prefixes = b"".join(
        [v[:size] if flag else NO_FINGERPRINT for v, flag in zip(values, flags, strict=True)]
    )
    plain = [v[size:] if flag else v for v, flag in zip(values, flags, strict=True)]
    return plain, SourceIds.of(scope, prefixes, origins, slacks)
