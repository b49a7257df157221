"""The outlet of a live task of the last level: rows for sinks, written turn by turn or by mark.

A sink that tasks write by epoch is written by mark: what a task is given between two marks is one
epoch's. A live sink gets its rows in every turn.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.plane import wire
from millrace.plane.live_sinks import LiveWriting
from millrace.plane.outlet import sink_records
from millrace.plane.runtime import Runtime
from millrace.plane.task_sinks import Receipt, Writings
from millrace.windmill.live_worker import SessionFence


class SinkWriter(Protocol):
    """What takes the rows that leave one task of the last level, in one session."""

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        """Take rows on edges to sinks, that come before the mark of an epoch."""
        ...

    def pass_mark(self, epoch: int) -> dict[int, bytes]:
        """Have everything durable that came before a mark; return edge -> receipt."""
        ...

    def close(self) -> None:
        """Give up what no mark has closed."""
        ...


class LiveSinkWriter:
    """Where rows leave one task.

    Args:
        runtime: Of the process.
        session: The session.
        generation: Of the run.
        task: Number of the task.
    """

    def __init__(self, runtime: Runtime, session: int, generation: int, task: int) -> None:
        self._runtime = runtime
        self._task = task
        self._fence = SessionFence(runtime.worker.state.journals, session)
        self._live: dict[int, LiveWriting] = {
            edge: writer.begin(session, generation, task)
            for edge, writer in runtime.live_writers.items()
        }
        self._by_mark: dict[int, Writings] = {}
        self._unflushed: set[int] = set()

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        """Write rows on edges to sinks; of commits that are durable, here and above.

        A live sink gets nothing of commits that the next session will not know: as long as that has
        not begun, its seal has whatever was durable.

        Args:
            rows: Of the wire.
            epoch: The mark that they come before.

        Raises:
            ZombieWriter: Another session has begun.
        """
        edges = rows.column("edge").to_numpy()
        if self._live and any(number in self._live for number in np.unique(edges).tolist()):
            self._fence.check()
        for number in np.unique(edges).tolist():
            if number not in self._runtime.sink_columns:
                continue
            chosen = wire.where(rows, edges == number)
            struct = sink_records(self._runtime, number, chosen)
            records = pa.RecordBatch.from_struct_array(struct)
            if number in self._live:
                origins = chosen.column("origin").to_numpy()
                sequences = chosen.column("sequence").to_numpy()
                self._live[number].write(records, origins, sequences)
                self._unflushed.add(number)
            else:
                self._before(epoch).write(number, records)

    def _before(self, epoch: int) -> Writings:
        if epoch not in self._by_mark:
            self._by_mark[epoch] = Writings(self._runtime.writers, epoch, self._task)
        return self._by_mark[epoch]

    def pass_mark(self, epoch: int) -> dict[int, bytes]:
        """Have everything durable that was written before a mark; return edge -> receipt."""
        for number in self._unflushed:
            self._live[number].flush()
        self._unflushed.clear()
        if epoch not in self._by_mark:
            return {}
        receipts = self._by_mark[epoch].close()
        del self._by_mark[epoch]
        return {edge: wire.encode(Receipt(self._task, of)) for edge, of in receipts.items()}

    def close(self) -> None:
        """Give up what no mark has closed."""
        for writings in self._by_mark.values():
            writings.abort()
        for live in self._live.values():
            with suppress(Exception):  # what ends the session is told, not what follows from it
                live.close()
        self._by_mark.clear()
        self._live.clear()
