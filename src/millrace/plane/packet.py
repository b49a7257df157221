"""Packets: rows of the wire on their way through an engine that carries rows one by one.

To an engine a row is a row: it is copied, hashed and written for itself, and handed to Python and
back. So what a Python stage sends to one task travels as few rows of two columns, the task and a
packet: an Arrow stream of some megabytes at the most. Rows of different columns never share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc as ipc

from millrace.plane.wire import parts_by_task

SCHEMA: Final = pa.schema([("pid", pa.int32()), ("packet", pa.binary())])
DDL: Final = "pid int, packet binary"

#: Bytes after which a packet is closed. A larger one saves nothing more, and an engine keeps whole
#: rows in memory.
_PACKET: Final = 2 << 20
#: Bytes of all packets that are being filled, after which all are closed.
_WAITING: Final = 64 << 20

# A packet begins anywhere in the row that it came in, and NumPy is slow over what is not aligned.
_ALIGNED: Final = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)
_ONE_THREAD: Final = ipc.IpcWriteOptions(use_threads=False)


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows that name a task (``pid``) as packets, those for one task in their order.

    >>> rows = pa.RecordBatch.from_pydict({"pid": pa.array([1, 0, 1], pa.int32()), "n": [5, 6, 7]})
    >>> packets = list(packed([rows]))
    >>> [batch.column("pid").to_pylist() for batch in packets]
    [[0, 1]]
    >>> [batch.column("n").to_pylist() for batch in unpacked(packets)]
    [[6], [5, 7]]
    """
    filling = _Filling()
    for batch in batches:
        for pid, rows in parts_by_task(batch):
            for part in _parts(rows):
                filling.add(pid, part)
        if filling.closed:
            yield filling.take()
    filling.close()
    if filling.closed:
        yield filling.take()


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in packets; rows that are in none as they came."""
    for batch in batches:
        if "packet" not in batch.schema.names:
            yield batch
            continue
        for packet in batch.column("packet"):
            yield from ipc.open_stream(packet.as_buffer(), options=_ALIGNED)


class _Filling:
    """The packets that are being filled, and those that are closed."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, Any], list[pa.RecordBatch]] = {}
        self._bytes: dict[tuple[int, Any], int] = {}
        self._waiting = 0
        self.closed: list[tuple[int, pa.Buffer]] = []

    def add(self, pid: int, rows: pa.RecordBatch) -> None:
        """Put rows into the packet of a task."""
        here, size = (pid, rows.schema), rows.nbytes
        if self._bytes.get(here, 0) + size > _PACKET:
            self._close(here)
        self._open.setdefault(here, []).append(rows)
        self._bytes[here] = self._bytes.get(here, 0) + size
        self._waiting += size
        if self._waiting > _WAITING:
            self.close()

    def close(self) -> None:
        """Close all packets."""
        for here in list(self._open):
            self._close(here)

    def take(self) -> pa.RecordBatch:
        """Return the packets that are closed, as rows."""
        pids, packets = zip(*self.closed, strict=True)
        self.closed = []
        data = pa.array([packet.to_pybytes() for packet in packets], pa.binary())
        return pa.RecordBatch.from_arrays([pa.array(pids, pa.int32()), data], schema=SCHEMA)

    def _close(self, here: tuple[int, Any]) -> None:
        rows = self._open.pop(here, None)
        if rows is None:
            return
        self._waiting -= self._bytes.pop(here)
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, here[1], options=_ONE_THREAD) as stream:
            for batch in rows:
                stream.write_batch(batch)
        self.closed.append((here[0], sink.getvalue()))


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts that fit into a packet each; a row that does not is one by itself."""
    size = rows.nbytes
    if size <= _PACKET or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _parts(rows.slice(0, half))
    yield from _parts(rows.slice(half))
