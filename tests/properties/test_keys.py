"""Every key that is accepted comes back, sorts and hashes as its type promises."""

import math

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.keys import decode_key, encode_key, hash_key

ints = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(texts, ints, st.binary(), st.booleans(), st.floats(allow_nan=False))
keys = st.one_of(scalars, st.lists(st.one_of(scalars, st.none()), max_size=4).map(tuple))


def same(one, other):
    """Equal, and of equal types all the way down: 1, 1.0 and True are three keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@given(keys)
def test_a_key_comes_back_as_it_went(key):
    assert same(decode_key(encode_key(key)), key)


@given(keys, keys)
def test_different_keys_have_different_bytes(one, other):
    assert (encode_key(one) == encode_key(other)) == same(one, other)


@given(
    st.one_of(st.tuples(ints, ints), st.tuples(texts, texts), st.tuples(st.binary(), st.binary()))
)
def test_keys_of_one_type_sort_as_their_values(pair):
    one, other = pair
    # UTF-8 sorts by code point, and so do Python's strings.
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(keys)
def test_the_hash_is_xxh64_with_seed_42(key):
    data = encode_key(key)

    assert hash_key(data) == xxhash.xxh64(data, seed=42).intdigest()
