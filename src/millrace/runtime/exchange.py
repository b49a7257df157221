"""The exchange: how what the tasks of one stage send reaches the tasks of the next.

It is all that differs between Spark, the Harness and the simulator. The stages and their order are
the same everywhere; see :func:`through_levels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import pyarrow as pa

from millrace.epochlog.entries import Manifest
from millrace.runtime import wire
from millrace.runtime.epoch.host import LevelStage
from millrace.runtime.worker_process import Stage, Task, WorkerProcess

#: What stands for the rows between two stages: a DataFrame, lists of batches, a job's blocks.
Rows = TypeVar("Rows")


class Exchange(Protocol[Rows]):
    """Runs the tasks of a stage over what was sent to each of them."""

    def across(self, rows: Rows, stage: Stage, *, last: bool) -> Rows:
        """Send rows to the tasks that they name (``pid``); return what the stage makes of them.

        Args:
            rows: What the stage before sent, or the source.
            stage: What each task does.
            last: Whether nothing but sinks and the driver gets what leaves it.
        """
        ...


def through_levels(
    exchange: Exchange[Rows],
    rows: Rows,
    depth: int,
    stage: Callable[[int], Stage] = LevelStage,
) -> Rows:
    """Return what leaves the last level of an epoch: rows for the sinks, and reports.

    Args:
        exchange: Carries the rows.
        rows: Of the sources, on edges.
        depth: Number of levels.
        stage: Makes the stage of a level.
    """
    for level in range(1, depth + 1):
        rows = exchange.across(rows, stage(level), last=level == depth)
    return rows


class LocalExchange:
    """Runs every task in this process, one after the other: for the Harness, and as an oracle."""

    def __init__(self, runtime: WorkerProcess, manifest: Manifest) -> None:
        self._runtime = runtime
        self._manifest = manifest

    def across(
        self, rows: list[pa.RecordBatch], stage: Stage, *, last: bool
    ) -> list[pa.RecordBatch]:
        """Return what the tasks send, in the order of the tasks, each in its own order."""
        tasks = self._manifest.tasks or self._runtime.tasks
        return [
            batch
            for number in range(tasks)
            for batch in stage.run(
                Task(self._runtime, self._manifest, number),
                rows if tasks == 1 else sent_to(number, rows),
            )
        ]


def sent_to(task: int, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows that name a task, in their order."""
    parts = []
    for batch in batches:
        addressed = batch.column("pid").to_numpy() == task
        if addressed.any():
            parts.append(wire.where(batch, addressed))
    return parts
