"""Behind: a thread writes what a task hands it, and the task learns what became of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.connectors.postgres import live_writer
from millrace.connectors.postgres.live_writer import Behind
from millrace.model.errors import SinkError


class Puts:
    """Waits for leave before each put."""

    def __init__(self, *, leave: bool = True) -> None:
        self.put_: list[tuple[list[int], list[int], list[int]]] = []
        self.began = threading.Semaphore(0)
        self.leave = threading.Event()
        self.error: Exception | None = None
        self.closed = False
        if leave:
            self.leave.set()

    def put(self, rows: pa.RecordBatch, origins: Any, sequences: Any) -> None:
        self.began.release()
        self.leave.wait()
        if self.error is not None:
            raise self.error
        self.put_.append((rows.column("n").to_pylist(), origins.tolist(), sequences.tolist()))

    def stop(self) -> None:
        self.leave.set()

    def close(self) -> None:
        self.closed = True


def rows(*values: int) -> tuple[pa.RecordBatch, Any, Any]:
    ids = np.array(values, np.int64)
    return pa.RecordBatch.from_pydict({"n": list(values)}), ids, -ids


def test_what_gathers_while_a_transaction_is_under_way_goes_with_the_next() -> None:
    puts = Puts(leave=False)
    behind = Behind(puts)
    behind.write(*rows(1))
    assert puts.began.acquire(timeout=60)
    behind.write(*rows(2, 3))
    behind.write(*rows(4))
    puts.leave.set()
    behind.flush()
    assert puts.put_ == [([1], [1], [-1]), ([2, 3, 4], [2, 3, 4], [-2, -3, -4])]
    behind.close()
    assert puts.closed


def test_a_task_waits_when_too_much_has_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_writer, "_BYTES_MAX", rows(2)[0].nbytes)
    puts, third = Puts(leave=False), threading.Event()
    writing = Behind(puts)
    writing.write(*rows(1))
    assert puts.began.acquire(timeout=60)
    writing.write(*rows(2))

    def write() -> None:
        third.set()
        writing.write(*rows(3))

    task = threading.Thread(target=write)
    task.start()
    # While 1 is being written 2 gathers, and there is no room for 3 before that is taken.
    assert third.wait(60)
    puts.leave.set()
    task.join()
    writing.flush()
    assert [values for values, _, _ in puts.put_] == [[1], [2], [3]]
    writing.close()


def test_what_is_refused_is_raised_in_the_task() -> None:
    puts = Puts()
    puts.error = SinkError("no such column")
    behind = Behind(puts)
    behind.write(*rows(1))
    for _ in range(2):
        with pytest.raises(SinkError, match="no such column"):
            behind.flush()
        with pytest.raises(SinkError, match="no such column"):
            behind.write(*rows(2))
    behind.close()


def test_a_task_that_ends_waits_for_what_is_under_way_and_drops_the_rest() -> None:
    puts = Puts(leave=False)
    behind = Behind(puts)
    behind.write(*rows(1))
    assert puts.began.acquire(timeout=60)
    behind.write(*rows(2))
    behind.close()
    assert [values for values, _, _ in puts.put_] == [[1]]
    assert puts.closed
