"""Terse rows are the rows that they were made of, whatever those are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.plane import wire
from millrace.plane.realtime.packet import Pipes, Received, batches_of
from millrace.plane.realtime.terse import FEW, Terse
from millrace.watermark.shown import Message


@st.composite
def columns(draw, count: int, kind: type[np.signedinteger]) -> np.ndarray:
    """One value, values that count up in some step, such with one that does not, or any."""
    bits = np.iinfo(kind)
    first = draw(st.integers(bits.min, bits.max))
    step = draw(st.sampled_from([0, 1, 1 << 17, 3 << 17, 1 << 31, 1 << 50]))
    with np.errstate(over="ignore"):
        made = (np.arange(count, dtype=np.int64) * step + first).astype(kind)
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(bits.min, bits.max)), max_size=2)
    ):
        made[at] = value
    return made


@st.composite
def batches(draw) -> pa.RecordBatch:
    count = draw(st.sampled_from([1, FEW - 1, FEW, 2 * FEW + 1]))
    made = {name: draw(columns(count, np.int64)) for name in ("hash", "ts", "origin", "sequence")}
    made["pid"] = np.full(count, draw(st.integers(0, 3)))
    made["edge"] = draw(columns(count, np.int32))
    texts = pa.array([b"%d" % n for n in range(count)])
    return pa.RecordBatch.from_pydict(
        {
            name: pa.array(made[name], wire.SCHEMA.field(name).type) if name in made else texts
            for name in wire.COLUMNS
        }
    )


@given(batches(), st.integers(0, 2 * FEW), st.integers(1, FEW))
def test_what_was_left_out_is_put_back(rows, first, count):
    terse = Terse.of(rows).slice(first, count)
    whole = terse.rows if terse.left_out is None else terse.left_out.put_back(terse.rows)
    assert whole.equals(rows.slice(first, count))
    assert terse.rows.nbytes <= rows.slice(first, count).nbytes


@given(st.lists(batches(), min_size=1, max_size=3))
def test_packets_have_the_rows_that_were_sent_in_order(sent):
    pipes, received = Pipes(1, 0, 4), [Received(1, "here", 1) for _ in range(4)]
    packets = list(pipes.send(sent, message=Message({}, {}, {}), wall_us=0))
    for task in range(4):
        mine = [data for pid, data in packets if pid == task]
        got = [b for packet in received[task].take(mine) for b in batches_of(packet)]
        expected = [rows for rows in sent if rows.column("pid")[0].as_py() == task]
        assert pa.Table.from_batches(got, wire.SCHEMA).equals(
            pa.Table.from_batches(expected, wire.SCHEMA)
        )


@pytest.mark.parametrize("name", ["edge", "origin", "sequence"])
def test_a_column_with_a_null_is_sent_as_it_is(name):
    column = pa.array([None, *([7] * FEW)], wire.SCHEMA.field(name).type)
    rows = pa.RecordBatch.from_pydict({"ts": pa.array([1] * len(column)), name: column})
    assert Terse.of(rows).left_out is None


def test_a_column_of_one_value_is_not_sent():
    rows = pa.RecordBatch.from_pydict(
        {
            "pid": pa.array([2] * FEW, pa.int32()),
            "edge": pa.array([5] * FEW, pa.int32()),
            "ts": pa.array([1] * FEW),
            "origin": pa.array([7] * (FEW - 1) + [8]),
        }
    )
    terse = Terse.of(rows)
    assert terse.rows.schema.names == ["ts", "origin"]
    assert terse.left_out.same == {"pid": 2, "edge": 5}


@pytest.mark.parametrize(
    ("step", "bits", "zeros"),
    [
        pytest.param(1 << 17, 16, 17, id="numbers of records"),
        pytest.param(3, 16, 0, id="whole places"),
        pytest.param(66 << 17, 32, 17, id="numbers far apart"),
        pytest.param((1 << 22) + 1, 32, 0, id="whole places far apart"),
        pytest.param((1 << 23) + 1, 64, None, id="too far apart"),
    ],
)
def test_places_that_are_near_take_few_bits(step, bits, zeros):
    lowest = -(1 << 40)
    places = np.roll(np.arange(FEW) * step + lowest, 1)  # the first is not the lowest
    terse = Terse.of(pa.RecordBatch.from_pydict({"sequence": pa.array(places)}))
    assert terse.rows.column("sequence").type.bit_width == bits
    near = None if terse.left_out is None else terse.left_out.near
    assert near == (None if zeros is None else (lowest, zeros))
