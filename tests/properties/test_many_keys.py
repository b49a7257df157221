"""Many keys at once are decoded, and become rows, as one by one."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.kernel import row_codec
from millrace.kernel.ordering import decode_keys, key_rows
from millrace.model.keys import decode_key, encode_key

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.one_of(st.text(max_size=8), st.text("abc", min_size=150, max_size=170))
lots = st.one_of(
    st.lists(numbers, max_size=4),
    st.lists(numbers, min_size=50, max_size=70),
    st.lists(st.text("ab\x00", min_size=3, max_size=3), min_size=50, max_size=70),
    st.lists(st.text("a", min_size=170, max_size=170), min_size=50, max_size=52),
    st.lists(texts, max_size=70),
    st.lists(st.one_of(numbers, texts), max_size=70),
)


@given(lots)
def test_many_keys_decode_as_one_by_one(keys):
    encoded = [encode_key(key) for key in keys]
    assert decode_keys(encoded) == [decode_key(key) for key in encoded] == keys


@given(lots, st.randoms(use_true_random=False))
def test_many_rows_are_those_of_one_by_one(keys, random):
    encoded = [encode_key(key) for key in keys]
    hashes = [random.randbytes(row_codec.HASH_BYTES) for _ in keys]
    found = key_rows(b"".join(hashes), encoded)
    assert found == [
        row_codec.key_row(hash8, key) for hash8, key in zip(hashes, encoded, strict=True)
    ]
    assert all(type(row) is bytes for row in found)
