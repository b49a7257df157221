"""Packets of the real-time plane are cut by bytes and by rows, and come out as one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.runtime import packets as packets
from millrace.runtime.packets import Pipes, Received, rows_of
from millrace.runtime.rows import Rows
from millrace.watermark.propagation import Message

NOTHING = Message({}, {}, {})


def many(count: int, width: int, first: int) -> pa.RecordBatch:
    """Rows for task 0 whose values have so many bytes; numbers say their order."""
    return pa.RecordBatch.from_pydict(
        {
            "pid": pa.array(np.zeros(count, np.int32)),
            "value": pa.array([bytes(width)] * count),
            "sequence": pa.array(np.arange(first, first + count)),
        }
    )


def sent(*batches: pa.RecordBatch) -> list[bytes]:
    return [data for _, data in Pipes(1, 0, 1).send(map(Rows, batches), message=NOTHING, wall_us=0)]


def rows_and_bytes(data: bytes) -> tuple[int, int]:
    """Return how many rows are in a packet, and of how many bytes as they were sent."""
    streams = [ipc.open_stream(rows.stream) for rows in packets._decode(data).rows]
    batches = [batch for stream in streams for batch in stream]
    return sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 900, 5_000]), st.sampled_from([0, 40, 700])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([200, 1_000, 1 << 15]),
    st.sampled_from([4 << 10, 960 << 10]),
)
def test_no_packet_is_too_large_and_no_row_is_lost(lots, most_rows, most_bytes):
    first, batches = 0, []
    for count, width in lots:
        batches.append(many(count, width, first))
        first += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "_ROWS", most_rows)
        patch.setattr(packets, "_PACKET", most_bytes)
        found = sent(*batches)
    for count, size in map(rows_and_bytes, found):
        assert count <= most_rows
        assert size <= 1.05 * most_bytes
    decoded = [packets._decode(data) for data in found]
    assert [one.more for one in decoded] == [True] * (len(found) - 1) + [False]
    (whole,) = Received(1, "here", 1).take(found)
    numbers = [n for rows in rows_of(whole) for n in rows.batch().column("sequence").to_pylist()]
    assert numbers == list(range(first))


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        pytest.param(1 << 15, 0, 1, id="as many rows as fit"),
        pytest.param((1 << 15) + 1, 0, 2, id="one more"),
        pytest.param(1_000, 960, 1, id="as many bytes as fit, nearly"),
        pytest.param(2_000, 960, 2, id="twice as many"),
    ],
)
def test_a_packet_is_cut_when_it_is_full_and_not_before(count, width, expected):
    assert len(sent(many(count, width, 0))) == expected


def test_small_batches_share_a_packet():
    assert len(sent(*(many(10, 8, 10 * n) for n in range(100)))) == 1
