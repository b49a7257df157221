"""A handful of rows of the wire, as plain columns.

For a few rows the calls to Arrow and NumPy cost more than all else, however short the columns. So
what live tasks send one another in small turns never becomes a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.plane import wire

#: Up to so many rows are a handful.
FEW: Final = 64
#: Bytes of keys and values up to which they are.
LIGHT: Final = 1 << 20


class Handful(msgspec.Struct, array_like=True):
    """Rows of the wire for one task, as columns of equal length; none of partials.

    Attributes:
        edges: Number of the edge that each row travels.
        hashes: Unsigned hash of each key; 0 on the way to a sink.
        keys: Encoded keys; empty if there is none.
        values: Encoded values.
        timestamps: Event times in microseconds.
        origins: First half of the ids.
        sequences: Second half.
    """

    edges: list[int] = []
    hashes: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    timestamps: list[int] = []
    origins: list[int] = []
    sequences: list[int] = []

    def __len__(self) -> int:
        return len(self.edges)

    def where(self, flags: Sequence[Any]) -> Handful:
        """Return the rows whose flags are true.

        >>> two = Handful([7, 8], [1, 2], [b"a", b"b"], [b"", b""], [3, 4], [5, 5], [0, 1])
        >>> two.where([False, True]).keys
        [b'b']
        """
        return Handful(*(list(compress(column, flags)) for column in self._columns()))

    @classmethod
    def together(cls, some: Sequence[Handful]) -> Handful:
        """Return several as one."""
        if len(some) == 1:
            return some[0]
        made = cls()
        for one in some:
            for column, more in zip(made._columns(), one._columns(), strict=True):
                column += more
        return made

    def batch(self, task: int) -> pa.RecordBatch:
        """Return the rows as a batch of the wire's schema, for a task."""
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(len(self), task, np.int32)),
                pa.array(self.edges, pa.int32()),
                pa.array(np.array(self.hashes, np.uint64).view(np.int64)),
                pa.array(self.keys, pa.binary()),
                pa.array(self.values, pa.binary()),
                pa.array(self.timestamps, pa.int64()),
                pa.array(self.origins, pa.int64()),
                pa.array(self.sequences, pa.int64()),
            ],
            schema=wire.SCHEMA,
        )

    def _columns(self) -> tuple[list[Any], ...]:
        return (
            self.edges, self.hashes, self.keys, self.values, self.timestamps, self.origins,
            self.sequences,
        )  # fmt: skip


def is_light(keys: Iterable[bytes], values: Iterable[bytes]) -> bool:
    """Return whether rows with these keys and values may be a handful, however few they are."""
    return sum(map(len, values)) + sum(map(len, keys)) <= LIGHT
