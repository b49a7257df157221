"""Building rows on edges from productions, with ids and the tasks they go to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.spark import wire
from millrace.watermark.intervals import IntervalMap
from millrace.windmill.manifest import Manifest
from millrace.windmill.routing import Productions


class RowBuilder:
    """Gathers productions and turns them into one Arrow batch.

    Args:
        topology: Of the pipeline.
        manifest: Its interval maps say which task owns a key.
        tasks: Number of tasks a level.
    """

    def __init__(self, topology: Topology, manifest: Manifest, tasks: int) -> None:
        self._topology = topology
        self._manifest = manifest
        self._tasks = tasks
        self._all = Productions()
        self._origins: list[npt.NDArray[np.int64]] = []
        self._sequences: list[npt.NDArray[np.int64]] = []
        self._maps: dict[str, IntervalMap] = {}

    def add(self, productions: Productions, origin: int, sequences: npt.NDArray[np.int64]) -> None:
        """Take rows of one origin."""
        if not len(productions):
            return
        mine = self._all
        mine.edges += productions.edges
        mine.hashes += productions.hashes
        mine.keys += productions.keys
        mine.values += productions.values
        mine.timestamps += productions.timestamps
        self._origins.append(np.full(len(productions), origin, dtype=np.int64))
        self._sequences.append(sequences)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield everything as a batch of the wire's schema; nothing if there are no rows."""
        mine = self._all
        if not len(mine):
            return
        edges = np.array(mine.edges, dtype=np.int32)
        hashes = np.array(mine.hashes, dtype=np.uint64)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(self._tasks_of(edges, hashes)),
                pa.array(edges),
                pa.array(hashes.view(np.int64)),
                pa.array(mine.keys, pa.binary()),
                pa.array(mine.values, pa.binary()),
                pa.array(np.array(mine.timestamps, dtype=np.int64)),
                pa.array(np.concatenate(self._origins)),
                pa.array(np.concatenate(self._sequences)),
            ],
            schema=wire.SCHEMA,
        )

    def _tasks_of(
        self, edges: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int32]:
        pids = np.zeros(len(edges), dtype=np.int32)
        for number in np.unique(edges).tolist():
            computation = self._topology.edges[number].computation
            if computation is None:
                continue
            if computation not in self._maps:
                self._maps[computation] = self._manifest.interval_map(computation)
            chosen = edges == number
            pids[chosen] = self._maps[computation].task_of(hashes[chosen], self._tasks)
        return pids


def messages_table(batch: pa.RecordBatch, pid: int) -> Iterator[Any]:
    """Yield a message with another addressee."""
    pids = pa.array(np.full(batch.num_rows, pid, dtype=np.int32))
    yield batch.set_column(0, wire.SCHEMA.field("pid"), pids)
