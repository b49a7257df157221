"""Terse rows are the rows that they were made of, whatever those are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.keys import encode_key, hash_key
from millrace.runtime import wire
from millrace.runtime.packet_codec import FEW, Terse, encoded_numbers, hashes_of_numbers
from millrace.runtime.packets import Pipes, Received, rows_of
from millrace.runtime.rows import Rows
from millrace.watermark.propagation import Message


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


#: As of a native source; two fields may have one name.
STRUCTS = pa.struct(
    [
        pa.field("key", pa.int64(), nullable=False, metadata={"of": "the source"}),
        ("at", pa.timestamp("us", "UTC")),
        ("at", pa.timestamp("ms")),
        ("small", pa.int16()),
        ("large", pa.uint64()),
        ("text", pa.string()),
    ]
)
SCHEMA = wire.SCHEMA.append(pa.field("s0", STRUCTS))


@st.composite
def structs(draw, count: int, others: list[np.ndarray]) -> pa.StructArray:
    """Records whose fields are as other columns, but perhaps for a value; or something else."""
    fields = []
    for field in STRUCTS:
        if pa.types.is_string(field.type):
            fields.append(pa.array(map(str, range(count))))
            continue
        bits = field.type.bit_width
        made = draw(st.one_of(st.sampled_from(others), columns(count, np.int64))).copy()
        at = draw(st.integers(0, count - 1))
        made[at : at + 1] += draw(st.sampled_from([0, 0, 1]))  # of an array the largest wraps
        plain = {64: np.int64, 16: np.int16}[bits]
        nulls = np.zeros(count, np.bool_)
        nulls[0] = field.nullable and draw(st.sampled_from([False, False, True]))
        fields.append(pa.array(made.astype(plain), mask=nulls).view(field.type))
    none = np.arange(count) < draw(st.sampled_from([0, 0, 1]))
    return pa.StructArray.from_arrays(fields, fields=list(STRUCTS), mask=pa.array(none))


@st.composite
def batches(draw) -> pa.RecordBatch:
    count = draw(st.sampled_from([1, FEW - 1, FEW, 2 * FEW + 1]))
    made = {name: draw(columns(count, np.int64)) for name in ("hash", "ts", "origin", "sequence")}
    made["pid"] = np.full(count, draw(st.integers(0, 3)))
    made["edge"] = draw(columns(count, np.int32))
    texts = pa.array([b"%d" % n for n in range(count)])
    whole = {name: pa.array(of, wire.SCHEMA.field(name).type) for name, of in made.items()}
    numbers = pa.array(draw(columns(count, np.int64)))
    if draw(st.booleans()):
        whole["key"] = encoded_numbers(numbers)
    if draw(st.booleans()):
        whole["hash"] = pa.array(hashes_of_numbers(numbers).view(np.int64))
    whole["s0"] = draw(structs(count, [numbers.to_numpy(), made["ts"]]))
    return pa.RecordBatch.from_pydict({one.name: whole.get(one.name, texts) for one in SCHEMA})


@given(batches(), st.integers(0, 2 * FEW), st.integers(1, FEW))
def test_what_was_left_out_is_put_back(rows, first, count):
    terse = Terse.of(rows).slice(first, count)
    whole = terse.rows if terse.left_out is None else terse.left_out.put_back(terse.rows)
    assert whole.equals(rows.slice(first, count))
    assert terse.rows.nbytes <= rows.slice(first, count).nbytes


@given(st.lists(batches(), min_size=1, max_size=3))
def test_packets_have_the_rows_that_were_sent_in_order(sent):
    pipes, received = Pipes(1, 0, 4), [Received(1, "here", 1) for _ in range(4)]
    packets = list(pipes.send(map(Rows, sent), message=Message({}, {}, {}), wall_us=0))
    for task in range(4):
        mine = [data for pid, data in packets if pid == task]
        got = [rows.batch() for one in received[task].take(mine) for rows in rows_of(one)]
        expected = [rows for rows in sent if rows.column("pid")[0].as_py() == task]
        assert pa.Table.from_batches(got, SCHEMA).equals(pa.Table.from_batches(expected, SCHEMA))


@pytest.mark.parametrize("name", ["edge", "origin", "ts", "sequence"])
def test_a_column_with_a_null_is_sent_as_it_is(name):
    column = pa.array([None, *([7] * FEW)], wire.SCHEMA.field(name).type)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b""] * len(column)), name: column})
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


def keyed(keys: pa.Array, hashes: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"hash": pa.array(np.array(hashes, np.uint64).view(np.int64)), "key": keys}
    )


def test_keys_that_are_whole_numbers_are_sent_as_such_and_their_hashes_not():
    numbers = pa.array(np.arange(FEW) - 500)
    terse = Terse.of(keyed(encoded_numbers(numbers), hashes_of_numbers(numbers).tolist()))
    assert terse.rows.schema == pa.schema([("key", pa.uint16())])
    assert terse.left_out.near == {"key": (-500, 0)}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((b"sabcdefgh", None), id="a text of as many bytes"),
        pytest.param((b"s", None), id="a shorter text"),
        pytest.param((encode_key(7), 7), id="a hash that is not the key's"),
        pytest.param((None, None), id="no key"),
    ],
)
def test_keys_are_sent_as_they_are_if_one_is_no_whole_number(other):
    key, hash = other
    keys = [encode_key(n) for n in range(FEW)]
    hashes = [hash_key(one) for one in keys]
    keys[7] = key
    hashes[7] = hash if hash is not None else hash_key(key or b"")
    rows = keyed(pa.array(keys, pa.binary()), hashes)
    assert Terse.of(rows).left_out is None
    assert Terse.of(keyed(pa.array(keys[8:] * 2), hashes[8:] * 2)).left_out.numbers


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
    near = {} if terse.left_out is None else terse.left_out.near
    assert near == ({} if zeros is None else {"sequence": (lowest, zeros)})


def record(at: pa.Array, number: pa.Array, *more: pa.Array, mask=None) -> pa.RecordBatch:
    """Rows whose key is ``number``, and whose time is ``at``; more fields have names 2, 3 ..."""
    keys = pa.array(np.arange(FEW) * 7 - 99)
    hashes = pa.array(hashes_of_numbers(keys).view(np.int64))
    names = ["at", "number", *map(str, range(2, 2 + len(more)))]
    structs = pa.StructArray.from_arrays([at, number, *more], names, mask=mask)
    return pa.RecordBatch.from_pydict(
        {"hash": hashes, "key": encoded_numbers(keys), "ts": pa.array(TIMES), "s0": structs}
    )


TIMES = 10**15 + np.arange(FEW) * 11
KEYS = pa.array(np.arange(FEW) * 7 - 99)


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_record_of_its_key_and_its_time_is_not_sent(kind):
    rows = record(pa.array(TIMES).view(kind), KEYS)
    terse = Terse.of(rows)
    assert terse.rows.schema == pa.schema([("key", pa.uint16()), ("ts", pa.uint16())])
    assert terse.left_out.fields["s0"].same == {0: "ts", 1: "key"}
    assert terse.left_out.put_back(terse.rows).equals(rows)


def test_other_fields_are_sent_as_differences_if_they_are_near():
    text = pa.array(map(str, range(FEW)))
    small, far = KEYS.cast(pa.int32()), pa.array(np.arange(FEW) << 40)
    rows = record(pa.array(TIMES + 1), text, small, far, pa.array(TIMES * 1.0))
    sent = Terse.of(rows)
    assert list(sent.rows.column("s0").type) == [
        pa.field("at", pa.uint16()),
        pa.field("number", pa.string()),
        pa.field("3", pa.int64()),
        pa.field("4", pa.float64()),
    ]
    fields = sent.left_out.fields["s0"]
    assert (fields.same, fields.near) == ({2: "key"}, {0: (10**15 + 1, 0)})
    assert sent.left_out.put_back(sent.rows).equals(rows)


def test_records_of_which_one_is_null_are_sent_as_they_are():
    rows = record(pa.array(TIMES), KEYS, mask=pa.array(np.arange(FEW) == 3))
    sent = Terse.of(rows)
    assert sent.rows.column("s0").equals(rows.column("s0"))
    assert not sent.left_out.fields


def test_a_key_that_is_a_text_says_no_field():
    rows = record(pa.array(TIMES), KEYS)
    texts = [encode_key(str(n)) for n in range(FEW)]
    rows = rows.set_column(1, "key", pa.array(texts))
    fields = Terse.of(rows).left_out.fields["s0"]
    assert (fields.same, fields.near) == ({0: "ts"}, {1: (-99, 0)})
