"""Binding: what sinks are told before a run writes anything, once it owns the checkpoint.

Both are optional for a sink. ``bind(binding)`` checks what can be checked and returns a name for
what the sink writes to; ``claim(generation, completed)`` fences off earlier runs. Then it is asked
what tasks write with. A sink whose ``takes_back`` is true can go back to a savepoint: it goes on by
key, or has ``take_back(after, until)``, which removes what some epochs have added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millrace.compile.sink_limits import limits_of
from millrace.compile.topology import Topology
from millrace.model.errors import PipelineError
from millrace.plane.task_sinks import LiveWriter, TaskWriter
from millrace.plane.values import SinkColumns
from millrace.windmill.epochs import Epochs


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


def claim_sinks(topology: Topology, epochs: Epochs) -> None:
    """Tell the sinks which run writes from now on, once it has claimed the checkpoint.

    Where the checkpoint went back to a savepoint, they take back what came after it: at every start
    until another epoch has completed, so it does not matter where one dies.
    """
    for sink in topology.sinks:
        if hasattr(sink, "claim"):
            sink.claim(epochs.generation, epochs.completed)
        if epochs.restored is not None and hasattr(sink, "take_back"):
            sink.take_back(epochs.restored.after, epochs.restored.until)


def task_writers(topology: Topology) -> dict[int, TaskWriter]:
    """Return edge -> what tasks write with in an epoch; of the other sinks, a DataFrame is wanted.

    Asked when the run owns its sinks.
    """
    found = {}
    for edge, sink in sinks_by_edge(topology).items():
        writer = sink.for_tasks() if hasattr(sink, "for_tasks") else None
        if writer is not None:
            found[edge] = writer
    return found


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
            "has none: its tasks write. Wrap a function of Arrow batches in mr.ArrowSink(...), use "
            "mr.KafkaSink, mr.PostgreSQL, or mr.Parquet, mr.Delta or mr.Iceberg on a local or "
            "mounted path; or run the pipeline by epochs."
        )


def sinks_by_edge(topology: Topology) -> dict[int, Any]:
    """Return edge -> the sink that it leads to."""
    return {
        edge.number: topology.sinks[edge.sink] for edge in topology.edges if edge.sink is not None
    }
