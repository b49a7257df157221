"""Follower: reads some processes of an injector for as long as a task of the real-time plane lives.

Source: MillWheel, "Injector and Low Watermark API" (5.2);
docs/design/2026-11-22-the-real-time-plane.md, "Injectors".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: About how many bytes are taken at once.
ROOM = 4 << 20
#: Up to here what lies around rows is taken for part of them.
_LITTLE = 64 << 10


def about_bytes(rows: pa.RecordBatch) -> int:
    """Return about how many bytes rows have, in little time where that is little.

    >>> about_bytes(pa.RecordBatch.from_pydict({"n": range(1 << 20)}).slice(5, 10_000))
    80000
    """
    around = rows.get_total_buffer_size()
    return int(around if around <= _LITTLE else rows.nbytes)


class Taken(NamedTuple):
    """Rows that were taken of one process, and where that stands after them.

    Attributes:
        process: Its name.
        rows: With the columns of the injector's schema; there may be none.
        offset: Where to go on after these rows. Anything that JSON can say.
        first: The number of the first row where the source counts its rows itself and these are
            consecutive; None where they are counted as they come, or ``numbers`` has them.
        numbers: The numbers of the rows, ascending, where the source's own have gaps; else None.
        low_watermark: What the process promises after these rows, in microseconds; None: nothing
            new.
        decided: What must be durable before more is taken, so that after a failure the same is read
            in the same order: see :func:`~millrace.injectors.advance.along`. None: nothing.
    """

    process: str
    rows: pa.RecordBatch
    offset: Any
    first: int | None = None
    numbers: npt.NDArray[np.int64] | None = None
    low_watermark: int | None = None
    decided: Any = None

    def places(self, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows, where ``count`` is the next of rows that are counted."""
        if self.numbers is not None:
            return self.numbers
        first = count if self.first is None else self.first
        return np.arange(first, first + self.rows.num_rows, dtype=np.int64)


class Follower(Protocol):
    """Reads on and on; asked by one thread. What it raises ends the task."""

    def take(self, wait_s: float) -> list[Taken]:
        """Return what there is, in order by process; wait for it if there is nothing.

        It is limited in rows and bytes, so that a backlog does not come at once.

        Args:
            wait_s: How long to wait at the most. An empty list is returned if nothing came.

        Raises:
            InputLost: What is to be read is gone.
        """
        ...

    def hold(self, processes: Collection[str]) -> None:
        """Take nothing of these processes from now on, and of all others again."""
        ...

    def limit(self, most: int) -> None:
        """Take no more rows at once from now on, however many they were."""
        ...

    def close(self) -> None:
        """Give connections and files back."""
        ...
