"""Sinks that the tasks of the real-time plane write to in every turn, and not by mark.

A task writes what its commits have produced, once they are durable and no later session had begun
by then: so they exist, whatever becomes of the task. After a failure the rows since
the last completed mark come again: the same rows with the same ids, from one sender in the same
order, but cut into other batches, and perhaps in another task. What to do about those that it has
is the sink's business: by channel number, or by id.

Source: docs/design/2026-11-22-the-real-time-plane.md, "Channels" and "Sinks".
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class LiveWriting(Protocol):
    """What one task writes to a sink with, for one session. It is called from one thread."""

    def write(
        self, rows: pa.RecordBatch, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> None:
        """Take rows, one or more; they may be on their way still when this returns.

        Args:
            rows: The columns of the record format, and those beside them.
            origins: Of each row, the first half of its id on the wire: where it was made, which the
                column ``_id`` does not say of a record with an id of its source's.
            sequences: The second half. Numbers of one sender ascend.

        Raises:
            SinkError: These rows, or earlier ones, are refused. The session is over.
            ZombieWriter: A newer session writes to the sink.
        """
        ...

    def flush(self) -> None:
        """Return when all that was written is durable at the sink; before a mark is passed.

        Raises:
            SinkError: It will not be.
            ZombieWriter: A newer session writes to the sink.
        """
        ...

    def close(self) -> None:
        """Give connections back. What was not flushed may be lost: it comes again."""
        ...


class LiveWriter(Protocol):
    """What the tasks know of a sink. It is sent to them once a run, so it can be pickled."""

    def begin(self, session: int, generation: int, task: int) -> LiveWriting:
        """Return what a task writes with.

        Args:
            session: Number of the session; later ones have greater numbers, also in later runs.
            generation: Of the run.
            task: Number of the task.
        """
        ...


class LiveSink(Protocol):
    """A sink, as the driver knows it."""

    def live(self) -> LiveWriter | None:
        """Return what the tasks write with in every turn; None if they write by mark.

        Called once a run, when the run owns the checkpoint.
        """
        ...
