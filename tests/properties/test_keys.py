"""Every key that is accepted comes back, sorts and hashes as its type promises."""

import math

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.errors import CoderError
from millrace.model.keys import decode_key, encode_key, hash_key, prefix_range

ints = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(texts, ints, st.binary(), st.booleans(), st.floats())
items = st.recursive(
    st.one_of(scalars, st.none()),
    lambda item: st.lists(item, max_size=3).map(tuple),
    max_leaves=6,
)
keys = st.one_of(scalars, st.lists(items, max_size=4).map(tuple))
ordered = st.floats(allow_nan=False).map(lambda n: n + 0.0)


def same(one, other):
    """Equal, and of equal types all the way down: 1, 1.0 and True are three keys. NaN is one."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return one == other


@given(keys)
def test_a_key_comes_back_as_it_went(key):
    assert same(decode_key(encode_key(key)), key)


@given(keys, keys)
def test_different_keys_have_different_bytes(one, other):
    assert (encode_key(one) == encode_key(other)) == same(one, other)


@given(
    st.one_of(
        st.tuples(one, one)
        for kind in (ints, texts, st.binary(), st.booleans(), ordered)
        for one in (
            kind,
            st.lists(kind, max_size=4).map(tuple),
            st.tuples(kind, st.lists(kind, max_size=2).map(tuple), kind),
        )
    )
)
def test_keys_of_one_type_sort_as_their_values(pair):
    one, other = pair
    # UTF-8 sorts by code point, and so do Python's strings.
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(st.one_of(ints, ordered), st.one_of(ints, ordered))
def test_numbers_sort_by_size_and_equal_ones_by_type(one, other):
    expected = one < other if one != other else isinstance(one, int) and isinstance(other, float)
    assert (encode_key(one) < encode_key(other)) == expected
    assert (encode_key((one, "x")) < encode_key((other, ""))) == expected


@given(st.floats())
def test_zero_is_one_key_and_comes_back_without_a_sign(number):
    found = decode_key(encode_key(number))
    assert same(found, number)
    assert found != 0 or math.copysign(1, found) == 1


@given(st.lists(items, max_size=3).map(tuple), st.lists(items, max_size=3).map(tuple))
def test_a_prefix_has_all_tuples_that_begin_with_it_and_no_other(prefix, key):
    start, stop = prefix_range(prefix)
    assert start <= encode_key(prefix + key) < stop
    assert (start <= encode_key(key) < stop) == same(key[: len(prefix)], prefix)


@given(st.tuples(st.sampled_from([b"i", b"h", b"j", b"?", b"(", b"x"]), st.binary()).map(b"".join))
def test_bytes_are_a_key_or_refused(data):
    try:
        key = decode_key(data)
    except CoderError:
        return
    assert same(decode_key(encode_key(key)), key)


@given(keys)
def test_the_hash_is_xxh64_with_seed_42(key):
    data = encode_key(key)

    assert hash_key(data) == xxhash.xxh64(data, seed=42).intdigest()
