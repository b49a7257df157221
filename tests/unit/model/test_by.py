"""Key extraction: every form of ``by``, on every form of value."""

import dataclasses
import pickle

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Flight(msgspec.Struct):
    origin: str
    dest: str


@dataclasses.dataclass
class Leg:
    origin: str
    dest: str


VALUES = [{"origin": "JFK", "dest": "LAX"}, Flight("JFK", "LAX"), Leg("JFK", "LAX")]


@pytest.mark.parametrize("value", VALUES, ids=["dict", "Struct", "dataclass"])
def test_one_field_is_the_key_itself(value):
    assert mr.by("origin")(value, None) == "JFK"


@pytest.mark.parametrize("value", VALUES, ids=["dict", "Struct", "dataclass"])
def test_several_fields_are_a_tuple_in_the_order_given(value):
    assert mr.by("dest", "origin")(value, None) == ("LAX", "JFK")


def test_a_function_is_given_the_value():
    assert mr.by(len)("abc", "producer's key") == 3


def test_by_key_keeps_the_producers_key():
    assert mr.by_key()({"origin": "JFK"}, "producer's key") == "producer's key"


def test_a_field_that_a_dict_lacks_is_named_with_those_it_has():
    with pytest.raises(KeyError, match=r"no field 'origen' in \['dest', 'origin'\]"):
        mr.by("origen")({"origin": "JFK", "dest": "LAX"}, None)


def test_a_field_that_an_object_lacks_is_named():
    with pytest.raises(AttributeError, match="origen"):
        mr.by("origen")(Flight("JFK", "LAX"), None)


@pytest.mark.parametrize(
    "chosen", [(), ("",), (7,), ("a", ""), ("a", len), (len, "a"), (None,)], ids=repr
)
def test_what_chooses_no_key_is_refused(chosen):
    with pytest.raises(PipelineError, match="chooses no key"):
        mr.by(*chosen)


def test_extractors_are_values():
    assert mr.by("a", "b") == mr.by("a", "b") != mr.by("b", "a")
    assert mr.by(len) == mr.by(len)
    assert mr.by_key() == mr.by_key()


def test_an_extractor_reads_as_it_was_written():
    assert repr(mr.by("a", "b")) == "by('a', 'b')"
    assert repr(mr.by(len)) == "by(len)"
    assert repr(mr.by_key()) == "by_key()"


def test_an_extractor_survives_pickling():
    assert pickle.loads(pickle.dumps(mr.by("a", "b"))) == mr.by("a", "b")
