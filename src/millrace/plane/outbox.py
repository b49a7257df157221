"""The outbox of a task: productions become rows on edges, with ids and the tasks they go to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import PipelineError
from millrace.plane import wire
from millrace.plane.rows import RowColumns, Rows, are_few
from millrace.plane.task import Task
from millrace.watermark.intervals import IntervalMap
from millrace.windmill.record_ids import production_ids
from millrace.windmill.results import IntervalResult
from millrace.windmill.router import RowsBuilder

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
        count = len(productions)
        if not count:
            return 0
        if productions.ids is not None:
            self._add(productions, *productions.ids)
        else:
            number = self._topology.computation(result.computation).number
            self._add(productions, *production_ids(number, result.number, result.interval, count))
        return count

    def _add(self, productions: RowsBuilder, origins: _Firsts, sequences: _Seconds) -> None:
        if not len(productions):
            return
        if self._everywhere and not self._everywhere.keys().isdisjoint(productions.edges):
            productions, origins, sequences = self._copied(productions, origins, sequences)
        mine = self._all
        mine.edges += productions.edges
        mine.hashes += productions.hashes
        mine.keys += productions.keys
        mine.values += productions.values
        mine.timestamps += productions.timestamps
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
        made, of = RowsBuilder(), list[int]()
        for n, (edge, hash) in enumerate(zip(productions.edges, productions.hashes, strict=True)):
            hashes = self._everywhere.get(edge, [hash])
            made.hashes += hashes
            of += [n] * len(hashes)
        made.edges = [productions.edges[n] for n in of]
        made.keys = [productions.keys[n] for n in of]
        made.values = [productions.values[n] for n in of]
        made.timestamps = [productions.timestamps[n] for n in of]
        if isinstance(origins, int):
            origins = np.full(len(productions), origins, np.int64)
        return made, _array(origins)[of], _array(sequences)[of]

    def rows(self) -> list[Rows]:
        """Return what was gathered since: one lot of rows, or none."""
        mine = self._all
        if not len(mine):
            return []
        self._all, ids, self._ids = RowsBuilder(), self._ids, []
        make = self._few if are_few(len(mine), mine.keys, mine.values) else self._many
        made = make(mine, ids)
        return [made] if len(made) else []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the same as one batch of the wire's schema; or nothing."""
        for made in self.rows():
            yield made.batch()

    def _few(self, mine: RowsBuilder, ids: list[tuple[_Firsts, _Seconds]]) -> Rows:
        made = RowColumns(
            list(map(self._task_of, mine.edges, mine.hashes)),
            mine.edges, mine.hashes, mine.keys, mine.values, mine.timestamps,
            [n for origins, sequences in ids for n in _origins(origins, len(sequences))],
            [n for _, sequences in ids for n in _listed(sequences)],
        )  # fmt: skip
        if self._later:
            made = made.where([edge not in self._later for edge in made.edges])
        return Rows(made)

    def _many(self, mine: RowsBuilder, ids: list[tuple[_Firsts, _Seconds]]) -> Rows:
        edges = np.array(mine.edges, dtype=np.int32)
        hashes = np.array(mine.hashes, dtype=np.uint64)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._tasks_of(edges, hashes)),
                pa.array(edges),
                pa.array(hashes.view(np.int64)),
                _binary("keys", mine.keys),
                _binary("values", mine.values),
                pa.array(np.array(mine.timestamps, dtype=np.int64)),
                pa.array(np.concatenate([np.full(len(s), o, np.int64) for o, s in ids])),
                pa.array(np.concatenate([_array(sequences) for _, sequences in ids])),
            ],
            schema=wire.SCHEMA,
        )
        if self._later:
            batch = wire.where(batch, ~np.isin(edges, self._later))
        return Rows(batch)

    def _map_of(self, edge: int) -> IntervalMap | None:
        """Return the interval map of an edge's computation; None if it leads to a sink."""
        if edge not in self._maps:
            computation = self._topology.edge(edge).computation
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


def _binary(what: str, column: list[bytes]) -> pa.Array:
    made = pa.array(column, pa.binary())
    if isinstance(made, pa.ChunkedArray):  # which is what Arrow makes of more than it can address
        raise PipelineError(
            f"a task has {made.nbytes:,} bytes of {what} to send at once, in {len(column):,} rows, "
            "and an Arrow batch holds 2 GiB of them. Let an epoch read less "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger, mr.Files(bytes_per_epoch=)), use more "
            f"tasks, or shorter {what}."
        )
    return made


def _origins(origins: _Firsts, count: int) -> list[int]:
    return [origins] * count if isinstance(origins, int) else _listed(origins)


def _listed(half: range | list[int] | _Ints) -> list[int]:
    return half.tolist() if isinstance(half, np.ndarray) else list(half)


def _array(half: range | list[int] | _Ints) -> _Ints:
    if isinstance(half, range):
        return np.arange(half.start, half.stop, dtype=np.int64)
    return np.asarray(half, dtype=np.int64)
