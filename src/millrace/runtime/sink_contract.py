"""The contract between a sink and a run: in the driver, and in tasks that write.

**In the driver**, a sink may have two methods that are called once the run owns the checkpoint, and
before it writes anything. ``bind(binding)`` checks the sink and returns a name for its target, or
None where any number of sinks may write; ``claim(generation, completed)`` fences off earlier runs.
Then the run asks for the writer of its tasks. A sink whose ``takes_back`` is true can go back to a
savepoint: it writes by key, or has ``take_back(after, until)``, which removes the rows of some
epochs.

**In tasks** a sink is written by epoch, for the driver to publish, or in every turn. By epoch, the
rows of a task are invisible until the driver publishes them. An attempt that dies, or that comes
second, leaves unpublished rows behind, and nothing else. So Spark may repeat tasks at will: one
receipt of each task reaches the driver, and that one counts.

In every turn, a task of the real-time plane writes what its commits have produced, once they are
durable and no later incarnation had begun by then: so they exist, whatever becomes of the task.
After a failure the rows since the last completed mark come again: the same rows with the same ids,
from one sender in the same order, but cut into other batches, and perhaps in another task. What to
do about those that it has is the sink's business: by channel number, or by id.

Source: docs/design/2026-11-22-the-real-time-plane.md, "Channels" and "Sinks".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.sink_limits import limits_of
from millrace.compile.topology import Topology
from millrace.model.errors import PipelineError, SinkError
from millrace.runtime.values import SinkColumns

if TYPE_CHECKING:
    from millrace.epochlog.run_log import RunLog


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
        return {edge: writing.close() for edge, writing in self._begun.items()}

    def abort(self) -> None:
        """Give everything up."""
        for writing in self._begun.values():
            with suppress(Exception):  # what is told is why all of this ends
                writing.abort()


class TaskSink(Protocol):
    """A sink, as the driver knows it.

    On the real-time plane an epoch ends with a mark, and is published when its completion is
    durable: a mark that is repeated after a failure ends the epoch elsewhere, with more rows. A
    driver may die between completion and publication. A sink that must not lose the epoch then has
    a method ``publish_again(epoch, receipts)``: the completion stores the receipts, and the next
    run calls it first, whether or not they were published.

    One that tasks of the real-time plane can write in every turn has a method ``live()``: it
    returns a :class:`LiveWriter`, or None if they write by mark. It, too, is called once a run,
    when the run owns the checkpoint.
    """

    def for_tasks(self) -> TaskWriter | None:
        """Return what the tasks write with; None if this sink wants a DataFrame after all.

        Called once a run, when the run owns the checkpoint.
        """
        ...

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Make an epoch's rows visible, and replace those that an earlier attempt published.

        Args:
            epoch: The epoch.
            receipts: What :meth:`Writing.close` returned in the tasks that had rows, at least one.

        Raises:
            WriteAgain: The tasks are to write the epoch again.
        """
        ...


