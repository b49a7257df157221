"""The outbox of a task: productions become rows on edges, with ids and the tasks they go to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.plane import wire
from millrace.plane.task import Task
from millrace.watermark.intervals import IntervalMap
from millrace.windmill.routing import Productions


class Outbox:
    """Gathers productions and turns them into one Arrow batch.

    Args:
        task: Its manifest's interval maps say which task owns a key. Rows for a sink go on with the
            task's own number: whoever has them passes them on. For a sink that the epoch does not
            know, none do: those of other attempts' commits would be missing.
    """

    def __init__(self, task: Task) -> None:
        self._topology = task.topology
        self._manifest = task.manifest
        self._tasks = task.runtime.tasks
        self._own = task.number % self._tasks
        self._all = Productions()
        self._origins: list[npt.NDArray[np.int64]] = []
        self._sequences: list[npt.NDArray[np.int64]] = []
        self._maps: dict[str, IntervalMap] = {}
        begun = task.manifest.edges
        self._later = [
            edge.number
            for edge in self._topology.edges
            if begun is not None and edge.number not in begun
        ]

    def add(self, productions: Productions, origin: int, sequences: npt.NDArray[np.int64]) -> None:
        """Take rows of one origin."""
        self.add_all(productions, np.full(len(productions), origin, dtype=np.int64), sequences)

    def add_all(
        self,
        productions: Productions,
        origins: npt.NDArray[np.int64],
        sequences: npt.NDArray[np.int64],
    ) -> None:
        """Take rows with their ids."""
        if not len(productions):
            return
        mine = self._all
        mine.edges += productions.edges
        mine.hashes += productions.hashes
        mine.keys += productions.keys
        mine.values += productions.values
        mine.timestamps += productions.timestamps
        self._origins.append(origins)
        self._sequences.append(sequences)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what was gathered since, as one batch of the wire's schema; or nothing."""
        mine = self._all
        if not len(mine):
            return
        origins, sequences = self._origins, self._sequences
        self._all, self._origins, self._sequences = Productions(), [], []
        edges = np.array(mine.edges, dtype=np.int32)
        hashes = np.array(mine.hashes, dtype=np.uint64)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._tasks_of(edges, hashes)),
                pa.array(edges),
                pa.array(hashes.view(np.int64)),
                pa.array(mine.keys, pa.binary()),
                pa.array(mine.values, pa.binary()),
                pa.array(np.array(mine.timestamps, dtype=np.int64)),
                pa.array(np.concatenate(origins)),
                pa.array(np.concatenate(sequences)),
            ],
            schema=wire.SCHEMA,
        )
        if self._later:
            batch = wire.where(batch, ~np.isin(edges, self._later))
        if batch.num_rows:
            yield batch

    def _tasks_of(
        self, edges: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int32]:
        pids = np.full(len(edges), self._own, dtype=np.int32)
        for number in np.unique(edges).tolist():
            computation = self._topology.edge(number).computation
            if computation is None:
                continue
            if computation not in self._maps:
                self._maps[computation] = self._manifest.interval_map(computation)
            chosen = edges == number
            pids[chosen] = self._maps[computation].task_of(hashes[chosen], self._tasks)
        return pids
