"""Behind: rows are written by a thread beside the task, so that it need not wait for the server.

While a transaction is under way rows gather, and go with the next: one row has the latency of one
transaction, and many rows cost few. What gathers is bounded; then the task waits.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: How much may gather, and so how much a transaction has.
_BYTES_MAX = 8 << 20
#: How long a task that ends waits for what is under way. The server sees to it that it is whole.
_PATIENCE_S = 5.0

_Integers = npt.NDArray[np.int64]


class Puts(Protocol):
    """What writes rows; but for :meth:`stop`, it is called by the thread alone."""

    def put(self, rows: pa.RecordBatch, origins: _Integers, sequences: _Integers) -> None:
        """Return when the rows are durable."""
        ...

    def stop(self) -> None:
        """Let :meth:`put` end soon."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...


class Behind:
    """Hands rows to a thread that writes them.

    Args:
        puts: Writes them.
    """

    def __init__(self, puts: Puts) -> None:
        self._puts = puts
        self._change = threading.Condition()
        self._rows: list[pa.RecordBatch] = []
        self._ids: list[tuple[_Integers, _Integers]] = []
        self._bytes = 0
        self._busy = self._ends = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="millrace sink", daemon=True)
        self._thread.start()

    def write(self, rows: pa.RecordBatch, origins: _Integers, sequences: _Integers) -> None:
        """Take rows, and wait if too many are waiting.

        Raises:
            SinkError: Earlier rows were refused.
            ZombieWriter: A newer run, or session, writes.
        """
        with self._change:
            self._change.wait_for(lambda: self._bytes < _BYTES_MAX or self._error is not None)
            self._check()
            self._rows.append(rows)
            self._ids.append((origins, sequences))
            self._bytes += rows.nbytes
            self._change.notify_all()

    def flush(self) -> None:
        """Return when all rows are durable; see :meth:`write` for what it raises."""
        with self._change:
            self._change.wait_for(lambda: not (self._rows or self._busy) or self._error is not None)
            self._check()

    def close(self) -> None:
        """End the thread, and forget what it has not begun to write."""
        with self._change:
            self._ends = True
            self._change.notify_all()
        self._puts.stop()
        self._thread.join(_PATIENCE_S)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._next():
                rows, ids = self._take()
                origins, sequences = map(np.concatenate, zip(*ids, strict=True))
                self._puts.put(pa.concat_batches(rows), origins, sequences)
                with self._change:
                    self._busy = False
                    self._change.notify_all()
        except BaseException as error:  # noqa: BLE001  # the task raises it
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            self._puts.close()

    def _next(self) -> bool:
        """Wait for rows; return whether there are some to be written."""
        with self._change:
            self._change.wait_for(lambda: bool(self._rows) or self._ends)
            return not self._ends

    def _take(self) -> tuple[list[pa.RecordBatch], list[tuple[_Integers, _Integers]]]:
        with self._change:
            rows, ids = self._rows, self._ids
            self._rows, self._ids, self._bytes, self._busy = [], [], 0, True
            self._change.notify_all()
            return rows, ids
