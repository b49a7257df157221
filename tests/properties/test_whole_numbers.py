"""A column of whole numbers is encoded and hashed as its numbers are one by one."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.keys import encode_key, hash_key
from millrace.plane import whole_numbers
from millrace.plane.whole_numbers import encoded_numbers, hashes_of_numbers

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


@pytest.mark.parametrize("more", [-1, 0, 1, 2 * whole_numbers._AT_ONCE + 7])
def test_more_than_are_hashed_at_once(more):
    random = Random(more)
    found = [random.getrandbits(64) - (1 << 63) for _ in range(whole_numbers._AT_ONCE + more)]
    hashes = hashes_of_numbers(pa.array(found)).tolist()
    assert hashes == [hash_key(encode_key(n)) for n in found]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32()])
def test_narrow_numbers_and_parts_of_columns(kind):
    column = pa.array([3, None, 100, 7], kind).slice(1)
    assert encoded_numbers(column).to_pylist() == [None, encode_key(100), encode_key(7)]
    assert hashes_of_numbers(column).tolist()[1:] == [hash_key(encode_key(n)) for n in (100, 7)]
