"""The types that a field can have, with values of each; how two values are compared; outcomes."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import math
import re
import traceback
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

import millrace as mr


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(msgspec.Struct, frozen=True):
    x: int
    name: str


@dataclasses.dataclass(frozen=True)
class Place:
    x: int
    name: str


class Missing:
    """Stands for nothing: what was to come did not."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()

INDIA = dt.timezone(dt.timedelta(hours=5, minutes=30))


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc]  # microseconds, last


@dataclasses.dataclass(frozen=True)
class Kind:
    """A row of the matrix.

    Bytes are base64 in JSON, as Spark writes and reads them.

    Attributes:
        name: What the row is called.
        type: The Python type that is declared.
        values: Values of it, or values that a user may take for such.
        ddl: Spark's type of a column that holds them; None: there is none.
        json: Each value as JSON text, where JSON has a usual form for it.
    """

    name: str
    type: Any
    values: tuple[Any, ...]
    ddl: str | None = None
    json: tuple[str, ...] = ()


_EDGE = [1 << n for n in (7, 15, 31, 63)]


def _ints(name: str, bits: int, ddl: str) -> Kind:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return Kind(name, int, (0, low, high), ddl, ("0", str(low), str(high)))


SCALARS = (
    Kind("bool", bool, (True, False), "boolean", ("true", "false")),
    _ints("int, 8 bits", 8, "tinyint"),
    _ints("int, 16 bits", 16, "smallint"),
    _ints("int, 32 bits", 32, "int"),
    _ints("int, 64 bits", 64, "bigint"),
    Kind("int, 64 bits without a sign", int, (1 << 63, (1 << 64) - 1), "decimal(20,0)",
         (str(1 << 63), str((1 << 64) - 1))),
    Kind("int beyond 64 bits", int, (1 << 64, -(1 << 63) - 1, 1 << 100), "decimal(38,0)",
         (str(1 << 64), str(-(1 << 63) - 1), str(1 << 100))),
    Kind("float", float, (0.5, 1e300, 5e-324), "double", ("0.5", "1e300", "5e-324")),
    Kind("float, 32 bits", float, (0.5, -3.4028234663852886e38), "float",
         ("0.5", "-3.4028234663852886e38")),
    Kind("float NaN", float, (math.nan,), "double", ("NaN",)),
    Kind("float infinity", float, (math.inf, -math.inf), "double", ("Infinity", "-Infinity")),
    Kind("float -0.0", float, (-0.0,), "double", ("-0.0",)),
    Kind("Decimal", Decimal, (Decimal("19.99"), Decimal("-0.01"), Decimal("12345678901234567.89")),
         "decimal(38,2)", ("19.99", "-0.01", "12345678901234567.89")),
    Kind("Decimal, 38 digits", Decimal, (Decimal("9" * 38), Decimal("-" + "9" * 38)),
         "decimal(38,0)", ("9" * 38, "-" + "9" * 38)),
    Kind("Decimal beyond 38 digits", Decimal, (Decimal("9" * 50), Decimal("1E+60"))),
    Kind("Decimal, not finite", Decimal, (Decimal("NaN"), Decimal("Infinity"))),
    Kind("str", str, ("", "tea", "Grüße\n☃"), "string", ('""', '"tea"', '"Grüße\\n☃"')),
    Kind("str with NUL", str, ("a\0b",), "string", ('"a\\u0000b"',)),
    Kind("str, astral", str, ("\U0001d4af\U0001f375",), "string", ('"\U0001d4af\\ud83c\\udf75"',)),
    Kind("str, lone surrogate", str, ("a\ud800b",), None, ('"a\\ud800b"',)),
    Kind("bytes", bytes, (b"", b"tea", bytes(range(256))), "binary",
         ('""', '"dGVh"', f'"{base64.b64encode(bytes(range(256))).decode()}"')),
    Kind("date", dt.date, (dt.date(2026, 11, 27), dt.date(1969, 12, 31)), "date",
         ('"2026-11-27"', '"1969-12-31"')),
    Kind("date, both ends", dt.date, (dt.date.min, dt.date.max), "date",
         ('"0001-01-01"', '"9999-12-31"')),
    Kind("instant", dt.datetime, (utc(2026, 11, 27, 1, 2, 3, 456789), utc(2026, 1, 1)),
         "timestamp", ('"2026-11-27T01:02:03.456789Z"', '"2026-01-01T00:00:00Z"')),
    Kind("instant before 1970", dt.datetime, (utc(1969, 12, 31, 23, 59, 59, 999999),),
         "timestamp", ('"1969-12-31T23:59:59.999999Z"',)),
    Kind("instant beyond 2262", dt.datetime, (utc(2300, 1, 1),), "timestamp",
         ('"2300-01-01T00:00:00Z"',)),
    Kind("instant, both ends", dt.datetime,
         (utc(1, 1, 1), utc(9999, 12, 31, 23, 59, 59, 999999)), "timestamp",
         ('"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"')),
    Kind("instant in a zone", dt.datetime, (dt.datetime(2026, 11, 27, 9, 0, tzinfo=INDIA),),
         "timestamp", ('"2026-11-27T09:00:00+05:30"',)),
    Kind("datetime without a zone", dt.datetime, (dt.datetime(2026, 11, 27, 9, 0),),
         "timestamp_ntz", ('"2026-11-27T09:00:00"',)),
    Kind("UUID", uuid.UUID, (uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1)), "string",
         ('"00000000-0000-0000-0000-000000000000"', '"ffffffff-ffff-ffff-ffff-ffffffffffff"')),
    Kind("enum of text", Color, (Color.RED,), "string", ('"red"',)),
    Kind("enum of ints", Level, (Level.HIGH,), "bigint", ("3",)),
    Kind("null", int | None, (None,), "bigint", ("null",)),
)  # fmt: skip

