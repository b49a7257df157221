"""Sinks that tasks write themselves: by epoch, for the driver to publish, or in every turn.

By epoch, what a task writes is seen by nobody until the driver publishes it. An attempt that dies,
or that comes second, leaves something unpublished behind, and no more. So Spark may run tasks as
often as it likes: of each task one receipt reaches the driver, and that one counts.

In every turn, a task of the real-time plane writes what its commits have produced, once they are
durable and no later session had begun by then: so they exist, whatever becomes of the task. After a
failure the rows since the last completed mark come again: the same rows with the same ids, from one
sender in the same order, but cut into other batches, and perhaps in another task. What to do about
those that it has is the sink's business: by channel number, or by id.

Source: docs/design/2026-11-22-the-real-time-plane.md, "Channels" and "Sinks".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import SinkError


class Receipt(msgspec.Struct, array_like=True):
    """What a task tells the driver of the rows that it has written to a sink.

    Attributes:
        task: Its number.
        of: Says to the sink what was written; only the sink reads it.
    """

    task: int
    of: bytes


class WriteAgain(SinkError):
    """What tasks have written cannot be published now, and may be lost: they are to write it again.

    Who raises it has waited, and gives up in the end, by another error.
    """


class Writing(Protocol):
    """What one attempt at a task writes to a sink in one epoch."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows, one or more: the columns of the record format, and those beside them."""
        ...

    def close(self) -> bytes:
        """Return what the driver needs to publish the rows, which are durable now."""
        ...

    def abort(self) -> None:
        """Give up: nothing of it will be published."""
        ...


class TaskWriter(Protocol):
    """What the tasks know of a sink. It is sent to them once a run, so it can be pickled."""

    def begin(self, epoch: int, task: int) -> Writing:
        """Return what an attempt at a task writes to; called if it has rows for the sink.

        Args:
            epoch: The epoch.
            task: Number of the task. Other attempts at it may be under way.
        """
        ...


class Writings:
    """What an attempt at a task writes to all sinks in one epoch; each is begun with its first row.

    Args:
        writers: Edge to a sink -> what tasks write with.
        epoch: The epoch.
        task: Number of the task.
    """

    def __init__(self, writers: Mapping[int, TaskWriter], epoch: int, task: int) -> None:
        self._writers = writers
        self._epoch = epoch
        self._task = task
        self._begun: dict[int, Writing] = {}

    def write(self, edge: int, rows: pa.RecordBatch) -> None:
        """Take rows of a sink."""
        if edge not in self._begun:
            self._begun[edge] = self._writers[edge].begin(self._epoch, self._task)
        self._begun[edge].write(rows)

    def close(self) -> dict[int, bytes]:
        """Return edge -> the receipt for what was written, which is durable now."""
        return {edge: one.close() for edge, one in self._begun.items()}

    def abort(self) -> None:
        """Give everything up."""
        for one in self._begun.values():
            with suppress(Exception):  # what is told is why all of this ends
                one.abort()


class TaskSink(Protocol):
    """A sink, as the driver knows it.

    On the real-time plane an epoch ends with a mark, and is published when its completion is
    durable: a mark that is made again after a failure ends it elsewhere, with more rows. What a
    sink has published must outlive the driver only if it has a method ``publish_again(epoch,
    receipts)``, too. Then the completion has the receipts, and who goes on from it calls that
    first, whether or not they were published.
    """

    def for_tasks(self) -> TaskWriter | None:
        """Return what the tasks write with; None if this sink wants a DataFrame after all.

        Called once a run, when the run owns the checkpoint.
        """
        ...

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Make an epoch's rows seen, in place of what an earlier attempt at it has published.

        Args:
            epoch: The epoch.
            receipts: What :meth:`Writing.close` returned in the tasks that had rows, at least one.

        Raises:
            WriteAgain: The tasks are to write the epoch again.
        """
        ...


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
