"""Rows that tasks hand to the driver as their receipts, for sinks that are in the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Gather:
    """What tasks gather rows with."""

    def begin(self, epoch: int, task: int) -> Gathering:
        """Return what gathers the rows of an attempt at a task."""
        return Gathering()


class Gathering:
    """The rows of an attempt at a task; they stay in memory."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        self._batches.append(rows)

    def close(self) -> bytes:
        """Return the rows, as an Arrow stream."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._batches[0].schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        return bytes(out.getvalue())

    def abort(self) -> None:
        """Do nothing: what is not handed over is not seen."""


def gathered(receipts: Sequence[bytes]) -> pa.Table:
    """Return the rows of receipts, at least one, in their order.

    >>> made = Gather().begin(0, 0)
    >>> made.write(pa.RecordBatch.from_pydict({"value": [1, 2]}))
    >>> gathered([made.close()]).to_pydict()
    {'value': [1, 2]}
    """
    return pa.concat_tables(pa.ipc.open_stream(receipt).read_all() for receipt in receipts)
