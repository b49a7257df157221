"""The outlet: rows that leave the last level, as columns for sinks and reports for the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.model.keys import decode_keys
from millrace.plane import wire
from millrace.plane.runtime import Runtime
from millrace.windmill.source_ids import unseal


class Outlet:
    """Turns wire rows into rows of :func:`schema`."""

    def __init__(self, runtime: Runtime) -> None:
        self._columns = runtime.sink_columns
        self._topology = runtime.topology
        self._schema = pa.schema(
            [
                ("edge", pa.int32()),
                ("report", pa.binary()),
                *((f"k{number}", columns.arrow) for number, columns in self._columns.items()),
            ]
        )

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch for every sink that gets rows, and the reports."""
        for batch in rows:
            edges = batch.column("edge").to_numpy()
            for number in np.unique(edges).tolist():
                if number == wire.REPORT or number in self._columns:
                    chosen = wire.where(batch, edges == number)
                    yield self._batch(number, chosen)

    def _batch(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        arrays = [pa.array(np.full(count, number, dtype=np.int32))]
        if number == wire.REPORT:
            arrays.append(rows.column("value"))
        else:
            arrays.append(pa.nulls(count, pa.binary()))
        for edge, columns in self._columns.items():
            if edge == number:
                values, origins, sequences = values_and_ids(self._topology, edge, rows)
                arrays.append(
                    columns.array(
                        values,
                        key_texts(rows.column("key").to_pylist()),
                        rows.column("ts"),
                        _ids(origins, sequences),
                    )
                )
            else:
                arrays.append(pa.nulls(count, columns.arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def values_and_ids(
    topology: Topology, edge: int, rows: pa.RecordBatch
) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the encoded values of rows on an edge to a sink, and both halves of their ids."""
    values = rows.column("value").to_pylist()
    origins = rows.column("origin").to_numpy()
    sequences = rows.column("sequence").to_numpy()
    if topology.edge(edge).identified:
        stream = topology.edge(edge).stream
        values, ids = unseal(stream, values, origins, topology.streams[stream].slacks)
        origins, sequences = ids.halves_over(origins, sequences)
    return values, origins, sequences


def key_texts(encoded: list[bytes | None]) -> list[str | None]:
    """Return keys for a sink's ``_key`` column: text as it is, else its repr.

    >>> from millrace.model.keys import encode_key
    >>> key_texts([encode_key("JFK"), encode_key(7), None])
    ['JFK', '7', None]
    """
    keys = iter(decode_keys([key for key in encoded if key]))
    texts = (key if isinstance(key, str) else repr(key) for key in keys)
    return [next(texts) if key else None for key in encoded]


def _ids(origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]) -> pa.Array:
    """Return the ids of records as :func:`~millrace.windmill.record_ids.record_id` makes them."""
    halves = np.stack([origins, sequences], axis=1).astype(">i8").tobytes()
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(origins), [None, pa.py_buffer(halves)]
    )
    return ids.cast(pa.binary())
