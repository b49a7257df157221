"""Schemas are plain data, the same in every process, and tell apart what is read differently."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pytest

import millrace as mr
from millrace.compile.change.schema_change import differences
from millrace.compile.change.schemas import plain, schema_of
from millrace.model.errors import CoderError

T = TypeVar("T")


class Count(msgspec.Struct):
    total: int
    by: str = ""


class Tree(msgspec.Struct):
    value: int
    below: list[Tree] = []


class TreeMore(msgspec.Struct):
    value: int
    below: list[TreeMore] = []
    colour: str = "green"


class TreeLess(msgspec.Struct):
    below: list[TreeLess] = []


class Even(msgspec.Struct):
    odd: Odd | None = None


class Odd(msgspec.Struct):
    even: Even


class Pair(NamedTuple):
    first: int
    second: str = "x"


class Loose(TypedDict):
    n: int
    more: NotRequired[str]


@dataclasses.dataclass
class Plain:
    n: int
    names: list[str] = dataclasses.field(default_factory=list)


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def anew() -> Any:
    """Return something else each time."""
    return next(_NUMBERS)


_NUMBERS = itertools.count()


class Apple(msgspec.Struct, tag=True):
    n: int = 0


class Pear(msgspec.Struct, tag=True):
    n: int = 0


def said(old: Any, new: Any) -> list[str]:
    """Return what differs, each line with whether it is refused."""
    found = differences(schema_of(old), schema_of(new), "state 'x'")
    return [f"{'refused' if found.refused else 'accepted'} {found}" for found in found]


def at_least(ge: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=ge)]


def struct(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct("Made", fields, **options)


@pytest.mark.parametrize(
    "format",
    [
        int, Any, Count, Tree, Even, Pair, Loose, Plain, Box[int], Box[Count], Colour,
        Apple | Pear, list[Count] | None, dict[str, tuple[int, ...]], tuple[int, str],
        set[str], frozenset[int], Literal[1, "a"], Annotated[int, msgspec.Meta(ge=0)],
        mr.coders.Json(Count), mr.coders.Bytes(), mr.coders.Pickle(),
    ],
    ids=repr,
)  # fmt: skip
def test_a_schema_is_json_and_differs_in_nothing_from_itself(format: Any) -> None:
    again = json.loads(json.dumps(schema_of(format)))

    assert again == schema_of(format)
    assert list(differences(again, schema_of(format), "x")) == []
    assert "0x" not in json.dumps(again)


def test_defaults_that_are_sets_are_the_same_in_every_process() -> None:
    # Of small sets that collide the order is that of insertion; of text it is each process's own.
    one, other = {0: frozenset([0, 8])}, {0: frozenset([8, 0])}
    assert list(one[0]) != list(other[0])

    assert said(struct(("n", Any, one[0])), struct(("n", Any, other[0]))) == []
    made = (struct(("n", Any, msgspec.field(default_factory=each.copy))) for each in (one, other))
    assert said(*made) == []
    assert plain({"sets": [one]}) == plain({"sets": [other]})


def test_the_name_of_a_class_and_the_kind_of_class_are_not_written_so_they_may_change() -> None:
    dataclass = dataclasses.make_dataclass("Other", [("total", int), ("by", str, "")])
    assert said(Count, dataclass) == []


def test_a_renamed_field_is_refused_with_what_to_do() -> None:
    renamed = struct(("amount", int, 0), ("by", str, ""))
    assert said(Count, renamed) == [
        "refused state 'x': field 'total' is gone, and what was written in it would be lost. If it "
        "was renamed, keep the name it is written under: msgspec.field(name='total')",
        "accepted state 'x': field 'amount' is new, with default 0",
    ]


def test_a_renamed_field_that_is_written_under_its_old_name_is_accepted() -> None:
    renamed = struct(("amount", int, msgspec.field(name="total")), ("by", str, ""))
    assert said(Count, renamed) == [
        "accepted state 'x': field 'total' is called 'amount' now, and still written as 'total'"
    ]


def test_rename_changes_the_names_that_are_written() -> None:
    old = struct(("total_sum", int))
    assert said(old, struct(("total_sum", int), rename="camel")) == [
        "refused state 'x': field 'total_sum' is written as 'totalSum' now, and was as 'total_sum'",
        "refused state 'x': field 'totalSum' is new and has no default, and what was written "
        "before lacks it",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (int, float, "was int, is float now"),
        (int, str, "was int, is str now"),
        (int | None, int, "was int | None, is int now"),
        (float, int | float, "may be int now"),
        (int, Any, "was int, is Any now"),
        (list[int], tuple[int, ...], "was list[int], is tuple[int, ...] now"),
        (list[int], list[str], "items: was int, is str now"),
        (dict[str, int], dict[str, str], "values: was int, is str now"),
        (tuple[int, int], tuple[int], "was tuple[int, int], is tuple[int] now"),
        (Literal["a", "b"], Literal["a"], "may not be 'b' any more"),
        (int, Annotated[int, msgspec.Meta(ge=0)], "ge was nothing, is 0 now"),
        (at_least(0), at_least(1), "ge was 0, is 1 now"),
        (Annotated[float, msgspec.Meta(lt=9)], Annotated[float, msgspec.Meta(lt=8)], "lt was 9"),
        (Annotated[str, msgspec.Meta(max_length=4)], Annotated[str, msgspec.Meta(max_length=3)],
         "max_length was 4, is 3 now"),
        (int, mr.coders.Json(int), "was encoded by msgpack, is by json now"),
        (Apple, Pear, "tag was {'type': 'Apple'}, is {'type': 'Pear'} now"),
        (Apple | Pear, Apple, "was Apple | Pear, is Apple now"),
        (Tree, TreeLess, "field 'value' is gone"),
        (Colour, enum.Enum("Colour", {"BLUE": "red", "RED": "blue"}), "member RED was 'red', is"),
        (Pair, struct(("second", str), ("first", int), array_like=True), "field 0 was 'first'"),
        (Pair, struct(("first", int), array_like=True), "field 'second' is gone"),
        (Count, struct(("total", int), ("by", str, ""), tag="c"), "tag was nothing, is"),
        (Count, struct(("total", int), ("by", str, ""), array_like=True), "was Count, is Made now"),
        (
            Count,
            struct(("total", int), ("by", str, ""), forbid_unknown_fields=True),
            "unknown fields are forbidden now",
        ),
        (Count, struct(("total", int), ("by", str, "?")), "field 'by' had default '', has"),
        (Count, struct(("total", int), ("by", str)), "has no default now"),
        (
            struct(("n", int, 0), omit_defaults=True),
            struct(("n", int, 1), omit_defaults=True),
            "field 'n' had default 0, has default 1 now",
        ),
        (
            struct(("n", int)),
            struct(("n", int), ("at", int, msgspec.field(default_factory=anew))),
            "which differs at each reading",
        ),
        (Box[int], Box[str], "field 'inside': was int, is str now"),
    ],
)  # fmt: skip
def test_what_could_lose_something_is_refused(old: Any, new: Any, words: str) -> None:
    refused = [line for line in said(old, new) if line.startswith("refused")]
    assert any(words in line for line in refused), said(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (int, int | None),
        (Count, Count | None),
        (Apple, Apple | Pear),
        (Literal["a"], Literal["a", "b"]),
        (at_least(0), int),
        (at_least(5), at_least(0)),
        (Annotated[float, msgspec.Meta(gt=-1)], Annotated[float, msgspec.Meta(gt=-1.5)]),
        (Annotated[float, msgspec.Meta(le=1)], Annotated[float, msgspec.Meta(le=2)]),
        (Annotated[str, msgspec.Meta(min_length=4)], Annotated[str, msgspec.Meta(min_length=3)]),
        (Annotated[list[int], msgspec.Meta(max_length=4)],
         Annotated[list[int], msgspec.Meta(max_length=9)]),
        (Tree, TreeMore),
        (Pair, struct(("first", int), ("second", str, "x"), ("third", int, 0), array_like=True)),
        (Count, struct(("total", int, 0), ("by", str, ""), omit_defaults=True)),
        (struct(("n", int), forbid_unknown_fields=True), struct(("n", int))),
    ],
)  # fmt: skip
def test_what_loses_nothing_is_accepted(old: Any, new: Any) -> None:
    assert not [line for line in said(old, new) if line.startswith("refused")]


def test_two_classes_of_one_name_are_told_apart() -> None:
    one, other = struct(("n", int)), struct(("n", str))
    assert said(tuple[one, other], tuple[other, one]) == [
        "refused state 'x', item 0, field 'n': was int, is str now",
        "refused state 'x', item 1, field 'n': was str, is int now",
    ]


class Trips:
    def __init__(self, version: Any = 1, inside: Any = int) -> None:
        self.version, self.inside = version, inside

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


class Described(Trips):
    def describe(self) -> Any:
        return {"name": "trips", "version": self.version, "inside": self.inside}


def test_a_coder_of_ones_own_is_known_by_its_name_or_by_what_it_says() -> None:
    assert schema_of(Trips()) == {"coder": "Trips"}
    assert said(Trips(1), Trips(2)) == []
    assert said(Described(1), Described(2)) == ["refused state 'x': version was 1, is 2 now"]
    assert said(Described(1, Count), Described(1, struct(("total", int), ("by", str, "")))) == []
    assert said(Described(1, int), Described(1, str)) == [
        "refused state 'x', inside: was int, is str now"
    ]


def test_a_coder_that_says_nothing_plain_is_refused() -> None:
    with pytest.raises(CoderError, match=r"Wrong.describe\(\) returned 7. Expected a dict"):
        schema_of(type("Wrong", (Trips,), {"describe": staticmethod(lambda: 7)})())
