"""What a process that runs tasks keeps from one task to the next: execution, readers, columns.

A task of an epoch or of a turn, and the stages that it may run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.epochlog.positions import Followed, Positions
from millrace.injectors.offsets import Piece
from millrace.kernel.columnar import machine_for
from millrace.kernel.execution import Execution
from millrace.kernel.machine import Machine
from millrace.kernel.router import Router
from millrace.model.time import MIN_TIMESTAMP
from millrace.runtime.calls import CallPools
from millrace.runtime.column_encoder import ColumnEncoder
from millrace.runtime.refusal import EventTimes, Origins
from millrace.runtime.sink_contract import LiveWriter, TaskWriter
from millrace.runtime.values import SinkColumns, ValueReader
from millrace.store import SnapshotStats
from millrace.watermark.propagation import LowWatermarks


@dataclass(frozen=True)
class SourceColumns:
    """What a task must know of an injected stream's source, where rows come as its columns.

    Attributes:
        number: Of the source.
        stream: The injected stream.
        columns: Those that make a value.
        native: Whether keys are in columns, too.
        names_processes: Whether rows tell of the processes that they came by.
        id: Column that names records; None if none does.
        bare: Whether event times are integers whose unit was not said.
    """

    number: int
    stream: str
    columns: tuple[str, ...]
    native: bool
    names_processes: bool
    id: str | None = None
    bare: bool = False


class SnapshotRequests(Protocol):
    """What writes snapshots beside the tasks."""

    def offer(self, computation: str, intervals: Iterable[int], mark: int | None = None) -> None:
        """Have the intervals looked at, which have had a commit. Returns at once.

        Args:
            computation: Name of the computation.
            intervals: Its intervals.
            mark: The mark that the commits came before, if they are in grown segments.
        """
        ...

    def passed(self, mark: int) -> None:
        """Have those intervals looked at that have kept grown segments for long."""
        ...

    def take(self) -> SnapshotStats:
        """Return what became of snapshots since this was called last."""
        ...


class NoSnapshots:
    """Writes none: who runs the tasks does it, or there is nothing to write."""

    def offer(self, computation: str, intervals: Iterable[int], mark: int | None = None) -> None:
        """Do nothing."""

    def passed(self, mark: int) -> None:
        """Do nothing."""

    def take(self) -> SnapshotStats:
        """Return that nothing was written."""
        return SnapshotStats()


class WorkerProcess:
    """A pipeline as a process runs tasks of it.

    Args:
        topology: The pipeline.
        tasks: Number of tasks a level.
        execution: The machines and their store; None in a batch, which keeps no state.
        snapshots: Told of every interval that had a commit.
        sources: Of the injected streams whose rows come as columns.
        lift: Whether senders combine values for groupings.
        writers: Edge to a sink -> what tasks write its rows with; of the others, rows leave.
        live_writers: The same for sinks that live tasks write in every turn.
        live: Whether tasks do not end. Then who reads a source sees it, and nobody else.
        call_pools: Make the calls of computations; by default in threads of their own.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        tasks: int,
        execution: Execution | None = None,
        snapshots: SnapshotRequests | None = None,
        sources: Sequence[SourceColumns] = (),
        lift: bool = True,
        writers: Mapping[int, TaskWriter] = MappingProxyType({}),
        live_writers: Mapping[int, LiveWriter] = MappingProxyType({}),
        live: bool = False,
        call_pools: CallPools | None = None,
    ) -> None:
        self.call_pools = call_pools or CallPools()
        self.writers = writers
        self.live_writers = live_writers
        self.live = live
        self.topology = topology
        self.tasks = tasks
        self.sources = tuple(sources)
        self.snapshots: SnapshotRequests = snapshots or NoSnapshots()
        self.lift = lift
        self._execution = execution
        self._column_encoders: dict[tuple[str, bool], ColumnEncoder | None] = {}

    def write_with(
        self, live_writers: Mapping[int, LiveWriter], writers: Mapping[int, TaskWriter]
    ) -> None:
        """Write sinks with these from now on.

        Args:
            live_writers: Edge to a sink -> what live tasks write with in every turn.
            writers: The same by mark.
        """
        self.live_writers, self.writers = live_writers, writers
        self.__dict__.pop("sink_columns", None)

    @property
    def execution(self) -> Execution:
        """The machines and their store, of a streaming run."""
        assert self._execution is not None, "a batch has no execution: it keeps no state"
        return self._execution

    def positions(self, manifest: Manifest) -> Positions:
        """Return where intervals stand when an epoch begins."""
        return self._followed.at(manifest)

    @cached_property
    def _followed(self) -> Followed:
        return Followed(self.topology, self.execution.state.epochs)

    @cached_property
    def origins(self) -> Origins:
        """Finds what refused rows were in their sources."""
        log = None if self._execution is None else self._execution.state.epochs
        return Origins(self.topology, log, live=self.live)

    @cached_property
    def router(self) -> Router:
        """Sends values down the pipeline's streams."""
        return Router(self.topology)

    def column_encoder(self, stream: str, *, batches: bool) -> ColumnEncoder | None:
        """Return what takes records of an injected stream through expressions by columns.

        Args:
            stream: The stream.
            batches: Whether many records for a sink may leave in one row.

        Returns:
            None if its records come to no expression.
        """
        if (stream, batches) not in self._column_encoders:
            encoder = None
            if stream != self.topology.again and self.topology.has_expressions(stream):
                encoder = ColumnEncoder(self.topology, stream, self.router, batches=batches)
            self._column_encoders[stream, batches] = encoder
        return self._column_encoders[stream, batches]

    @cached_property
    def machines(self) -> Mapping[str, Machine]:
        """Computation -> its machine, of a batch."""
        return {
            spec.name: machine_for(self.topology, spec, self.router)
            for spec in self.topology.computations
        }

    @cached_property
    def readers(self) -> Mapping[str, ValueReader]:
        """Injected stream -> reader of its values."""
        return {
            source.stream: ValueReader(
                source.stream, self.topology.streams[source.stream].format, source.columns
            )
            for source in self.sources
        }

    @cached_property
    def sink_columns(self) -> Mapping[int, SinkColumns]:
        """Edge to a sink -> the columns of its rows."""
        by_tasks = {**self.writers, **self.live_writers}
        key_types = {edge: getattr(writer, "key_type", str) for edge, writer in by_tasks.items()}
        return columns_of_sinks(self.topology, key_types)


