"""Records through expressions by columns: rows, ids and columns are those record by record."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.kernel.execution import Execution
from millrace.model.time import LATEST_RECORD
from millrace.runtime import wire
from millrace.runtime.refusal import EventTimes
from millrace.runtime.reports import TaskReport
from millrace.runtime.row_encoder import RowEncoder, row_ids
from millrace.runtime.rows import Outbox
from millrace.runtime.sink_writer import sink_records
from millrace.runtime.worker_process import SourceColumns, Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState


class Bid(msgspec.Struct, frozen=True):
    item: str
    cents: int
    note: str | None


class Euros(msgspec.Struct, frozen=True):
    item: str
    euros: float


BIDS = {
    "item": [f"Item {n % 7}" for n in range(200)],
    "cents": [n * 37 % 500 for n in range(200)],
    "note": [None if n % 3 else str(n) for n in range(200)],
}


class PerItem(mr.Computation):
    inputs = {"bids": mr.by(mr.col("item").str.to_lowercase()), "dear": mr.by("item")}
    outputs: dict[str, Any] = {}

    def process_record(self, record: mr.Record) -> None:
        pass


def pipeline() -> mr.Pipeline:
    p = mr.Pipeline("shop")
    bids = p.inject("bids", format=Bid)
    dear = bids.filter(mr.col("cents") > 250).to("dear")
    dear.select("item", euros=mr.col("cents") / 100).to("euros", Euros)
    bids.with_columns(same=mr.col("note") == mr.col("item")).key_by("item").to("marked")
    bids.flat_map(lambda bid: [bid.cents] * (bid.cents % 3)).to("cents")
    bids.key_by(mr.col("item").str.len_chars()).map(mr.col("cents").cast(str_type())).to("texts")
    for name in ("bids", "dear", "euros", "marked", "cents", "texts"):
        p.sink(name, print)
    p.add(PerItem)
    p.dead_letter("rejects")
    p.sink("rejects", print)
    return p


def str_type() -> Any:
    import narwhals as nw

    return nw.String()


class Sender:
    """Sends bids, by columns or record by record."""

    def __init__(self, *, by_columns: bool, batched: bool = False) -> None:
        topology, state = pipeline().build(), MemoryHardState()
        run_log = RunLog(topology, state, intervals=4)
        source = SourceColumns(0, "bids", ("item", "cents", "note"), False, False)
        self.runtime = WorkerProcess(
            topology,
            tasks=2,
            execution=Execution(topology, state, MemoryCaches()),
            sources=[source],
        )
        manifest = run_log.begin(run_log.completed + 1, wall_time_us=0, injectors={"bids": 0})
        task = Task(self.runtime, manifest, 0)
        self.outbox, self.report = Outbox(task), TaskReport()
        self.encoder = RowEncoder(
            task, "bids", 3, self.outbox, self.report, EventTimes(LATEST_RECORD), batches=batched
        )
        if not by_columns:
            self.encoder._columns = None

    def send(self, bids: dict[str, list[Any]], live: bool) -> list[int]:
        count = len(bids["item"])
        columns = [pa.array(bids["item"]), pa.array(bids["cents"]), pa.array(bids["note"])]
        ids = row_ids(0, 5, np.arange(40, 40 + count)) if live else None
        values = pa.StructArray.from_arrays(columns, names=list(bids))
        return self.encoder.send_columns(values, [*range(1_000, 1_000 + count)], None, ids)

    def rows(self) -> pa.Table:
        return pa.Table.from_batches([*self.outbox.batches()], schema=wire.SCHEMA)


def in_order(table: pa.Table) -> list[Any]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("wrong", [[], [17], [0, 1, 199]])
def test_rows_and_ids_are_those_record_by_record(live: bool, wrong: list[int]) -> None:
    bids = {name: list(column) for name, column in BIDS.items()}
    for n in wrong:
        bids["item"][n] = None
    by_columns, by_record = Sender(by_columns=True), Sender(by_columns=False)

    assert by_columns.send(bids, live) == by_record.send(bids, live)
    assert in_order(by_columns.rows()) == in_order(by_record.rows())
    one, other = (sender.report.source("bids") for sender in (by_columns, by_record))
    assert (one.records, one.newest_us) == (other.records, other.newest_us)


def test_a_sink_gets_the_same_columns_of_a_batch_as_of_rows() -> None:
    batched, plain = (Sender(by_columns=True, batched=each) for each in (True, False))
    batched.send(BIDS, live=False)
    plain.send(BIDS, live=False)
    found = [
        {
            edge: sorted(
                repr(row)
                for number, records in sink_records(sender.runtime, batch)
                if number == edge
                for row in records.columns.to_pylist()
            )
            for batch in [sender.rows().combine_chunks().to_batches()[0]]
            for edge in sender.runtime.sink_columns
        }
        for sender in (batched, plain)
    ]
    assert found[0] == found[1]
    assert sum(map(len, found[0].values())) > 500


def test_a_sink_gets_records_in_their_order_though_one_is_refused_between_them() -> None:
    """So those beside it leave by themselves, and all others in batches."""
    bids = {name: list(column) for name, column in BIDS.items()}
    bids["item"][17] = bids["item"][100] = None

    def at_sinks(sender: Sender) -> dict[int, list[Any]]:
        sender.send(bids, live=False)
        found: dict[int, list[Any]] = {}
        for batch in sender.outbox.batches():
            for edge, records in sink_records(sender.runtime, batch):
                found.setdefault(edge, []).extend(records.columns.to_pylist())
        return found

    assert at_sinks(Sender(by_columns=True, batched=True)) == at_sinks(Sender(by_columns=False))


def test_rows_for_sinks_travel_in_few_batches() -> None:
    batched, plain = (Sender(by_columns=True, batched=each) for each in (True, False))
    batched.send(BIDS, live=False)
    plain.send(BIDS, live=False)
    edges = [sender.rows().column("edge").to_numpy() for sender in (batched, plain)]
    to_sinks = batched.runtime.topology.edge_mask({None})
    few, many = (int(to_sinks[wire.plain(each)].sum()) for each in edges)
    # Only what a function made of bids leaves row by row.
    assert many - few >= 600
