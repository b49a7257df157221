"""Rows that leave the last level: as columns for sinks, and as messages for the driver.

In an epoch they leave the task as rows, or go to what writes a sink in the task. In real time a
sink that tasks write by epoch is written by mark: what a task is given between two marks is one
epoch's. A live sink gets its rows in every turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.epochlog.fence import IncarnationFence
from millrace.kernel.ordering import decode_keys
from millrace.kernel.record_ids import unseal
from millrace.runtime import wire
from millrace.runtime.column_encoder import read_batch
from millrace.runtime.sink_contract import LiveWriting, Receipt, Writings
from millrace.runtime.values import to_json
from millrace.runtime.worker_process import WorkerProcess, columns_of_sinks


class SinkEncoder:
    """Where rows leave the last stage of an epoch: to sinks, and as messages to the driver.

    What leaves as a row has the columns of :meth:`ddl`: ``edge``, ``report`` (of the task, on the
    edge REPORT; of a sink that tasks write, its receipt, on the sink's edge), and for every sink
    that wants a DataFrame a struct of its columns.
    """

    def __init__(self, runtime: WorkerProcess, epoch: int, task: int) -> None:
        self._runtime = runtime
        self._columns = runtime.sink_columns
        self._epoch = epoch
        self._task = task
        self._kept = [number for number in self._columns if number not in runtime.writers]
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
        fields = (
            f"k{number} {columns.ddl}"
            for number, columns in columns_of_sinks(topology).items()
            if number not in written
        )
        return ", ".join(["edge int", "report binary", *fields])

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch for every sink that gets rows, and the messages to the driver."""
        writings = Writings(self._runtime.writers, self._epoch, self._task)
        try:
            for batch in rows:
                edges = batch.column("edge").to_numpy()
                if (reports := edges == wire.REPORT).any():
                    chosen = wire.where(batch, reports)
                    yield self._row(wire.REPORT, chosen.column("value"))
                for number, records in sink_records(self._runtime, batch):
                    if number in self._runtime.writers:
                        writings.write(number, pa.RecordBatch.from_struct_array(records.columns))
                    else:
                        yield self._row(number, None, records.columns)
            for number, receipt in writings.close().items():
                told = wire.encode(Receipt(self._task, receipt))
                yield self._row(number, pa.array([told], pa.binary()))
        except BaseException:
            writings.abort()
            raise

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


def write_to_sinks(runtime: WorkerProcess, epoch: int, rows: Iterable[pa.RecordBatch]) -> None:
    """Have the only task of an epoch write to the sinks that tasks write, and to no other."""
    writings = Writings(runtime.writers, epoch, 0)
    for batch in rows if runtime.writers else ():
        for number, records in sink_records(runtime, batch, runtime.writers):
            writings.write(number, pa.RecordBatch.from_struct_array(records.columns))
    writings.close()


class SinkRecords(NamedTuple):
    """Records for a sink.

    Attributes:
        columns: As the sink gets them.
        origins: First halves of their ids, as their rows have them.
        sequences: Second halves.
    """

    columns: pa.StructArray
    origins: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]


def sink_records(
    runtime: WorkerProcess, rows: pa.RecordBatch, edges: Collection[int] | None = None
) -> Iterator[tuple[int, SinkRecords]]:
    """Yield the number of an edge to a sink, and the records of rows of the wire on it.

    Args:
        runtime: Of the process.
        rows: Of the wire.
        edges: Those that are asked for; by default all to sinks.
    """
    on = rows.column("edge").to_numpy()
    wanted = runtime.sink_columns if edges is None else edges
    for number in np.unique(wire.plain(on[on >= 0])).tolist():
        if number not in wanted:
            continue
        chosen = wire.where(rows, wire.plain(on) == number)
        # Of one edge some records are in rows of their own, and many in one, each in its place.
        are_many = chosen.column("edge").to_numpy() != number
        ends = np.flatnonzero(np.diff(are_many, append=not are_many[-1])) + 1
        for first, end in itertools.pairwise([0, *ends.tolist()]):
            part = chosen.slice(first, end - first)
            if not are_many[first]:
                yield number, _of_rows(runtime, number, part)
                continue
            for data in part.column("value").to_pylist():
                yield number, _of_batch(runtime, number, read_batch(data))


def _of_rows(runtime: WorkerProcess, edge: int, rows: pa.RecordBatch) -> SinkRecords:
    values, origins, sequences = values_and_ids(runtime.topology, edge, rows)
    keys, ids = _keys(runtime, edge, rows.column("key")), _ids(origins, sequences)
    columns = runtime.sink_columns[edge].array(values, keys, rows.column("ts"), ids)
    of_rows = rows.column("origin").to_numpy(), rows.column("sequence").to_numpy()
    return SinkRecords(columns, *of_rows)


