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
from typing import Any

import numpy as np
import numpy.typing as npt

#: Numbers from here on, in the upper part of an origin, are of injected streams.
FIRST_INJECTED = 1 << 14
#: How many bits of the second half count rows, as in Spark's ``monotonically_increasing_id``.
ROW_BITS = 33
LAST_ROW = (1 << ROW_BITS) - 1


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


def place(partition: Any, row: Any) -> Any:
    """Return the second half of an id, given a partition of the source and a row in it."""
    return (partition << ROW_BITS) | row
