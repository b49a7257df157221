"""Rows: encoded records on edges, on their way between the tasks of two levels.

The outbox of a task gathers what was produced, with ids and the tasks that rows go to. Few rows are
lists, many are columns of Arrow: for a few the calls to Arrow and NumPy cost more than all else,
however short the columns. Which they are is decided here, when they are made and when several are
joined; whoever has rows asks for what it needs of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernel.record_ids import production_ids
from millrace.kernel.results import IntervalResult
from millrace.kernel.router import RowsBuilder
from millrace.model.errors import PipelineError
from millrace.runtime import wire
from millrace.runtime.wire import parts_by_task
from millrace.runtime.worker_process import Task
from millrace.watermark.intervals import IntervalMap

#: Up to so many rows are few. A turn of one record takes a third of the CPU time that it takes in
#: Arrow, one of 50 six tenths (docs/design/2026-11-27-rows-and-bundle.md).
FEW: Final = 64
#: Bytes of keys and values up to which they are.
LIGHT: Final = 1 << 20


def are_few(count: int, *columns: list[bytes]) -> bool:
    """Return whether so many rows are few, with these keys and values."""
    if count > FEW:
        return False
    size = 0
    for column in columns:
        size += sum(map(len, column))
    return size <= LIGHT


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

    Attributes:
        few: The rows as lists; None if they are many.
        count: How many there are.
    """

    __slots__ = ("_arrow", "count", "few")

    def __init__(self, form: RowColumns | pa.RecordBatch | pa.Table) -> None:
        self.few: RowColumns | None = None
        self._arrow: Any = None
        if isinstance(form, RowColumns):
            self.few, self.count = form, len(form.edges)
        else:
            self._arrow, self.count = form, int(form.num_rows)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return several as one, in their order; few together only if all are."""
        if len(parts) < 2:
            return parts[0] if parts else NO_ROWS
        few = [part.few for part in parts if part.few is not None]
        if len(few) == len(parts) and are_few(sum(part.count for part in parts)):
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
        partial = (edges >= 0) & wire.are_lifted(edges)
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
            yield task, Rows(self.few.where([receiver == task for receiver in tasks]))


NO_ROWS: Final = Rows(RowColumns())

_Ints = npt.NDArray[np.int64]
#: One half of the ids of some rows: first halves may be one, second ones follow each other.
_Firsts = int | list[int] | _Ints
_Seconds = range | list[int] | _Ints


class Outbox:
    """Gathers rows of builders, gives them ids, and says which task each goes to.

    Args:
        task: Its manifest's interval maps say which task owns a key. Rows for a sink go on with the
            task's own number: whoever has them passes them on. For a sink that the epoch does not
            know, none do: those of other attempts' commits would be missing.
        once: Of what goes to every key interval, to send one copy to each task: in a batch a task
            has one table.
    """

    def __init__(self, task: Task, *, once: bool = False) -> None:
        self._topology = task.topology
        self._manifest = task.manifest
        self._tasks = task.tasks
        self._own = task.number % self._tasks
        self._all = RowsBuilder()
        self._ids: list[tuple[_Firsts, _Seconds]] = []
        self._maps: dict[int, IntervalMap | None] = {}
        self._everywhere = {
            edge.number: self._firsts(str(edge.computation), once=once)
            for edge in task.topology.edges
            if edge.everywhere
        }
        begun = task.manifest.edges
        self._later = [
            edge.number
            for edge in self._topology.edges
            if begun is not None and edge.number not in begun
        ]

    def __len__(self) -> int:
        return len(self._all)

    def add(self, productions: RowsBuilder, origin: int, sequences: range) -> None:
        """Take rows of one origin."""
        self._add(productions, origin, sequences)

    def add_all(self, productions: RowsBuilder, origins: _Firsts, sequences: _Seconds) -> None:
        """Take rows with their ids."""
        self._add(productions, origins, sequences)

    def add_result(self, result: IntervalResult, productions: RowsBuilder) -> int:
        """Take what a commit produced, with the ids that its rows have; return how many."""
        count = len(productions.edges)
        if not count:
            return 0
        if productions.ids is not None:
            self._add(productions, *productions.ids)
        else:
            number = self._topology.computation(result.computation).number
            self._add(productions, *production_ids(number, result.number, result.interval, count))
        return count

    def _add(self, productions: RowsBuilder, origins: _Firsts, sequences: _Seconds) -> None:
        if not productions.edges:
            return
        if self._everywhere and not self._everywhere.keys().isdisjoint(productions.edges):
            productions, origins, sequences = self._copied(productions, origins, sequences)
        pending = self._all
        pending.edges += productions.edges
        pending.hashes += productions.hashes
        pending.keys += productions.keys
        pending.values += productions.values
        pending.timestamps += productions.timestamps
        self._ids.append((origins, sequences))

    def _firsts(self, computation: str, *, once: bool) -> list[int]:
        """Return the hashes under which copies go to every interval of a computation."""
        intervals = self._manifest.interval_map(computation)
        firsts = [interval.start for interval in intervals.intervals]
        if not once:
            return firsts
        tasks = intervals.task_of(np.array(firsts, np.uint64), self._tasks).tolist()
        return [first for n, first in enumerate(firsts) if n == 0 or tasks[n] != tasks[n - 1]]

    def _copied(
        self, productions: RowsBuilder, origins: _Firsts, sequences: _Seconds
    ) -> tuple[RowsBuilder, _Ints, _Ints]:
        """Return rows and ids, with a copy for each interval of those that go to all."""
        builder, copies_of = RowsBuilder(), list[int]()
        for n, (edge, hash) in enumerate(zip(productions.edges, productions.hashes, strict=True)):
            hashes = self._everywhere.get(edge, [hash])
            builder.hashes += hashes
            copies_of += [n] * len(hashes)
        builder.edges = [productions.edges[n] for n in copies_of]
        builder.keys = [productions.keys[n] for n in copies_of]
        builder.values = [productions.values[n] for n in copies_of]
        builder.timestamps = [productions.timestamps[n] for n in copies_of]
        if isinstance(origins, int):
            origins = np.full(len(productions), origins, np.int64)
        return builder, _array(origins)[copies_of], _array(sequences)[copies_of]

    def rows(self) -> list[Rows]:
        """Return what was gathered since: one lot of rows, or none."""
        pending = self._all
        if not pending.edges:
            return []
        self._all, ids, self._ids = RowsBuilder(), self._ids, []
        make = (
            self._few if are_few(len(pending.edges), pending.keys, pending.values) else self._many
        )
        rows = make(pending, ids)
        return [rows] if rows.count else []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the same as one batch of the wire's schema; or nothing."""
        for made in self.rows():
            yield made.batch()

    def _few(self, pending: RowsBuilder, ids: list[tuple[_Firsts, _Seconds]]) -> Rows:
        columns = RowColumns(
            list(map(self._task_of, pending.edges, pending.hashes)),
            pending.edges, pending.hashes, pending.keys, pending.values, pending.timestamps,
            [n for origins, sequences in ids for n in _origins(origins, len(sequences))],
            [n for _, sequences in ids for n in _listed(sequences)],
        )  # fmt: skip
        if self._later:
            columns = columns.where([wire.plain(edge) not in self._later for edge in columns.edges])
        return Rows(columns)

    def _many(self, pending: RowsBuilder, ids: list[tuple[_Firsts, _Seconds]]) -> Rows:
        edges = np.array(pending.edges, dtype=np.int32)
        hashes = np.array(pending.hashes, dtype=np.uint64)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._tasks_of(edges, hashes)),
                pa.array(edges),
                pa.array(hashes.view(np.int64)),
                _binary("keys", pending.keys),
                _binary("values", pending.values),
                pa.array(np.array(pending.timestamps, dtype=np.int64)),
                pa.array(np.concatenate([np.full(len(s), o, np.int64) for o, s in ids])),
                pa.array(np.concatenate([_array(sequences) for _, sequences in ids])),
            ],
            schema=wire.SCHEMA,
        )
        if self._later:
            batch = wire.where(batch, ~np.isin(wire.plain(edges), self._later))
        return Rows(batch)

    def _map_of(self, edge: int) -> IntervalMap | None:
        """Return the interval map of an edge's computation; None if it leads to a sink."""
        if edge not in self._maps:
            computation = self._topology.edge(edge & wire.NUMBER).computation
            self._maps[edge] = (
                None if computation is None else self._manifest.interval_map(computation)
            )
        return self._maps[edge]

    def _task_of(self, edge: int, hash: int) -> int:
        intervals = self._map_of(edge)
        if intervals is None:
            return self._own
        return intervals.task_at(hash, self._tasks)

    def _tasks_of(
        self, edges: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int32]:
        pids = np.full(len(edges), self._own, dtype=np.int32)
        for number in np.unique(edges).tolist():
            intervals = self._map_of(number)
            if intervals is None:
                continue
            chosen = edges == number
            pids[chosen] = intervals.task_of(hashes[chosen], self._tasks)
        return pids


def _binary(name: str, column: list[bytes]) -> pa.Array:
    array = pa.array(column, pa.binary())
    if isinstance(array, pa.ChunkedArray):  # which is what Arrow makes of more than it can address
        raise PipelineError(
            f"a task has {array.nbytes:,} bytes of {name} to send at once, in {len(column):,} "
            "rows, and an Arrow batch holds 2 GiB of them. Let an epoch read less "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger, mr.sources.Files(bytes_per_epoch=)), use "
            f"more tasks, or shorter {name}."
        )
    return array


def _origins(origins: _Firsts, count: int) -> list[int]:
    return [origins] * count if isinstance(origins, int) else _listed(origins)


def _listed(half: range | list[int] | _Ints) -> list[int]:
    return half.tolist() if isinstance(half, np.ndarray) else list(half)


def _array(half: range | list[int] | _Ints) -> _Ints:
    if isinstance(half, range):
        return np.arange(half.start, half.stop, dtype=np.int64)
    return np.asarray(half, dtype=np.int64)
