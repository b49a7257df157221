"""Taps: what leaves the last level on the edges to sinks, as a test reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.model.pane import Paned
from millrace.plane.outlet import values_and_ids
from millrace.testing.output import Output
from millrace.windmill.record_ids import record_id
from millrace.windmill.routing import sink_key


def tapped(
    topology: Topology, batch: pa.RecordBatch, wall_time_us: int
) -> Iterator[tuple[str, Output]]:
    """Yield (stream, output) of the rows on edges to sinks, in their order."""
    for n, number in enumerate(batch.column("edge").to_pylist()):
        if number < 0 or topology.edge(number).sink is None:
            continue
        stream, row = topology.streams[topology.edge(number).stream], batch.slice(n, 1)
        (encoded,), (origin,), (sequence,) = values_and_ids(topology, number, row)
        value, pane = stream.coder.decode(encoded), None
        if type(value) is Paned:
            value, pane = value.value, value.pane
        key, at_us = sink_key(row.column("key")[0].as_py()), row.column("ts")[0].as_py()
        id = record_id(int(origin), int(sequence))
        yield stream.name, Output(key, value, at_us, pane, wall_time_us, id)
