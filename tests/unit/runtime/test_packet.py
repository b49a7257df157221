"""Packets: rows in few rows, none lost, in order, and never larger than they may be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.runtime import packets
from millrace.runtime.packets import packed, unpacked


def rows(pids, values, column="n"):
    return pa.RecordBatch.from_pydict({"pid": pa.array(pids, pa.int32()), column: values})


def by_task(batches, column="n"):
    found = {}
    for batch in packed(batches):
        for pid, one in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            (sent,) = [pa.RecordBatch.from_pydict({"pid": [pid], "packet": [one]})]
            for part in unpacked([sent]):
                assert part.column("pid").to_pylist() == [pid] * part.num_rows
                if column in part.schema.names:
                    found.setdefault(pid, []).extend(part.column(column).to_pylist())
    return found


def test_every_row_reaches_its_task_in_the_order_in_which_it_was_sent():
    draw = np.random.default_rng(5)
    pids = draw.integers(0, 7, 10_000)
    batches = [
        rows(pids[n : n + 999], list(range(n, min(n + 999, 10_000)))) for n in range(0, 10_000, 999)
    ]
    assert by_task(batches) == {pid: np.flatnonzero(pids == pid).tolist() for pid in range(7)}


def test_rows_of_other_columns_travel_beside_them():
    batches = [rows([0, 1], [1, 2]), rows([1], ["a"], "text"), rows([0], [3])]
    assert by_task(batches) == {0: [1, 3], 1: [2]}
    assert by_task(batches, "text") == {1: ["a"]}


def test_no_packet_is_larger_than_it_may_be_but_for_a_row_that_is():
    most = packets._EPOCH_PACKET
    batch = rows([0] * 3001, [*(bytes(10_000) for _ in range(3000)), bytes(2 * most)])
    sizes = [
        len(one.as_buffer()) for sent in packed([batch, batch]) for one in sent.column("packet")
    ]
    assert sorted(sizes)[-3] <= most * 1.01 < 2 * most < sorted(sizes)[-2]
    assert by_task([batch, batch]).keys() == {0}
    assert len(by_task([batch, batch])[0]) == 6002


def test_rows_in_no_packet_pass_and_nothing_makes_nothing():
    batch = rows([0], [1])
    assert list(unpacked([batch])) == [batch]
    assert list(packed([])) == list(packed([batch.slice(0, 0)])) == []
