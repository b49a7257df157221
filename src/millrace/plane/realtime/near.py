"""Whole numbers that lie near each other, as their differences from the lowest."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: So many zeros may end the differences; a record's place has those bits for itself.
_ZEROS: Final = 17

#: The lowest value, and by how many bits the differences from it are shifted.
Near = tuple[int, int]
Wholes = npt.NDArray[np.int64]


def differences(values: Wholes) -> tuple[pa.Array, Near] | None:
    """Return the differences in as few bytes as they need, and how; None if they need many.

    >>> differences(np.array([1 << 40, (1 << 40) + 7]))
    (<pyarrow.lib.UInt16Array object at ...>
    [
      0,
      7
    ], (1099511627776, 0))
    """
    lowest = int(values.min())
    # As a number without a sign it is true, however far apart they are.
    far = (values - lowest).view(np.uint64)
    zeros = 0 if (far & np.uint64((1 << _ZEROS) - 1)).any() else _ZEROS
    far >>= np.uint64(zeros)
    most = int(far.max())
    if most >= 1 << 32:
        return None
    return pa.array(far.astype(np.uint16 if most < 1 << 16 else np.uint32)), (lowest, zeros)


def values_of(differences: pa.Array, near: Near) -> Wholes:
    """Return the values again."""
    lowest, zeros = near
    values: Wholes = differences.to_numpy().astype(np.int64)
    values <<= zeros
    values += lowest
    return values