def columns_of_sinks(
    topology: Topology, key_types: Mapping[int, type] = MappingProxyType({})
) -> dict[int, SinkColumns]:
    """Return edge to a sink -> the columns of its rows.

    Args:
        topology: The pipeline.
        key_types: Edge -> what the column of keys is, where it is not text.
    """
    return {
        edge.number: SinkColumns(
            topology.streams[edge.stream].format,
            topology.streams[edge.stream].coder,
            key_types.get(edge.number, str),
        )
        for edge in topology.edges
        if edge.sink is not None
    }


def latest_of(topology: Topology, manifest: Manifest) -> dict[str, int]:
    """Return injected stream -> timestamps after this are refused in an epoch."""
    return {
        spec.name: manifest.wall_time_us + spec.injection.ahead_us
        for spec in topology.injected()
        if spec.injection is not None
    }


@dataclass(frozen=True)
class Task:
    """One task of one epoch.

    Attributes:
        runtime: Of the process that it runs in.
        manifest: Of the epoch.
        number: Which of the stage's tasks it is, from 0.
        pieces: (injected stream, number of a piece) -> the piece, of those that it has read.
    """

    runtime: WorkerProcess
    manifest: Manifest
    number: int
    pieces: dict[tuple[str, int], Piece] = field(default_factory=dict, compare=False)

    @property
    def topology(self) -> Topology:
        """The pipeline."""
        return self.runtime.topology

    @property
    def tasks(self) -> int:
        """How many tasks each level has: of an epoch, as many as when it was begun."""
        return self.manifest.tasks or self.runtime.tasks

    @cached_property
    def latest_us(self) -> Mapping[str, int]:
        """Injected stream -> timestamps after this are refused."""
        return latest_of(self.topology, self.manifest)

    def event_times(self, stream: str) -> EventTimes:
        """Return which event times of an injected stream are accepted."""
        injection = self.topology.streams[stream].injection
        return EventTimes(
            self.latest_us[stream],
            None if injection is None else injection.timestamp,
            any(source.bare for source in self.runtime.sources if source.stream == stream),
        )


class Stage(Protocol):
    """What the tasks between two exchanges do. It is sent to them, so it can be pickled."""

    def run(self, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what leaves one task.

        Args:
            task: Which, and in which epoch.
            batches: Everything that was sent to it, in any order. It is read once, and for a level
                of a stream to its end before anything is yielded: the exchange is the barrier.
        """
        ...


def turns_manifest(
    topology: Topology,
    begun: Manifest,
    *,
    epoch: int,
    wall_us: int,
    output_watermark_us: int,
    published: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Return a manifest that says what holds in one turn of one task.

    Who lifts asks it which records are late for the receiver: at the latest those behind what
    this task itself has shown, whatever else the receiver has heard.

    Args:
        topology: The pipeline.
        begun: Of the epoch in which the incarnation began.
        epoch: That is open now.
        wall_us: What time it is.
        output_watermark_us: The highest low watermark that the task has shown.
        published: Injected stream -> low watermark, of those that the task reads.
    """
    before = begun.before
    return Manifest(
        epoch=epoch,
        generation=begun.generation,
        wall_time_us=wall_us,
        injectors={
            spec.name: published.get(spec.name, output_watermark_us) for spec in topology.injected()
        },
        draining=False,
        before=LowWatermarks(
            dict.fromkeys(before.inputs, MIN_TIMESTAMP),
            dict.fromkeys(before.outputs, output_watermark_us),
        ),
        intervals=begun.intervals,
        entry=begun.entry,
        edges=begun.edges,
    )