NESTED = (
    Kind("list", list[int], ([1, 2], []), "array<bigint>", ("[1,2]", "[]")),
    Kind("list with null", list[int | None], ([1, None],), "array<bigint>", ("[1,null]",)),
    Kind("list of lists", list[list[str]], ([["a"], []],), "array<array<string>>",
         ('[["a"],[]]',)),
    Kind("tuple", tuple[int, str], ((1, "a"),), "struct<_1: bigint, _2: string>", ('[1,"a"]',)),
    Kind("tuple, any length", tuple[int, ...], ((1, 2), ()), "array<bigint>", ("[1,2]", "[]")),
    Kind("set", set[int], ({1, 2}, set()), "array<bigint>", ("[1,2]", "[]")),
    Kind("frozenset", frozenset[str], (frozenset({"a"}),), "array<string>", ('["a"]',)),
    Kind("Struct", Point, (Point(1, "a"),), "struct<x: bigint, name: string>",
         ('{"x":1,"name":"a"}',)),
    Kind("dataclass", Place, (Place(1, "a"),), "struct<x: bigint, name: string>",
         ('{"x":1,"name":"a"}',)),
    Kind("list of Structs", list[Point], ([Point(1, "a"), Point(2, "")],),
         "array<struct<x: bigint, name: string>>", ('[{"x":1,"name":"a"},{"x":2,"name":""}]',)),
    Kind("dict", dict[str, int], ({"a": 1}, {}), "map<string, bigint>", ('{"a":1}', "{}")),
    Kind("dict of lists", dict[str, list[int]], ({"a": [1], "b": []},),
         "map<string, array<bigint>>", ('{"a":[1],"b":[]}',)),
    Kind("dict by int", dict[int, str], ({1: "a", -1: ""},), "map<bigint, string>",
         ('{"1":"a","-1":""}',)),
    Kind("dict of instants", dict[str, dt.datetime], ({"a": utc(2026, 1, 1)},),
         "map<string, timestamp>", ('{"a":"2026-01-01T00:00:00Z"}',)),
)  # fmt: skip

