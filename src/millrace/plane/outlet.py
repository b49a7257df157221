"""The outlet: rows that leave the last level, as columns for sinks and messages for the driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.model.keys import decode_keys
from millrace.plane import wire
from millrace.plane.formats import SinkColumns
from millrace.plane.runtime import Runtime, columns_of_sinks
from millrace.plane.task_sinks import Receipt, Writing
from millrace.windmill.source_ids import unseal


class Outlet:
    """Where rows leave the last stage of an epoch: to sinks, and as messages to the driver.

    What leaves as a row has the columns of :meth:`ddl`: ``edge``, ``report`` (of the task, on the
    edge REPORT; of a sink that tasks write, its receipt, on the sink's edge), and for every sink
    that wants a DataFrame a struct of its columns.

    Args:
        runtime: Of the process.
        epoch: The epoch.
        task: Number of the task.
    """

    def __init__(self, runtime: Runtime, epoch: int, task: int) -> None:
        self._columns = runtime.sink_columns
        self._writers = runtime.writers
        self._topology = runtime.topology
        self._epoch = epoch
        self._task = task
        self._kept = [number for number in self._columns if number not in self._writers]
        self._schema = pa.schema(
            [
                ("edge", pa.int32()),
                ("report", pa.binary()),
                *((f"k{number}", self._columns[number].arrow) for number in self._kept),
            ]
        )

    @staticmethod
    def ddl(topology: Topology, written: Collection[int]) -> str:
        """Return the columns that leave, for Spark.

        Args:
            topology: The pipeline.
            written: Edges to sinks that tasks write.
        """
        kept = (
            f"k{number} {columns.ddl}"
            for number, columns in columns_of_sinks(topology).items()
            if number not in written
        )
        return ", ".join(["edge int", "report binary", *kept])

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch for every sink that gets rows, and the messages to the driver."""
        writing: dict[int, Writing] = {}
        try:
            for batch in rows:
                edges = batch.column("edge").to_numpy()
                for number in np.unique(edges).tolist():
                    chosen = wire.where(batch, edges == number)
                    if number == wire.REPORT:
                        yield self._row(number, chosen.column("value"))
                    elif number in self._writers:
                        if number not in writing:
                            begin = self._writers[number].begin
                            writing[number] = begin(self._epoch, self._task)
                        records = sink_records(
                            self._topology, self._columns[number], number, chosen
                        )
                        writing[number].write(pa.RecordBatch.from_struct_array(records))
                    elif number in self._columns:
                        records = sink_records(
                            self._topology, self._columns[number], number, chosen
                        )
                        yield self._row(number, None, records)
            for number, one in writing.items():
                receipt = wire.encode(Receipt(self._task, one.close()))
                yield self._row(number, pa.array([receipt], pa.binary()))
        except BaseException:
            for one in writing.values():
                with suppress(Exception):  # what is told is why all of this ends
                    one.abort()
            raise

    def _records(self, number: int, rows: pa.RecordBatch) -> pa.StructArray:
        return sink_records(self._topology, self._columns[number], number, rows)

    def _row(
        self, number: int, report: pa.Array | None, records: pa.Array | None = None
    ) -> pa.RecordBatch:
        there = records if report is None else report
        assert there is not None, "a row is a message or a record"
        count = len(there)
        arrays = [
            pa.array(np.full(count, number, dtype=np.int32)),
            pa.nulls(count, pa.binary()) if report is None else report,
            *(
                records if edge == number else pa.nulls(count, self._columns[edge].arrow)
                for edge in self._kept
            ),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def sink_records(
    topology: Topology, columns: SinkColumns, edge: int, rows: pa.RecordBatch
) -> pa.StructArray:
    """Return rows on an edge to a sink as the columns of its records."""
    values, origins, sequences = values_and_ids(topology, edge, rows)
    return columns.array(
        values,
        key_texts(rows.column("key").to_pylist()),
        rows.column("ts"),
        _ids(origins, sequences),
    )


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
