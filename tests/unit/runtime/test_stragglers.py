"""Stragglers of a batch: who has read enough, and what is decided of the rest, once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.injectors.offsets import Piece
from millrace.model.errors import MillraceError
from millrace.runtime.stragglers import Decisions, Enough, Left


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def numbers(batches: Any) -> list[int]:
    return [n for each in batches for n in each.column("n").to_pylist()]


class Tasks:
    """Those of a batch, by default of four pieces of one stream, of which three are enough."""

    def __init__(self, folder: Any, percentile: int = 75, **pieces: int) -> None:
        self.enough = Enough(str(folder), "batch1", percentile, pieces or {"logs": 4})

    def one(self) -> Decisions:
        """Return what a task has, which looks whenever it may."""
        return self.enough.decisions(clock=iter(range(10_000)).__next__)

    def read(self, number: int, *batches: pa.RecordBatch, stream: str = "logs") -> list[int]:
        return numbers(self.one().rows(stream, number, batches or [batch(1)]))


def test_the_rest_is_left_as_soon_as_enough_has_been_read_and_no_sooner(tmp_path: Any) -> None:
    tasks = Tasks(tmp_path)
    straggler = tasks.one().rows("logs", 3, (batch(n, n) for n in range(10**9)))
    for number in range(3):
        next(straggler)
        assert tasks.read(number) == [1]
        assert not tasks.one().anything_left()
    assert list(straggler) == []

    assert tasks.one().anything_left()
    pieces = {"logs": [Piece("p", (n, n + 1), None, last=False, number=n) for n in range(4)]}
    assert tasks.one().left(pieces) == {"logs": [Left("p", (3, 4), 6)]}
    tasks.one().forget()
    assert tasks.one().left(pieces) == {}


def test_an_attempt_that_reads_again_reads_as_much(tmp_path: Any) -> None:
    tasks = Tasks(tmp_path)
    cut = tasks.one().rows("logs", 3, [batch(1, 2), batch(3), batch(4, 5, 6)])
    assert numbers([next(cut), next(cut)]) == [1, 2, 3]
    for number in range(3):
        tasks.read(number, batch(1), batch(2))
    assert numbers(cut) == []

    assert tasks.read(3, batch(1, 2, 3, 4), batch(5, 6)) == [1, 2, 3]
    # Of what was read to its end all, though enough has been read by now.
    assert tasks.read(1, batch(1), batch(2)) == [1, 2]


def test_a_piece_that_was_not_begun_is_left_whole(tmp_path: Any) -> None:
    tasks = Tasks(tmp_path)
    for number in range(3):
        tasks.read(number)

    assert tasks.read(3) == [] == tasks.read(3)


def test_an_attempt_that_has_read_more_than_another_decided_fails(tmp_path: Any) -> None:
    tasks = Tasks(tmp_path)
    slow, beside = (tasks.one().rows("logs", 3, [batch(n) for n in range(9)]) for _ in range(2))
    numbers([next(slow), next(beside), next(beside)])
    for number in range(3):
        tasks.read(number)
    assert numbers(slow) == []

    with pytest.raises(MillraceError, match="left after 1 rows by another attempt"):
        numbers(beside)


def test_each_stream_must_have_so_much(tmp_path: Any) -> None:
    tasks = Tasks(tmp_path, 50, logs=2, rows=1, none=0)
    assert tasks.read(0) == [1]
    assert tasks.read(0, stream="rows") == [1]
    assert tasks.read(1) == []