class LiveWriting(Protocol):
    """What one task writes to a sink with, for one incarnation. It is called from one thread."""

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
            SinkError: These rows, or earlier ones, are refused. The incarnation is over.
            ZombieWriter: A newer incarnation writes to the sink.
        """
        ...

    def flush(self) -> None:
        """Return when all that was written is durable at the sink; before a mark is passed.

        Raises:
            SinkError: It will not be.
            ZombieWriter: A newer incarnation writes to the sink.
        """
        ...

    def close(self) -> None:
        """Give connections back. What was not flushed may be lost: it comes again."""
        ...


class LiveWriter(Protocol):
    """What the tasks know of a sink. It is sent to them once a run, so it can be pickled."""

    def begin(self, incarnation: int, generation: int, task: int) -> LiveWriting:
        """Return what a task writes with.

        Args:
            incarnation: Its number; later ones have greater numbers, also in later runs.
            generation: Of the run.
            task: Number of the task.
        """
        ...


@dataclass(frozen=True)
class Binding:
    """What a sink is bound to.

    Attributes:
        pipeline: Name of the pipeline.
        stream: Name of the stream.
        owner: Id of the checkpoint, or of the batch.
        columns: Of the stream's records.
    """

    pipeline: str
    stream: str
    owner: str
    columns: SinkColumns


def bind_sinks(topology: Topology, owner: str) -> Topology:
    """Bind every sink that wants to be, before the checkpoint is claimed.

    Returns:
        The topology, with what its sinks know of their tables by then: the limits of values.

    Raises:
        PipelineError: A sink cannot take its stream, or two would write to the same place.
        CheckpointMismatch: A sink holds the output of another checkpoint.
    """
    taken: dict[str, str] = {}
    for edge in topology.edges:
        if edge.sink is None or not hasattr(topology.sinks[edge.sink], "bind"):
            continue
        spec = topology.streams[edge.stream]
        columns = SinkColumns(spec.format, spec.coder)
        binding = Binding(topology.name, edge.stream, owner, columns)
        place = topology.sinks[edge.sink].bind(binding)
        if place is None:
            continue
        if place in taken:
            raise PipelineError(
                f"two sinks write to {place}, of streams {taken[place]!r} and {edge.stream!r}: "
                "the second one's epochs would be taken for the first one's. Give each its own."
            )
        taken[place] = edge.stream
    return _with_limits(topology)


def _with_limits(topology: Topology) -> Topology:
    """Return a topology whose streams know the limits that bound sinks have found in tables."""
    sinks: dict[str, list[Any]] = {}
    for edge in topology.edges:
        if edge.sink is not None:
            sinks.setdefault(edge.stream, []).append(topology.sinks[edge.sink])
    streams = dict(topology.streams)
    for name, of_stream in sinks.items():
        spec, found = streams[name], limits_of(of_stream)
        if spec.limits is not None and found is not None and found.columns:
            limits = replace(spec.limits, columns=found.columns)
            streams[name] = replace(spec, limits=limits)
    return replace(topology, streams=streams)


def claim_sinks(topology: Topology, run_log: RunLog) -> None:
    """Tell the sinks which run writes from now on, once it has claimed the checkpoint.

    Where the checkpoint went back to a savepoint, they take back what came after it: at every start
    until another epoch has completed, so it does not matter where one dies.
    """
    for sink in topology.sinks:
        if hasattr(sink, "claim"):
            sink.claim(run_log.generation, run_log.completed)
        if run_log.restored is not None and hasattr(sink, "take_back"):
            sink.take_back(run_log.restored.after, run_log.restored.until)


def task_writers(topology: Topology) -> dict[int, TaskWriter]:
    """Return edge -> what tasks write with in an epoch; of the other sinks, a DataFrame is wanted.

    Asked when the run owns its sinks.
    """
    writers = {}
    for edge, sink in sinks_by_edge(topology).items():
        writer = sink.for_tasks() if hasattr(sink, "for_tasks") else None
        if writer is not None:
            writers[edge] = writer
    return writers


def live_writers(topology: Topology) -> tuple[dict[int, LiveWriter], dict[int, TaskWriter]]:
    """Return edge -> what tasks of the real-time plane write with: in every turn, and by mark.

    Asked when the run owns its sinks.
    """
    live = {
        edge: sink.live() for edge, sink in sinks_by_edge(topology).items() if hasattr(sink, "live")
    }
    in_turns = {edge: writer for edge, writer in live.items() if writer is not None}
    by_mark = task_writers(topology)
    return in_turns, {edge: by_mark[edge] for edge in by_mark.keys() - in_turns.keys()}


def check_live(topology: Topology) -> None:
    """Refuse sinks that tasks cannot write, before the checkpoint is touched.

    Raises:
        PipelineError: One wants a DataFrame, which the real-time plane has not.
    """
    for edge, sink in sinks_by_edge(topology).items():
        # Asked for its writer here: where tasks cannot write, that does not take a run to know.
        if hasattr(sink, "live") or (hasattr(sink, "for_tasks") and sink.for_tasks() is not None):
            continue
        stream = topology.edge(edge).stream
        raise PipelineError(
            f"the sink {sink!r} of stream {stream!r} wants a DataFrame, and the real-time plane "
            "has none: its tasks write. Wrap a function of Arrow batches in "
            "mr.sinks.Function(...), use "
            "mr.sinks.Kafka, mr.sinks.PostgreSQL, or mr.sinks.Parquet, mr.sinks.Delta or "
            "mr.sinks.Iceberg on a local or mounted path; or run the pipeline by epochs."
        )


def sinks_by_edge(topology: Topology) -> dict[int, Any]:
    """Return edge -> the sink that it leads to."""
    return {
        edge.number: topology.sinks[edge.sink] for edge in topology.edges if edge.sink is not None
    }
