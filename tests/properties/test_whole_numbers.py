"""A column of whole numbers is encoded and hashed as its numbers are one by one."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.keys import encode_key, hash_key
from millrace.runtime import packet_codec
from millrace.runtime.packet_codec import encoded_numbers, hashes_of_numbers, numbers_of

numbers = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from([-(1 << 63), -257, -256, -1, 0, 255, 256, (1 << 63) - 1]),
)


@given(st.lists(st.one_of(numbers, st.none()), max_size=40))
def test_whole_numbers_are_encoded_and_hashed_as_one_by_one(found):
    column = pa.array(found, pa.int64())
    encoded = [None if n is None else encode_key(n) for n in found]
    assert encoded_numbers(column).to_pylist() == encoded
    hashes = hashes_of_numbers(column).tolist()
    assert len(hashes) == len(found)
    assert [h for h, n in zip(hashes, found, strict=True) if n is not None] == [
        hash_key(key) for key in encoded if key is not None
    ]


@pytest.mark.parametrize("more", [-1, 0, 1, 2 * packet_codec._AT_ONCE + 7])
def test_more_than_are_hashed_at_once(more):
    random = Random(more)
    found = [random.getrandbits(64) - (1 << 63) for _ in range(packet_codec._AT_ONCE + more)]
    hashes = hashes_of_numbers(pa.array(found)).tolist()
    assert hashes == [hash_key(encode_key(n)) for n in found]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32()])
def test_narrow_numbers_and_parts_of_columns(kind):
    column = pa.array([3, None, 100, 7], kind).slice(1)
    assert encoded_numbers(column).to_pylist() == [None, encode_key(100), encode_key(7)]
    assert hashes_of_numbers(column).tolist()[1:] == [hash_key(encode_key(n)) for n in (100, 7)]


@given(st.lists(numbers, max_size=40), st.integers(0, 40))
def test_encoded_numbers_are_read_back_from_any_part_of_a_column(found, first):
    keys = encoded_numbers(pa.array(found, pa.int64())).slice(first)
    assert numbers_of(keys).tolist() == found[first:]


@pytest.mark.parametrize("other", ["", "x", "12345678", 1.5, (3, 4), b"i2345678", None])
def test_a_key_of_another_kind_is_no_number(other):
    key = None if other is None else encode_key(other)
    keys = pa.array([encode_key(7), key], pa.binary())
    assert numbers_of(keys) is None
    assert numbers_of(keys.slice(0, 1)).tolist() == [7]
