"""Record ids: 128 bits in two int64 halves, unique in a checkpoint and the same on every attempt.

::

    injected    stream number + 2**14 : 15 | epoch : 48     source partition : 31 | row : 33
    produced    computation number    : 15 | commit : 48    interval id : 30 | index : 33

The first half is the origin, the second the place in it, so sorting by id puts records in the order
in which their sender sent them.

Source: MillWheel 6.1.1: the system assigns unique ids to all records at production time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
