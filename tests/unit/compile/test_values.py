"""Values by the schema that the checkpoint keeps are what the program has, but for its classes."""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

import millrace as mr
from millrace.compile.change.schemas import schema_of
from millrace.compile.state_values import reader
from millrace.inspect import Encoded
from millrace.model.coder import coder_for
from millrace.model.errors import DamagedStore


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int = 0


class Short(msgspec.Struct, array_like=True):
    name: str
    at: dt.datetime | None = None


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    tags: set[str] = set()


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Tree(msgspec.Struct):
    value: int
    children: list["Tree"] = []


class Place(msgspec.Struct, frozen=True):
    x: int
    at: tuple[dt.date, ...] = ()


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Place
    second: Place | None = None


@dataclasses.dataclass
class Row:
    id: int
    of: uuid.UUID


NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
ID = uuid.UUID(int=7)


@pytest.mark.parametrize("coder", [mr.coders.Msgpack, mr.coders.Json])
@pytest.mark.parametrize(
    ("format", "value", "expected"),
    [
        (int, 7, 7),
        (float, 2.0, 2.0),
        (bytes, b"raw", b"raw"),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (tuple[int, str], (1, "a"), (1, "a")),
        (tuple[int, ...], (1, 2), (1, 2)),
        (frozenset[int], frozenset({1}), frozenset({1})),
        (dict[int, list[bytes]], {1: [b"a"]}, {1: [b"a"]}),
        (dt.datetime, NOON, NOON),
        (dt.date, NOON.date(), NOON.date()),
        (dt.timedelta, dt.timedelta(minutes=5), dt.timedelta(minutes=5)),
        (decimal.Decimal, decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (uuid.UUID, ID, ID),
        (Colour, Colour.RED, "red"),
        (Literal["a", "b"], "b", "b"),
        (Point, Point(1), {"x": 1, "y": 0}),
        (Short, Short("a", NOON), {"name": "a", "at": NOON}),
        (Renamed, Renamed("a", {"t"}), {"first_name": "a", "tags": {"t"}}),
        (Row, Row(1, ID), {"id": 1, "of": ID}),
        (Cat | Dog, Dog("rex"), {"name": "rex"}),
        (Cat | None, None, None),
        (int | str | None, "x", "x"),
        (list[Cat | Dog], [Cat(9)], [{"lives": 9}]),
        (
            Tree,
            Tree(1, [Tree(2)]),
            {"value": 1, "children": [{"value": 2, "children": []}]},
        ),
    ],
)
def test_a_value_is_read_by_its_schema(coder, format, value, expected):
    made = coder(format)
    # As the checkpoint has it: through JSON.
    schema = msgspec.json.decode(msgspec.json.encode(schema_of(made)))

    found = reader(schema)(made.encode(value))

    assert found == expected
    assert type(found) is type(expected)


TODAY = (NOON.date(),)


@pytest.mark.parametrize("coder", [mr.coders.Msgpack, mr.coders.Json])
@pytest.mark.parametrize(
    ("format", "value", "expected"),
    [
        (set[Place], {Place(1), Place(2)}, [{"x": 1, "at": ()}, {"x": 2, "at": ()}]),
        (frozenset[Pair], {Pair(Place(1))}, [{"first": {"x": 1, "at": ()}, "second": None}]),
        (set[Point], {Point(1)}, [{"x": 1, "y": 0}]),
        (set[tuple[Place, int]], {(Place(1, TODAY), 2)}, [({"x": 1, "at": TODAY}, 2)]),
    ],
)
def test_objects_in_a_set_are_dicts_in_a_set(coder, format, value, expected):
    found = reader(schema_of(coder(format)))(coder(format).encode(value))

    assert isinstance(found, set | frozenset)
    assert sorted(found, key=repr) == expected


@pytest.mark.parametrize(
    ("format", "value", "expected"),
    [
        (dict[Place, int], {Place(1): 2}, [({"x": 1, "at": ()}, 2)]),
        (dict[Point, str], {Point(1): "a"}, [({"x": 1, "y": 0}, "a")]),
        (dict[tuple[Place, int], str], {(Place(1), 2): "a"}, [(({"x": 1, "at": ()}, 2), "a")]),
    ],
)
def test_objects_that_are_keys_of_a_dict_are_dicts(format, value, expected):
    coder = mr.coders.Msgpack(format)

    assert list(reader(schema_of(coder))(coder.encode(value)).items()) == expected


def test_all_that_msgpack_writes_is_read_beside_objects_that_are_keys():
    numbers = [0, 127, -1, -32, -33, 200, 2**16, -(2**16), 2**40, -(2**40), 2**64 - 1, 1.5]
    texts = ["x" * n for n in (0, 31, 32, 300, 70_000)]
    parts = [*numbers, None, True, *texts, *(text.encode() for text in texts), NOON, {"a": 1}]
    lists = [list(range(n)) for n in (15, 16, 70_000)]
    maps = [{str(n): n for n in range(size)} for size in (15, 16, 70_000)]
    coder = mr.coders.Msgpack(dict[Place, Any])
    value = [*parts, *lists, *maps]

    (found,) = reader(schema_of(coder))(coder.encode({Place(1): value})).values()

    assert found == value
    with pytest.raises(DamagedStore):
        reader(schema_of(coder))(coder.encode({Place(1): value})[:-1])


@pytest.mark.parametrize("format", [int | float, float | int])
def test_a_number_that_may_be_both_is_what_was_written(format):
    coder = mr.coders.Msgpack(format)

    found = [reader(schema_of(coder))(coder.encode(value)) for value in (3, 3.0)]

    assert list(map(repr, found)) == ["3", "3.0"]


class Left(msgspec.Struct, omit_defaults=True):
    """What is as it is by default is not written."""

    data: bytes = b"f"
    at: dt.datetime | None = NOON
    most: float = float("inf")
    cost: decimal.Decimal = decimal.Decimal("1.50")
    pair: tuple[int, ...] = (1, 2)
    tags: set[str] = set()
    colour: Colour = Colour.RED
    row: Place = Place(1, (NOON.date(),))
    names: dict[int, bytes] = msgspec.field(default_factory=lambda: {1: b"a"})
    nothing: int = None  # type: ignore[assignment]


def test_a_default_is_of_the_type_of_its_field():
    schema = msgspec.json.decode(msgspec.json.encode(schema_of(Left)))

    assert reader(schema)(coder_for(Left).encode(Left())) == {
        "data": b"f",
        "at": NOON,
        "most": float("inf"),
        "cost": decimal.Decimal("1.50"),
        "pair": (1, 2),
        "tags": set(),
        "colour": "red",
        "row": {"x": 1, "at": (NOON.date(),)},
        "names": {1: b"a"},
        "nothing": None,
    }


def test_a_field_that_was_not_written_has_its_default():
    class Before(msgspec.Struct):
        page: str

    class After(Before):
        seconds: int = 5

    read = reader(schema_of(After))

    assert read(coder_for(Before).encode(Before("a"))) == {"page": "a", "seconds": 5}


def test_bytes_are_bytes():
    assert reader(schema_of(mr.coders.Bytes()))(b"raw") == b"raw"


class Braille:
    def encode(self, value):
        raise NotImplementedError

    def decode(self, data):
        raise AssertionError("the user's coder is not here")


@pytest.mark.parametrize(
    ("coder", "name"), [(mr.coders.Pickle(), "pickle"), (Braille(), "Braille")]
)
def test_what_only_the_program_can_read_stays_encoded(coder, name):
    assert reader(schema_of(coder))(b"..") == Encoded(name, b"..")


def test_bytes_of_another_format_are_damage():
    with pytest.raises(DamagedStore, match="not of the format that the checkpoint says"):
        reader(schema_of(dict[str, int]))(b"\x07")
