"""Taps: what leaves the last level on the edges to sinks, as a test reads it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.compile.build import build
from millrace.compile.topology import Topology
from millrace.model.declarations import Declarations, SinkDeclaration
from millrace.model.pane import Paned
from millrace.plane.sink_writer import values_and_ids
from millrace.sinks.arrow import ArrowSink
from millrace.testing.output import Output
from millrace.windmill.record_ids import record_id
from millrace.windmill.router import sink_key


def tapped(
    topology: Topology, batch: pa.RecordBatch, wall_time_us: int
) -> Iterator[tuple[str, Output]]:
    """Yield (stream, output) of the rows on edges to sinks, in their order."""
    edges = batch.column("edge").to_numpy()
    # Rows of one edge mostly stand together.
    starts = [0, *(np.flatnonzero(np.diff(edges)) + 1).tolist(), len(edges)]
    for start, end in pairwise(starts):
        if start == end or edges[start] < 0:
            continue
        edge = topology.edge(int(edges[start]))
        # What a task writes to a sink is not tapped: the stream has a tap beside it.
        if edge.sink is None or hasattr(topology.sinks[edge.sink], "for_tasks"):
            continue
        coder, rows = topology.streams[edge.stream].coder, batch.slice(start, end - start)
        columns = (rows.column("key").to_pylist(), rows.column("ts").to_pylist())
        parts = values_and_ids(topology, edge.number, rows)
        for encoded, origin, sequence, key, at_us in zip(*parts, *columns, strict=True):
            value, pane = coder.decode(encoded), None
            if type(value) is Paned:
                value, pane = value.value, value.pane
            id = record_id(int(origin), int(sequence))
            yield edge.stream, Output(sink_key(key), value, at_us, pane, wall_time_us, id)


def with_taps(pipeline: Declarations) -> Topology:
    """Return the topology with a tap on every stream; of the pipeline's own sinks, functions."""
    streams = build(pipeline).streams
    tapped = copy.copy(pipeline)
    tapped.sinks = [
        *(SinkDeclaration(stream, _nowhere) for stream in streams),
        *(declared for declared in pipeline.sinks if isinstance(declared.sink, ArrowSink)),
    ]
    topology = build(tapped)
    # What a value may be, its own sinks say; a tap holds anything.
    limited = {
        name: replace(spec, limits=streams[name].limits) for name, spec in topology.streams.items()
    }
    return replace(topology, streams=limited)


def _nowhere(*_: Any) -> None:
    """Stand for a sink; the Harness keeps the records itself."""
