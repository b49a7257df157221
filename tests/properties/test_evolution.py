"""What is accepted of a changed format loses nothing: the old one writes, the new one reads."""

from __future__ import annotations

import enum
import math
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from millrace.compile.change.schema_change import differences
from millrace.compile.change.schemas import schema_of
from millrace.model.coder import JsonCoder, MsgpackCoder
from millrace.model.errors import CoderError

NAMES = ("a", "b", "c", "d")


class Colour(enum.StrEnum):
    RED = "red"


class MoreColours(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    n: int


class InnerMore(msgspec.Struct):
    n: int | None
    text: str = ""


class Apple(msgspec.Struct, tag="apple"):
    n: int


class Pear(msgspec.Struct, tag="pear"):
    n: int


class Pair(NamedTuple):
    first: int
    second: str


class Triple(NamedTuple):
    first: int
    second: str
    third: int = 3


class Loose(TypedDict):
    n: int


class Looser(TypedDict):
    n: int
    more: NotRequired[str]


#: Those of one row are put for one another.
TYPES: list[list[Any]] = [
    [int, int | None, float, int | float, str, bool],
    [float, float | None, int | float, Any],
    [str, str | None, Literal["x"], Literal["x", "y"], Colour, MoreColours, bytes],
    [list[int], list[int | None], tuple[int, ...], tuple[int, int], set[int], list[float]],
    [dict[str, int], dict[str, int | None], dict[str, Any], Inner, InnerMore, Loose, Looser],
    [Apple, Apple | Pear, Pear, Inner],
    [Pair, Triple, tuple[int, str]],
    [Inner, Inner | None, InnerMore, InnerMore | None],
]

DEFAULTS: dict[Any, Any] = {int: [0, 7], float: [0.0, 1.5], str: ["", "x"], bool: [False]}


class FieldOf(NamedTuple):
    name: str
    type: Any
    default: Any
    encoded: str | None


class Shape(NamedTuple):
    fields: tuple[FieldOf, ...]
    options: dict[str, Any]

    def make(self) -> Any:
        fields: list[Any] = []
        for field in sorted(self.fields, key=lambda field: field.default is not msgspec.NODEFAULT):
            more: dict[str, Any] = {"name": field.encoded} if field.encoded else {}
            if field.default is not msgspec.NODEFAULT:
                more["default"] = field.default
            fields.append((field.name, field.type, msgspec.field(**more)))
        return msgspec.defstruct("Made", fields, **self.options)


def default_of(draw: Any, kind: Any) -> Any:
    known = DEFAULTS.get(kind, [])
    if None in getattr(kind, "__args__", ()) or type(None) in getattr(kind, "__args__", ()):
        known = [None]
    return draw(st.sampled_from([msgspec.NODEFAULT, *known]))


@st.composite
def pairs(draw: Any) -> tuple[Shape, Shape]:
    """A struct, and what may have become of it."""
    fields = []
    rows = []
    for name in NAMES[: draw(st.integers(1, 3))]:
        row = draw(st.sampled_from(TYPES))
        kind = draw(st.sampled_from(row))
        fields.append(FieldOf(name, kind, default_of(draw, kind), None))
        rows.append(row)
    flags = ("array_like", "omit_defaults", "forbid_unknown_fields")
    options = {flag: draw(st.booleans()) for flag in flags}
    options["tag"] = draw(st.sampled_from([None, None, None, "made"]))
    later = list(fields)
    for _ in range(draw(st.integers(1, 2))):
        n = draw(st.integers(0, len(later) - 1))
        old = later[n]
        change = draw(st.sampled_from(["type", "default", "rename", "as", "drop", "add", "swap"]))
        if change == "type":
            row = next((row for row in TYPES if old.type in row), TYPES[0])
            kind = draw(st.sampled_from(row))
            later[n] = old._replace(type=kind, default=default_of(draw, kind))
        elif change == "default":
            later[n] = old._replace(default=default_of(draw, old.type))
        elif change == "rename":
            later[n] = old._replace(name="renamed")
        elif change == "as":
            later[n] = old._replace(name="renamed", encoded=old.name)
        elif change == "drop" and len(later) > 1:
            del later[n]
        elif change == "add":
            later.insert(n, FieldOf("added", int, draw(st.sampled_from([0, 7])), None))
        elif change == "swap":
            later.insert(0, later.pop(n))
        names = [field.encoded or field.name for field in later]
        assume(len({*names}) == len(names) and len({f.name for f in later}) == len(later))
    more = dict(options)
    flag = draw(st.sampled_from([None, None, None, None, *flags, "tag"]))
    if flag is not None:
        more[flag] = "other" if flag == "tag" else not more[flag]
    return Shape(tuple(fields), options), Shape(tuple(later), more)


def equal(one: Any, other: Any) -> bool:
    """Whether plain data is equal, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def values(field: FieldOf) -> Any:
    """Values that a field may be given: an int is taken for a float, too."""
    found = {
        Any: st.integers(-5, 5) | st.text(max_size=3) | st.none(),
        float: st.floats() | st.integers(-5, 5),
        dict[str, Any]: st.dictionaries(st.text(max_size=2), st.integers(-5, 5), max_size=2),
    }.get(field.type)
    known = st.from_type(field.type) if found is None else found
    return known if field.default is msgspec.NODEFAULT else known | st.just(field.default)


def contains(new: Any, old: Any) -> bool:
    """Whether new plain data says what the old did; of records, perhaps more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and contains(new[name], old[name]) for name in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) <= len(new) and all(map(contains, new, old))
    return equal(new, old)


@given(pairs(), st.sampled_from([MsgpackCoder, JsonCoder]), st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_an_accepted_change_reads_is_what_was_written(
    shapes: tuple[Shape, Shape], coder: Any, data: Any
) -> None:
    before, after = (shape.make() for shape in shapes)
    old, new = coder(before), coder(after)
    found = list(differences(schema_of(old), schema_of(new), "state"))
    refused = any(difference.refused for difference in found)
    event("refused" if refused else "accepted" if found else "the same")
    if refused:
        return
    given_values = st.fixed_dictionaries({f.name: values(f) for f in shapes[0].fields})
    try:
        written = old.encode(before(**data.draw(given_values)))
    except CoderError:  # what cannot be carried is refused when it is written
        assume(False)

    was, read = old.decode(written), new.decode(written)

    left = {field.name for field in shapes[0].fields}
    for field in shapes[1].fields:
        encoded = field.encoded or field.name
        value = msgspec.to_builtins(getattr(read, field.name))
        if encoded in left:
            left.remove(encoded)
            assert contains(value, msgspec.to_builtins(getattr(was, encoded)))
        else:
            assert equal(value, field.default)
    assert not left
