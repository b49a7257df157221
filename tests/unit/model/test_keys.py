"""Keys as bytes: what is accepted, what comes back, how it sorts and hashes."""

import enum

import numpy as np
import pytest

from millrace.model.errors import CoderError
from millrace.model.keys import decode_key, encode_key, hash_key


@pytest.mark.parametrize(
    "key",
    [
        "", "JFK", "Zürich", "\0", 0, -1, 2**63 - 1, -(2**63), b"", b"\0\xff", True, False, 1.5,
        -0.0, float("inf"), (), ("EWR", 7), (1, None, b"x", True, 2.5), ("a", ("b", 1)),
    ],
    ids=repr,
)  # fmt: skip
def test_a_key_comes_back_with_its_type(key):
    decoded = decode_key(encode_key(key))

    assert decoded == key
    assert type(decoded) is type(key)


def test_equal_looking_keys_of_different_types_are_different_keys():
    keys = [1, "1", b"1", 1.0, True, (1,)]

    assert len({encode_key(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "ascending",
    [
        [-(2**63), -1, 0, 1, 255, 256, 2**63 - 1],
        ["", "A", "AB", "B", "a", "é", "\U0001f600"],
        [b"", b"\0", b"\0\0", b"\x01", b"\xff"],
    ],
    ids=["int", "str", "bytes"],
)
def test_keys_of_one_type_sort_as_their_values(ascending):
    encoded = [encode_key(key) for key in ascending]

    assert encoded == sorted(encoded)


def test_the_hash_of_known_bytes_is_what_spark_says():
    # The example in PySpark's own documentation of xxhash64.
    assert hash_key(b"ABC") == 4105715581806190027


def test_a_numpy_scalar_is_the_python_key_of_its_value():
    assert encode_key(np.int64(7)) == encode_key(7)
    assert encode_key(np.str_("JFK")) == encode_key("JFK")
    assert encode_key(np.float64(1.5)) == encode_key(1.5)
    assert encode_key((np.int32(7),)) == encode_key((7,))


def test_an_enum_member_is_the_key_of_the_value_it_equals():
    class Airport(str, enum.Enum):  # noqa: UP042  # a StrEnum would print as its value anyway
        KENNEDY = "JFK"

    class Gate(enum.IntEnum):
        SEVEN = 7

    assert encode_key(Airport.KENNEDY) == encode_key("JFK")
    assert encode_key(Gate.SEVEN) == encode_key(7)


@pytest.mark.parametrize(
    "key",
    [{"a": 1}, ["a"], {"a"}, object(), 1j, ("a", ["b"]), ({},)],
    ids=["dict", "list", "set", "object", "complex", "tuple-of-list", "tuple-of-dict"],
)
def test_what_has_no_stable_bytes_cannot_be_a_key(key):
    with pytest.raises(CoderError, match="cannot be a key"):
        encode_key(key)


def test_none_cannot_be_a_key():
    with pytest.raises(CoderError, match="the key is None"):
        encode_key(None)


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, 2**64, np.uint64(2**63)])
def test_an_int_beyond_64_bits_cannot_be_a_key(key):
    with pytest.raises(CoderError, match="64 bits"):
        encode_key(key)


@pytest.mark.parametrize("key", [(2**70,), (-(2**70),)])
def test_a_tuple_with_an_int_beyond_64_bits_cannot_be_a_key(key):
    with pytest.raises(CoderError, match="64 bits"):
        encode_key(key)


@pytest.mark.parametrize("key", ["\ud800", ("\ud800",)], ids=["alone", "in a tuple"])
def test_text_that_utf8_cannot_say_cannot_be_a_key(key):
    with pytest.raises(CoderError):
        encode_key(key)


def test_bytes_that_no_key_encodes_to_are_refused():
    with pytest.raises(CoderError, match="not an encoded key"):
        decode_key(b"?what")


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize("key", [10**20_000, (1, 10**20_000)], ids=["key", "item"])
def test_an_int_too_long_to_write_out_is_refused_by_size(key):
    with pytest.raises(CoderError, match=r"^key <int, .*> does not fit in 64 bits"):
        encode_key(key)


def test_what_has_no_repr_is_refused_by_type():
    with pytest.raises(CoderError, match=r"^<NoRepr, .*RuntimeError> \(NoRepr\) cannot be a key"):
        encode_key(NoRepr())


def test_a_refused_key_is_told_in_brief():
    with pytest.raises(CoderError) as refused:
        encode_key("\udc80" * 1_000_000)
    assert len(str(refused.value)) < 400
