"""What leaves the last level for the sinks, row by row, as the oracle compares it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.runtime import wire
from millrace.runtime.sink_writer import values_and_ids


class Row(NamedTuple):
    """A record on an edge to a sink."""

    edge: int
    key: bytes
    value: bytes
    timestamp: int
    origin: int
    sequence: int


def sink_rows(topology: Topology, batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows for sinks among those of the wire; of what has a source id, with that."""
    sinks = [edge.number for edge in topology.edges if edge.sink is not None]
    found: list[Row] = []
    for batch in batches:
        numbers = batch.column("edge").to_numpy()
        for edge in sinks:
            rows = wire.where(batch, numbers == edge)
            values, origins, sequences = values_and_ids(topology, edge, rows)
            keys, times = rows.column("key").to_pylist(), rows.column("ts").to_pylist()
            columns = keys, values, times, origins.tolist(), sequences.tolist()
            found += [Row(edge, *row) for row in zip(*columns, strict=True)]
    return found