def _of_batch(runtime: WorkerProcess, edge: int, batch: pa.RecordBatch) -> SinkRecords:
    keys, at, origins, sequences = map(batch.column, wire.BATCH)
    halves = origins.to_numpy(), sequences.to_numpy()
    columns = runtime.sink_columns[edge].of_columns(
        batch, _keys(runtime, edge, keys), at, _ids(*halves)
    )
    return SinkRecords(columns, *halves)


def _keys(runtime: WorkerProcess, edge: int, keys: pa.Array) -> list[Any]:
    if keys.null_count == len(keys):
        return [None] * len(keys)
    encoded = keys.to_pylist()
    of_bytes = runtime.sink_columns[edge].key_type is bytes
    return key_bytes(encoded) if of_bytes else key_texts(encoded)


def values_and_ids(
    topology: Topology, edge: int, rows: pa.RecordBatch
) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the encoded values of rows on an edge to a sink, and both halves of their ids."""
    values = rows.column("value").to_pylist()
    origins = rows.column("origin").to_numpy()
    sequences = rows.column("sequence").to_numpy()
    if scope := topology.edge(edge).scope:
        slacks = topology.streams[topology.edge(edge).stream].slacks
        values, ids = unseal(scope, values, origins, slacks)
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


def key_bytes(encoded: list[bytes | None]) -> list[bytes | None]:
    r"""Return keys for a sink that takes bytes: bytes as they are, text as UTF-8, else JSON.

    >>> from millrace.model.keys import encode_key
    >>> key_bytes([encode_key("JFK"), encode_key(b"\xff"), encode_key((7, True)), None])
    [b'JFK', b'\xff', b'[7,true]', None]
    """
    keys = iter(decode_keys([key for key in encoded if key]))
    made = (
        key if isinstance(key, bytes) else key.encode() if isinstance(key, str) else to_json(key)
        for key in keys
    )
    return [next(made) if key else None for key in encoded]


def _ids(origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]) -> pa.Array:
    """Return the ids of records as :func:`~millrace.kernel.record_ids.record_id` makes them."""
    halves = np.stack([origins, sequences], axis=1).astype(">i8").tobytes()
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(origins), [None, pa.py_buffer(halves)]
    )
    return ids.cast(pa.binary())


class LiveSinkWriter:
    """Where rows leave one task."""

    def __init__(
        self, runtime: WorkerProcess, incarnation: int, generation: int, task: int
    ) -> None:
        self._runtime = runtime
        self._task = task
        self._fence = IncarnationFence(runtime.execution.state.incarnations, incarnation)
        self._live: dict[int, LiveWriting] = {
            edge: writer.begin(incarnation, generation, task)
            for edge, writer in runtime.live_writers.items()
        }
        self._by_mark: dict[int, Writings] = {}
        self._unflushed: set[int] = set()

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        """Write rows on edges to sinks; of commits that are durable, here and above.

        A live sink gets nothing of commits that the next incarnation will not know: as long as that
        has not begun, its seal has whatever was durable.

        Args:
            rows: Of the wire.
            epoch: The mark that they come before.

        Raises:
            ZombieWriter: Another incarnation has begun.
        """
        edges = rows.column("edge").to_numpy()
        if self._live and any(wire.plain(n) in self._live for n in np.unique(edges).tolist()):
            self._fence.check()
        for number, found in sink_records(self._runtime, rows):
            records = pa.RecordBatch.from_struct_array(found.columns)
            if number in self._live:
                self._live[number].write(records, found.origins, found.sequences)
                self._unflushed.add(number)
            else:
                self._before(epoch).write(number, records)

    def _before(self, epoch: int) -> Writings:
        if epoch not in self._by_mark:
            self._by_mark[epoch] = Writings(self._runtime.writers, epoch, self._task)
        return self._by_mark[epoch]

    def pass_mark(self, epoch: int) -> dict[int, bytes]:
        """Have everything durable that was written before a mark; return edge -> receipt."""
        for number in self._unflushed:
            self._live[number].flush()
        self._unflushed.clear()
        if epoch not in self._by_mark:
            return {}
        receipts = self._by_mark[epoch].close()
        del self._by_mark[epoch]
        return {
            edge: wire.encode(Receipt(self._task, receipt)) for edge, receipt in receipts.items()
        }

    def close(self) -> None:
        """Give up what no mark has closed."""
        for writings in self._by_mark.values():
            writings.abort()
        for live in self._live.values():
            with suppress(Exception):  # what ends the incarnation is told, not what follows from it
                live.close()
        self._by_mark.clear()
        self._live.clear()
