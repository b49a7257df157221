"""What leaves the last level for the sinks, row by row, as the oracle compares it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from millrace.compile.topology import Topology


class Row(NamedTuple):
    """A record on an edge to a sink."""

    edge: int
    key: bytes
    value: bytes
    timestamp: int
    origin: int
    sequence: int


def sink_rows(topology: Topology, batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows for sinks among those of the wire."""
    sinks = {edge.number for edge in topology.edges if edge.sink is not None}
    columns = ("edge", "key", "value", "ts", "origin", "sequence")
    return [
        Row(*row)
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        if row[0] in sinks
    ]
