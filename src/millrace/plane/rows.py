"""Rows: encoded records on edges, on their way between the tasks of two levels.

Few rows are lists, many are columns of Arrow: for a few the calls to Arrow and NumPy cost more than
all else, however short the columns. Which they are is decided here, when they are made and when
several are joined; whoever has rows asks for what it needs of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.plane import wire
from millrace.plane.packet import parts_by_task

#: Up to so many rows are few. A turn of one record takes a third of the CPU time that it takes in
#: Arrow, one of 50 six tenths (docs/design/2026-11-27-rows-and-bundle.md).
FEW: Final = 64
#: Bytes of keys and values up to which they are.
LIGHT: Final = 1 << 20


def are_few(count: int, *columns: list[bytes]) -> bool:
    """Return whether so many rows are few, with these keys and values."""
    return count <= FEW and sum(sum(map(len, column)) for column in columns) <= LIGHT


class RowColumns(msgspec.Struct, array_like=True, tag=1):
    """Columns of few rows, as lists of equal length; none of partials.

    Attributes:
        tasks: Number of the task that each row goes to.
        edges: Number of the edge that it travels.
        hashes: Unsigned hash of its key; 0 on the way to a sink.
        keys: Encoded keys; empty if there is none.
        values: Encoded values.
        timestamps: Event times in microseconds.
        origins: First half of the ids.
        sequences: Second half.
    """

    tasks: list[int] = []
    edges: list[int] = []
    hashes: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    timestamps: list[int] = []
    origins: list[int] = []
    sequences: list[int] = []

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.values)) + sum(map(len, self.keys))

    def where(self, flags: Sequence[Any]) -> RowColumns:
        """Return the rows whose flags are true.

        >>> two = RowColumns(
        ...     [0] * 2, [7, 8], [1, 2], [b"a", b"b"], [b"", b""], [3, 4], [5, 5], [0, 1]
        ... )
        >>> two.where([False, True]).keys
        [b'b']
        """
        return RowColumns(*(list(compress(column, flags)) for column in self._columns()))

    @classmethod
    def joined(cls, parts: Sequence[RowColumns]) -> RowColumns:
        """Return several as one."""
        if len(parts) == 1:
            return parts[0]
        whole = cls()
        for part in parts:
            for column, more in zip(whole._columns(), part._columns(), strict=True):
                column += more
        return whole

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a batch of the wire's schema."""
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.tasks, pa.int32()),
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
            self.tasks, self.edges, self.hashes, self.keys, self.values, self.timestamps,
            self.origins, self.sequences,
        )  # fmt: skip


class EdgeSet:
    """Some edges, as rows are asked whether they travel one of them.

    Args:
        mask: By number of an edge, whether it is one of them.
    """

    __slots__ = ("_mask", "numbers")

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.numbers: frozenset[int] = frozenset(np.flatnonzero(mask).tolist())
        self._mask = mask

    def mask(self, edges: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return of each row whether it travels one of them, or is no record."""
        known: npt.NDArray[np.int32] = np.maximum(wire.plain(edges), 0)
        return (edges < 0) | self._mask[known]


class Rows:
    """Rows on edges, each with the task that it goes to, in order.

    Args:
        form: Few rows as lists, or many as a batch or table: of the wire's schema, or of a native
            source, with its columns.
    """

    __slots__ = ("_arrow", "few")

    def __init__(self, form: RowColumns | pa.RecordBatch | pa.Table) -> None:
        #: The rows as lists; None if they are many.
        self.few: RowColumns | None = form if isinstance(form, RowColumns) else None
        self._arrow: Any = form  # where they are many

    def __len__(self) -> int:
        return len(self.few) if self.few is not None else int(self._arrow.num_rows)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return several as one, in their order; few together only if all are."""
        if len(parts) < 2:
            return parts[0] if parts else NO_ROWS
        few = [part.few for part in parts if part.few is not None]
        if len(few) == len(parts) and are_few(sum(map(len, few))):
            return cls(RowColumns.joined(few))
        return cls(wire.together([part.batch() for part in parts]))

    def batch(self) -> Any:
        """Return the rows in Arrow: a batch, or a table of what was joined."""
        return self._arrow if self.few is None else self.few.batch()

    def table(self) -> pa.Table:
        """Return the rows as a table."""
        rows = self.batch()
        return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])

    def parted(self, edges: EdgeSet) -> tuple[Rows, Rows]:
        """Return the rows on some edges, with those that are no records, and the others.

        The others have the columns of the wire only.
        """
        if self.few is not None:
            if edges.numbers.issuperset(self.few.edges):
                return self, NO_ROWS
            flags = [edge in edges.numbers for edge in self.few.edges]
            if not any(flags):
                return NO_ROWS, self
            left = self.few.where([not flag for flag in flags])
            return Rows(self.few.where(flags)), Rows(left)
        mask = edges.mask(self._arrow.column("edge").to_numpy())
        if mask.all():
            return self, NO_ROWS
        others = Rows(wire.where(self._arrow, ~mask).select(wire.COLUMNS))
        return (Rows(wire.where(self._arrow, mask)) if mask.any() else NO_ROWS), others

    def combined_edges(self) -> set[int]:
        """Return the edges on which some of the rows are partials."""
        if self.few is not None:
            return set()
        edges = self._arrow.column("edge").to_numpy()
        partial = (edges >= 0) & (edges != wire.plain(edges))
        return {wire.plain(number) for number in set(edges[partial].tolist())}

    def by_task(self) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of each task, in their order."""
        if self.few is None:
            for task, part in parts_by_task(self._arrow):
                yield task, Rows(part)
            return
        tasks = self.few.tasks
        if not tasks:
            return
        if tasks.count(tasks[0]) == len(tasks):
            yield tasks[0], self
            return
        for task in sorted({*tasks}):
            yield task, Rows(self.few.where([one == task for one in tasks]))


NO_ROWS: Final = Rows(RowColumns())
