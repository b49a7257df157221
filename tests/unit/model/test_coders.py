"""Coders: what they carry, what they refuse and how they say it, and that they are values."""

import dataclasses
import pickle
from typing import Any, Optional

import msgspec
import pytest

import millrace as mr
from millrace.compile.sink_limits import SinkLimits, limited
from millrace.model.coder import coder_for, is_immutable
from millrace.model.errors import CoderError


class Count(msgspec.Struct):
    word: str
    n: int


class Frozen(msgspec.Struct, frozen=True):
    word: str
    n: int


class FrozenAroundList(msgspec.Struct, frozen=True):
    words: list[str]


@dataclasses.dataclass
class Point:
    x: float
    y: float


@pytest.mark.parametrize(
    ("coder", "value"),
    [
        (mr.coders.Msgpack(int), 7),
        (mr.coders.Msgpack(Count), Count("a", 1)),
        (mr.coders.Msgpack(Point), Point(1.0, 2.0)),
        (mr.coders.Msgpack(dict[str, list[int]]), {"a": [1, 2]}),
        (mr.coders.Msgpack(), {"free": ["form", 1, None]}),
        (mr.coders.Json(Count), Count("a", 1)),
        (mr.coders.Bytes(), b"\0opaque"),
        (mr.coders.Pickle(), {1, 2, 3}),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_a_value_comes_back_as_it_went(coder, value):
    assert coder.decode(coder.encode(value)) == value


@pytest.mark.parametrize(
    ("format", "value"),
    [(int, "seven"), (int, True), (int, 1.5), (str, 7), (bool, 1), (list[int], ["a"])],
    ids=str,
)
@pytest.mark.parametrize("kind", [mr.coders.Msgpack, mr.coders.Json])
def test_a_value_of_another_type_is_refused_by_name(kind, format, value):
    with pytest.raises(CoderError, match="is not of format") as refused:
        kind(format).encode(value)

    assert repr(value) in str(refused.value)
    assert type(value).__name__ in str(refused.value)


@pytest.mark.parametrize("kind", [mr.coders.Msgpack, mr.coders.Json])
def test_bytes_are_not_text(kind):
    with pytest.raises(CoderError, match="is not of format str"):
        kind(str).encode(b"x")


def test_a_struct_with_a_field_of_the_wrong_type_is_refused_where_it_is_written():
    with pytest.raises(CoderError, match=r"Count.*\$\.n"):
        mr.coders.Msgpack(Count).encode(Count("a", "many"))


@pytest.mark.parametrize("kind", [mr.coders.Msgpack, mr.coders.Json])
def test_text_that_utf8_cannot_say_is_refused(kind):
    with pytest.raises(CoderError):
        kind(str).encode("\ud800")


def test_an_int_that_msgpack_cannot_carry_is_refused():
    with pytest.raises(CoderError, match="is not of format"):
        mr.coders.Msgpack(int).encode(2**70)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 2**70]}, r"\$\[\.\.\.\]\[1\]"),
        (("a", {"\ud800"}), r"\$\[1\]\[\.\.\.\]"),
        (Count("\ud800", 1), r"\$\.\w+"),
    ],
)
def test_a_part_that_msgpack_cannot_carry_is_named_by_its_place(value, place):
    with pytest.raises(CoderError, match=f"is not of format.* - at `{place}`"):
        mr.coders.Msgpack(type(value)).encode(value)


class Counted(Count):
    seen: int = 0


class Shouted(Count):
    def shout(self) -> str:
        return self.word.upper()


@dataclasses.dataclass
class Point3(Point):
    z: float = 0.0


class Held(msgspec.Struct):
    counts: dict[str, list[Count]]


@pytest.mark.parametrize("limits", [None, SinkLimits(), SinkLimits(nul=False)])
@pytest.mark.parametrize(
    ("format", "value", "why"),
    [
        (Count, Counted("tea", 1, 2), "Counted has fields .* lost: 'seen'. Declare Counted"),
        (Point, Point3(1.0, 2.0, 3.0), "Point3 has fields .* lost: 'z'"),
        (list[Count], [Count("a", 1), Counted("b", 1)], r"'seen' - at `\$\[1\]`"),
        (tuple[int, Count | None], (1, Counted("b", 1)), r"'seen' - at `\$\[1\]`"),
        (Held, Held({"k": [Counted("b", 1)]}), r"'seen' - at `\$\.counts\[\.\.\.\]\[0\]`"),
    ],
)
def test_a_subclass_whose_fields_would_be_lost_is_refused_with_their_names(
    format, value, why, limits
):
    coder = mr.coders.Msgpack(format)
    if limits is not None:
        coder = limited(coder, limits)
    with pytest.raises(CoderError, match=f"is not of format .*: .*{why}"):
        coder.encode(value)


