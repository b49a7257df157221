"""The outlet: which rows leave the last stage, and what tasks write of them themselves."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.compile.topology import Topology
from millrace.model.coder import MsgpackCoder
from millrace.runtime import wire
from millrace.runtime.reports import Messages
from millrace.runtime.sink_writer import SinkEncoder
from millrace.runtime.values import SinkColumns
from millrace.runtime.worker_process import WorkerProcess


class Echo(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"texts": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("texts", self.key)


class Kept:
    """Writes to a list what a task has for a sink."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.values: list[Any] = []
        self.aborted = False

    def begin(self, epoch: int, task: int) -> "Kept":
        self.begun.append((epoch, task))
        return self

    def write(self, rows: pa.RecordBatch) -> None:
        self.values += rows.column("value").to_pylist()

    def close(self) -> bytes:
        return b"receipt"

    def abort(self) -> None:
        self.aborted = True


def topology() -> Topology:
    p = mr.Pipeline("outlet")
    p.inject("words", None, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Echo)
    p.sink("texts", print)
    p.sink("texts", format)
    return p.build()


def sent(edge: int, *values: str) -> pa.RecordBatch:
    coder = MsgpackCoder(str)
    count = len(values)
    zeros = pa.array(np.zeros(count, np.int64))
    arrays = [
        pa.array(np.zeros(count, np.int32)),
        pa.array(np.full(count, edge, np.int32)),
        zeros,
        pa.nulls(count, pa.binary()),
        pa.array([coder.encode(value) for value in values], pa.binary()),
        zeros,
        zeros,
        zeros,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wire.SCHEMA)


def test_rows_of_a_sink_that_tasks_write_do_not_leave() -> None:
    built, kept = topology(), Kept()
    first, second = (edge.number for edge in built.edges if edge.sink is not None)
    outlet = SinkEncoder(WorkerProcess(built, tasks=1, writers={first: kept}), epoch=5, task=2)

    left = pa.Table.from_batches(
        outlet.batches([sent(first, "a"), sent(second, "a"), sent(first, "b")])
    ).to_pylist()

    assert (kept.begun, kept.values) == ([(5, 2)], ["a", "b"])
    assert [row["edge"] for row in left] == [second, first]
    assert left[0][f"k{second}"]["value"] == "a"
    assert f"k{first}" not in left[0]
    receipts = Messages.of([(row["edge"], row["report"]) for row in left if row["report"]]).receipts
    assert receipts == {first: [b"receipt"]}


def test_a_task_that_dies_gives_up_what_it_has_written() -> None:
    built, kept = topology(), Kept()
    (first, _) = (edge.number for edge in built.edges if edge.sink is not None)
    outlet = SinkEncoder(WorkerProcess(built, tasks=1, writers={first: kept}), epoch=5, task=2)

    def dies() -> Any:
        yield sent(first, "a")
        raise RuntimeError("user code")

    with pytest.raises(RuntimeError, match="user code"):
        list(outlet.batches(dies()))
    assert kept.aborted


def test_all_sinks_give_up_though_one_cannot() -> None:
    class Stuck(Kept):
        def abort(self) -> None:
            raise OSError("stuck")

    built, stuck, kept = topology(), Stuck(), Kept()
    first, second = (edge.number for edge in built.edges if edge.sink is not None)
    outlet = SinkEncoder(
        WorkerProcess(built, tasks=1, writers={first: stuck, second: kept}), epoch=5, task=2
    )

    def dies() -> Any:
        yield sent(first, "a")
        yield sent(second, "a")
        raise RuntimeError("user code")

    with pytest.raises(RuntimeError, match="user code"):
        list(outlet.batches(dies()))
    assert kept.aborted


def test_one_receipt_of_a_task_counts() -> None:
    built, kept = topology(), Kept()
    (first, _) = (edge.number for edge in built.edges if edge.sink is not None)
    messages = [
        (row["edge"], row["report"])
        for task in (0, 1, 1)
        for batch in SinkEncoder(
            WorkerProcess(built, tasks=2, writers={first: kept}), 5, task
        ).batches([sent(first, "a")])
        for row in batch.to_pylist()
    ]
    assert Messages.of(messages).receipts == {first: [b"receipt", b"receipt"]}


def test_a_list_of_what_has_no_type_of_its_own_is_json_as_a_whole() -> None:
    pairs = list[tuple[int, int | None]]
    columns = SinkColumns(pairs, MsgpackCoder(pairs))
    values = [MsgpackCoder(pairs).encode([(1, 2), (3, None)])]
    made = columns.array(
        values, ["a"], pa.array([0]), pa.array([b"0" * 16], pa.binary())
    ).to_pylist()
    assert made[0]["value"] == "[[1,2],[3,null]]"
    assert "`value`: string" in columns.ddl
