"""Sinks that the tasks of the last stage write themselves, and whose output the driver publishes.

What a task writes is seen by nobody until the driver publishes it. An attempt that dies, or that
comes second, leaves something unpublished behind, and no more. So Spark may run tasks as often as
it likes: of each task one receipt reaches the driver, and that one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec
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