@pytest.mark.parametrize(
    ("format", "value", "read"),
    [
        (Count, Shouted("tea", 1), Count("tea", 1)),
        (Held, Held({"k": [Shouted("c", 2)]}), Held({"k": [Count("c", 2)]})),
        (list[Point], [Point(1, 2)], [Point(1.0, 2.0)]),
    ],
)
def test_a_subclass_without_fields_of_its_own_is_written_as_the_class(format, value, read):
    coder = mr.coders.Msgpack(format)
    assert coder.decode(coder.encode(value)) == read


def test_a_value_in_a_message_is_cut_short():
    with pytest.raises(CoderError) as refused:
        mr.coders.Msgpack(int).encode("x" * 10_000)

    assert len(str(refused.value)) < 300


def test_bytes_coder_takes_what_is_bytes_and_nothing_else():
    assert mr.coders.Bytes().encode(bytearray(b"a")) == b"a"
    assert mr.coders.Bytes().encode(memoryview(b"a")) == b"a"
    with pytest.raises(CoderError, match="not of format bytes"):
        mr.coders.Bytes().encode("a")


@pytest.mark.parametrize("kind", [mr.coders.Msgpack, mr.coders.Json])
def test_a_type_that_msgspec_cannot_carry_is_refused_when_it_is_declared(kind):
    with pytest.raises(CoderError):
        kind(object())


def test_coders_are_equal_when_they_encode_alike():
    assert mr.coders.Msgpack(int) == mr.coders.Msgpack(int)
    assert mr.coders.Msgpack(int) != mr.coders.Msgpack(str)
    assert mr.coders.Msgpack(int) != mr.coders.Json(int)
    assert mr.coders.Json(Count) == mr.coders.Json(Count)
    assert mr.coders.Bytes() == mr.coders.Bytes()
    assert mr.coders.Pickle() == mr.coders.Pickle()


@pytest.mark.parametrize("kind", [mr.coders.Msgpack, mr.coders.Json])
def test_equal_coders_have_equal_hashes(kind):
    one, other = kind(Optional[int]), kind(int | None)  # noqa: UP045  # two spellings of one type

    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "coder",
    [
        mr.coders.Msgpack(int),
        mr.coders.Msgpack(Count),
        mr.coders.Json(list[int]),
        mr.coders.Bytes(),
    ],
    ids=repr,
)
def test_a_coder_survives_pickling(coder):
    assert pickle.loads(pickle.dumps(coder)) == coder


def test_a_type_means_msgpack():
    assert coder_for(Count) == mr.coders.Msgpack(Count)
    assert coder_for(list[int]) == mr.coders.Msgpack(list[int])
    assert coder_for(Any) == mr.coders.Msgpack(Any)


def test_a_coder_stands_for_itself():
    coder = mr.coders.Json(int)

    assert coder_for(coder) is coder


def test_any_object_with_encode_and_decode_is_a_coder():
    class Reversed:
        def encode(self, value):
            return value[::-1]

        def decode(self, data):
            return data[::-1]

    coder = Reversed()

    assert coder_for(coder) is coder


def test_a_class_of_coders_is_not_an_instance():
    with pytest.raises(CoderError, match=r"give an instance: BytesCoder\(\)"):
        coder_for(mr.coders.Bytes)


@pytest.mark.parametrize("format", ["int", 7, None, object()], ids=["text", "7", "None", "object"])
def test_what_is_neither_type_nor_coder_is_refused(format):
    with pytest.raises(CoderError, match="is not a format"):
        coder_for(format)


@pytest.mark.parametrize("format", [set, complex, range, object], ids=repr)
def test_no_type_ever_means_pickle(format):
    try:
        coder = coder_for(format)
    except CoderError:
        return
    assert isinstance(coder, mr.coders.Msgpack)


@pytest.mark.parametrize(
    ("format", "immutable"),
    [
        (int, True), (str, True), (bytes, True), (mr.coders.Bytes(), True), (Frozen, True),
        (Count, False), (FrozenAroundList, False), (list[int], False), (Any, False),
        (mr.coders.Pickle(), False),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_cannot_change_in_place_counts_as_immutable(format, immutable):
    assert is_immutable(coder_for(format)) is immutable


def test_pickle_says_where_a_class_must_be_that_it_does_not_find_by_its_name() -> None:
    """As one of a script, which a worker has by value."""
    lost = type("Lost", (), {"__module__": "__main__"})
    with pytest.raises(CoderError, match=r"Lost.*Put the class in a module that workers import"):
        mr.coders.Pickle().encode(lost())


def test_a_class_within_a_function_cannot_be_pickled():
    class Local:
        pass

    for value in (Local(), Local, lambda: 1):
        with pytest.raises(mr.MillraceError, match="Put the class in a module that workers import"):
            mr.coders.Pickle().encode(value)


def test_what_code_of_the_value_raises_stays_as_it_is():
    class Broken:
        def __reduce__(self):
            return self.nothing

    with pytest.raises(AttributeError, match="nothing"):
        mr.coders.Pickle().encode(Broken())