KINDS = SCALARS + NESTED

#: The scalars that are nested in every container; the rest differ from them in their edges only.
ITEMS = tuple(
    kind
    for kind in SCALARS
    if kind.name not in ("int, 8 bits", "int, 16 bits", "int, 32 bits", "float, 32 bits", "null")
)

#: How a value is nested: name -> the type and the value around it.
CONTAINERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list of": (lambda of: list[of], lambda value: [value]),
    "tuple with": (lambda of: tuple[int, of], lambda value: (1, value)),
    "dict of": (lambda of: dict[str, of], lambda value: {"a": value}),
    "Struct with": (lambda of: _struct(of), lambda value: _struct(value[0])(value[1])),
}

_STRUCTS: dict[Any, Any] = {}


def _struct(of: Any) -> Any:
    if of not in _STRUCTS:
        _STRUCTS[of] = msgspec.defstruct(f"Of{len(_STRUCTS)}", [("inner", of)], module=__name__)
    return _STRUCTS[of]


def nested(container: str, kind: Kind) -> Kind:
    """Return the values of a kind, each in a container."""
    type_of, value_of = CONTAINERS[container]
    values = [
        _struct(kind.type)(value) if container == "Struct with" else value_of(value)
        for value in kind.values
    ]
    return Kind(f"{container} {kind.name}", type_of(kind.type), tuple(values))


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same: type, sign of zero, instant; all NaN are one.

    >>> same(0.0, -0.0), same(float("nan"), float("nan")), same(1, True), same([1], (1,))
    (False, True, False, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, dt.datetime):
        return (one.tzinfo is None) == (other.tzinfo is None) and one == other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, n), getattr(other, n)) for n in one.__struct_fields__)
    return bool(one == other)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a value.

    Attributes:
        word: ``equal``, ``refused`` or ``letter``; anything else is a fault.
        detail: What happened.
    """

    word: str
    detail: str = ""

    @property
    def right(self) -> bool:
        return self.word in ("equal", "refused", "letter")


EQUAL = Outcome("equal")


def compared(given: Any, received: Any) -> Outcome:
    """Return ``equal``, ``lost`` or ``wrong``."""
    if isinstance(received, Missing):
        return Outcome("lost", f"{given!r} did not come")
    if same(given, received):
        return EQUAL
    return Outcome("wrong", f"{given!r} came as {received!r}")


def raised(error: BaseException, names: str) -> Outcome:
    """Return the outcome of an exception in a run with dead letters: a fault."""
    return Outcome("error", f"{type(error).__name__}: {first_line(error)}{_at(error)}")


def refused(error: BaseException, *names: str) -> Outcome:
    """Return the outcome of an exception while a pipeline is built: it names the place, or not."""
    told = str(error)
    if isinstance(error, mr.MillraceError) and any(name in told for name in names):
        return Outcome("refused", first_line(error))
    return Outcome("error", f"at build: {type(error).__name__}: {first_line(error)}{_at(error)}")


def lettered(reason: str, *names: str) -> Outcome:
    """Return the outcome of a letter, whose reason names the field or its type, or not."""
    if any(re.search(rf"\b{re.escape(name)}\b", reason) for name in names):
        return Outcome("letter", reason.splitlines()[0][:300])
    return Outcome("unnamed letter", reason[:300])


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def _at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/millrace/" in frame.filename]
    if isinstance(error, mr.MillraceError) or not ours:
        return ""
    return f" (in {ours[-1].filename.rsplit('/millrace/')[-1]}, {ours[-1].name})"


def word_of(outcomes: Sequence[Outcome]) -> str:
    """Return the word of a cell: that of all its values, or what it is of which."""
    return " / ".join(dict.fromkeys(outcome.word for outcome in outcomes))
