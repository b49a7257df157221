"""Whatever arrives in whatever order, each key gets its records, once, in order of id."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.ordering import in_order, keys_at
from millrace.kernel.row_codec import key_row
from millrace.model.keys import decode_key
from millrace.runtime.inbox import ArrowKeys
from millrace.watermark.intervals import IntervalMap

#: Few hashes, so that different keys often share one; at the edges of intervals, where it matters.
hashes = st.sampled_from([0, 1, 2**62 - 1, 2**62, 2**63, 2**64 - 1])
keys = st.sampled_from([b"sa", b"sb", b"sbb", b"b\xff"])
record = st.tuples(hashes, keys, st.integers(0, 3), st.integers(0, 3))


@given(st.lists(record, max_size=30), st.sampled_from([1, 2, 4, 16]))
def test_records_are_cut_by_interval_and_key_without_loss(records, count):
    arrived = ReceivedRecords(
        np.array([hash for hash, _, _, _ in records], dtype=np.uint64),
        [key for _, key, _, _ in records],
        list(range(len(records))),
        np.arange(len(records), dtype=np.int64),
        ["s"] * len(records),
        np.array([origin for _, _, origin, _ in records], dtype=np.int64),
        np.array([sequence for _, _, _, sequence in records], dtype=np.int64),
    )
    expected = {}
    for n, (hash, key, origin, sequence) in enumerate(records):
        expected.setdefault((hash, key), []).append((origin, sequence, n))

    found = {}
    for interval, given_to in arrived.by_interval(IntervalMap.uniform(count)):
        assert given_to.keys == [decode_key(key) for key in given_to.encoded]
        named = zip(given_to.key_rows, given_to.encoded, strict=True)
        for (row, key), (start, stop) in zip(named, itertools.pairwise(given_to.cuts), strict=True):
            hash = int.from_bytes(row[:8], "big")
            assert interval.start <= hash < interval.end
            assert row == key_row(row[:8], key)
            assert (hash, key) not in found, "a key's records are in one bundle"
            found[hash, key] = [
                (given_to.origins[n], given_to.sequences[n], given_to.values[n])
                for n in range(start, stop)
            ]
    assert found == {key: sorted(ids) for key, ids in expected.items()}


@given(st.lists(record, min_size=1, max_size=30))
def test_a_few_records_are_sorted_by_hand_as_many_are_whose_keys_are_a_list_or_a_column(records):
    def columns(field, dtype):
        return np.array([one[field] for one in records], dtype=dtype)

    keys = [key for _, key, _, _ in records]
    listed, in_column = (
        ReceivedRecords(
            columns(0, np.uint64),
            keys,
            list(range(len(records))),
            np.arange(len(records), dtype=np.int64),
            "s",
            columns(2, np.int64),
            columns(3, np.int64),
        )
        for keys in (keys, ArrowKeys(pa.array(keys, pa.binary())))
    )
    by_hand, cuts = listed._sorted_by_hand()
    for arrived in (listed, in_column):
        as_many, expected = arrived._sorted(by_time=False)
        assert (by_hand.values, cuts) == (as_many.values, expected)
        assert keys_at(by_hand.keys, cuts[:-1]) == keys_at(as_many.keys, cuts[:-1])


@pytest.mark.parametrize("step", [1, -1])
def test_order_is_seen_across_what_is_compared_at_once(step):
    """One record that is out of place, wherever it is, and whichever column says so."""
    count = 20_000
    for place in (0, 8_191, 8_192, 16_384, count - 2):
        for out in range(3):
            columns = [np.full(count, 7), np.full(count, 7), np.arange(count)]
            assert in_order(*columns)
            columns[out][place : place + 2] = columns[out][place + 1], columns[out][place] + step
            rows = list(zip(*(column.tolist() for column in columns), strict=True))
            assert in_order(*columns) == (rows == sorted(rows))
