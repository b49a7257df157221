"""Binding: what sinks are told before a run writes anything, and once it owns the checkpoint.

Both are optional for a sink. ``bind(binding)`` checks what can be checked and returns a name for
what the sink writes to; ``claim(generation, completed)`` fences off earlier runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.compile.topology import Topology
from millrace.model.errors import PipelineError
from millrace.plane.formats import SinkColumns
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


def bind_sinks(topology: Topology, owner: str) -> None:
    """Bind every sink that wants to be, before the checkpoint is claimed.

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


def claim_sinks(topology: Topology, epochs: Epochs) -> None:
    """Tell the sinks which run writes from now on, once it has claimed the checkpoint."""
    for sink in topology.sinks:
        if hasattr(sink, "claim"):
            sink.claim(epochs.generation, epochs.completed)
