"""Schemas: what the bytes of a record format or a state cell say, as plain data.

A schema outlives the program that made it, so it holds no names of classes as identity and no
``repr`` of a type, but what the encoding depends on: fields by the names that they are written
under, types, defaults, tags. It is JSON, is kept in the checkpoint, and is compared with the one of
the next program (``compile/change/schema_change.py``)::

    {
        "coder": "msgpack",
        "type": {"ref": "Count"},
        "types": {
            "Count": {
                "kind": "object",
                "fields": [
                    {"name": "query", "type": {"kind": "str"}},
                    {"name": "searches", "type": {"kind": "int"}, "default": 0},
                ],
            }
        },
    }

``types`` holds each class once, under a label for people, so that types may hold themselves.

Shapes: how the cells of a computation lie in rows, and what makes one shape of the one before.

A key's value and combining cells share a row, so rows are laid anew where one comes or goes, and
where values are migrated. A shape has a version; every report of a key interval says which of it
the interval's rows have. An interval is brought to the last one in the commit of its first bundle
after the change, whole: so a migration runs once for every value, and a crash finds an interval
either before or behind it. There are never more than two versions: a change that needs another is
refused until all intervals have the last one.

Source: docs/design/2026-11-22-state-that-changes-shape.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from millrace.compile.topology import ComputationSpec
from millrace.model.coder import (
    BytesCoder,
    Coder,
    JsonCoder,
    MsgpackCoder,
    PickleCoder,
    coder_for,
)
from millrace.model.errors import CoderError
from millrace.model.state import CombiningState, ValueState

#: A schema, or a part of one: text, numbers, lists and dicts.
Schema = dict[str, Any]

#: Where an object lies, and where a function was made: not the same in every process.
_PLACE: Final = re.compile(r"[\w.<>]*<locals>\.| at 0x[0-9a-f]+")

_COLLECTIONS: Final[dict[type, str]] = {
    mi.ListType: "list",
    mi.SetType: "set",
    mi.FrozenSetType: "frozenset",
    mi.VarTupleType: "vartuple",
}


def schema_of(format: Any) -> Schema:
    """Return the schema of a record format or a state type: a type, or a coder.

    Raises:
        CoderError: It is neither, or a coder describes itself as something else than plain data.

    >>> schema_of(int)
    {'coder': 'msgpack', 'type': {'kind': 'int'}}
    """
    coder = coder_for(format)
    if isinstance(coder, MsgpackCoder | JsonCoder):
        return {
            "coder": "msgpack" if isinstance(coder, MsgpackCoder) else "json",
            **_Types().described(coder.type),
        }
    if isinstance(coder, BytesCoder | PickleCoder):
        return {"coder": "bytes" if isinstance(coder, BytesCoder) else "pickle"}
    return _own(coder)


def plain(value: Any) -> Any:
    """Return a value as plain data: as JSON would have it, or else as text.

    >>> plain(float("inf")), plain(b"f"), plain(object())
    ('inf', 'Zg==', '<object object>')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        builtins = msgspec.to_builtins(value, order="deterministic")  # of sets; each has its own
        return msgspec.json.decode(msgspec.json.encode(builtins))
    except (TypeError, ValueError, OverflowError):
        return named(value)


def named(thing: Any) -> str:
    """Return a value, or a function or class by its name, as text that outlives the process.

    >>> named(len), named(named)
    ('len', 'named')
    """
    text = getattr(thing, "__qualname__", None)
    return lasting(text if isinstance(text, str) else repr(thing))


def lasting(text: str) -> str:
    """Return a text without what is of this process: addresses, and where a function was made."""
    return _PLACE.sub("", text)


def _own(coder: Coder) -> Schema:
    """Return the schema of a coder that says itself what its bytes are, or of which none is known.

    Plain values are compared as they are; types and coders among them as formats.
    """
    kind = type(coder)
    describe = getattr(coder, "describe", None)
    if describe is None:
        # A text of its own, such as a dataclass has, tells what it was made with.
        plain_repr: Any = object.__repr__
        own_repr = {} if kind.__repr__ is plain_repr else {"made": named(coder)}
        return {"coder": named(kind), **own_repr}
    said = describe()
    if not isinstance(said, Mapping) or not all(isinstance(name, str) for name in said):
        raise CoderError(
            f"{named(kind)}.describe() returned {said!r}. Expected a dict of what its bytes "
            'depend on, by name: {"name": "trips", "version": 2}.'
        )
    schema: Schema = {"coder": str(said.get("name", named(kind)))}
    for name, value in sorted(said.items()):
        if name != "name":
            schema[name] = value if _is_plain(value) else {"format": schema_of(value)}
    return schema


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    return value is None or isinstance(value, str | int | float)


class _Types:
    """Describes one type, and the classes that it is made of once each."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}
        self._described: dict[str, Schema] = {}

    def described(self, type: Any) -> Schema:
        """Return ``type`` and, if there are any, ``types``."""
        node = self._node(mi.type_info(type))
        return {"type": node, **({"types": self._described} if self._described else {})}

    def _node(self, info: mi.Type) -> Schema:
        if isinstance(info, mi.Metadata):
            return self._node(info.type)
        if isinstance(info, mi.UnionType):
            return {"kind": "union", "of": [self._node(each) for each in info.types]}
        if isinstance(info, mi.LiteralType):
            return {"kind": "literal", "values": sorted(info.values, key=repr)}
        if isinstance(info, mi.TupleType):
            return {"kind": "tuple", "items": [self._node(each) for each in info.item_types]}
        if isinstance(info, mi.DictType | mi.FrozenDictType):
            return {
                "kind": "dict" if isinstance(info, mi.DictType) else "frozendict",
                "key": self._node(info.key_type),
                "value": self._node(info.value_type),
                **_limits(info, "key_type", "value_type"),
            }
        if isinstance(info, mi.CollectionType):
            kind = _COLLECTIONS[type(info)]
            return {"kind": kind, "item": self._node(info.item_type), **_limits(info, "item_type")}
        if isinstance(info, mi.CustomType):
            return {"kind": "custom", "name": named(info.cls)}
        if isinstance(
            info,
            mi.StructType | mi.DataclassType | mi.TypedDictType | mi.NamedTupleType | mi.EnumType,
        ):
            return self._class(info)
        return {"kind": type(info).__name__.removesuffix("Type").lower(), **_limits(info)}

    def _class(self, info: Any) -> Schema:
        """Return a reference to a class, which is described where it is met first."""
        label = self._labels.get(id(info))
        if label is None:
            first = label = named(info.cls)
            while label in self._described:  # another class of the same name
                label = f"{first} #{len(self._described) + 1}"
            self._labels[id(info)] = label
            self._described[label] = {}
            self._described[label] = (
                {"kind": "enum", "members": {each.name: each.value for each in info.cls}}
                if isinstance(info, mi.EnumType)
                else self._object(info)
            )
        return {"ref": label}

    def _object(self, info: Any) -> Schema:
        array = isinstance(info, mi.NamedTupleType) or getattr(info, "array_like", False)
        node: Schema = {
            "kind": "array" if array else "object",
            "fields": [self._field(field) for field in info.fields],
        }
        if (tag := getattr(info, "tag", None)) is not None:
            node["tag"] = tag if array else {info.tag_field: tag}
        if getattr(info, "forbid_unknown_fields", False):
            node["unknown fields"] = "forbidden"
        return node

    def _field(self, field: mi.Field) -> Schema:
        node: Schema = {"name": field.encode_name, "type": self._node(field.type)}
        if field.name != field.encode_name:
            node["attribute"] = field.name
        if field.default is not msgspec.NODEFAULT:
            node["default"] = plain(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            node |= _made_by(field.default_factory)
        elif not field.required:
            node["optional"] = True
        return node


def _made_by(factory: Callable[[], Any]) -> Schema:
    """Return the default that a factory makes; its name, if that is not always the same."""
    try:
        first, second = factory(), factory()
    except Exception:  # noqa: BLE001  the user's; a value without the field will tell
        return {"factory": named(factory)}
    if plain(first) == plain(second):
        return {"default": plain(first)}
    return {"factory": named(factory)}


def _limits(info: Any, *without: str) -> Schema:
    """Return what else a type says of its values: bounds, lengths, time zones."""
    limits = ((name, getattr(info, name)) for name in info.__struct_fields__ if name not in without)
    return {name: value for name, value in limits if value is not None}


#: Kinds of cells that share a row.
SCALARS: Final = (ValueState.__name__, CombiningState.__name__)


class Migrated(msgspec.Struct, frozen=True):
    """One cell whose values are made anew.

    Attributes:
        function: Name of what makes them.
        format: Schema of what they were.
    """

    function: str
    format: Schema


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The last shape of a computation's state, as the registry has it.

    Attributes:
        version: 0 for the first.
        before: Numbers of the value and combining cells that shared a row in the version before.
        gone: Numbers of maps and bags that were dropped with this version.
        migrated: Number of a cell -> how its values were made for this version.
        done: ``cell: function`` of all migrations that have run, or had nothing to do.
        given: How many numbers its cells were given, up to the last that dropped some.
    """

    version: int = 0
    before: list[int] = []
    gone: list[int] = []
    migrated: dict[int, Migrated] = {}
    done: list[str] = []
    given: int = 0


@dataclass(frozen=True)
class Reshape:
    """What brings an interval to the last shape.

    Attributes:
        version: Of the shape.
        before: Numbers of the cells that shared a row.
        after: Numbers of those that do now.
        gone: Numbers of maps and bags without rows any more.
        migrated: Number of a cell -> its name, schema of the values that were, the function.
    """

    version: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    gone: frozenset[int]
    migrated: Mapping[int, tuple[str, Schema, Callable[[Any], Any]]]


def migrations_of(spec: ComputationSpec, known: Shape, state: Schema) -> dict[str, str]:
    """Return cell -> name of its migration, of those that have yet to run.

    Args:
        spec: The computation of the program.
        known: The shape so far.
        state: Cell -> what the checkpoint says of it.
    """
    names = {cell: named(function) for cell, function in spec.evolution.migrations.items()}
    done = _done(known, renamed(spec, state))
    return {cell: name for cell, name in names.items() if f"{cell}: {name}" not in done}


def _done(known: Shape, olds: Mapping[str, str]) -> set[str]:
    """Return what has run, of a cell that has another name now under that."""
    cells = {old: cell for cell, old in olds.items()}
    ran = (entry.partition(": ") for entry in known.done)
    return {f"{cells.get(cell, cell)}: {name}" for cell, _, name in ran}


def shape_after(
    known: Shape, stored: Schema | None, numbers: Mapping[str, int], spec: ComputationSpec
) -> tuple[Shape, dict[str, int]]:
    """Return the shape of a computation's state with another program, and its cells' numbers.

    Args:
        known: The shape so far.
        stored: What the checkpoint says of the computation; None if it is new.
        numbers: Cell -> its number.
        spec: The computation of the program.
    """
    state: Schema = {} if stored is None else stored["state"]
    olds, pending = renamed(spec, state), migrations_of(spec, known, state)
    ran = {f"{cell}: {name}" for cell, name in pending.items()}
    done = sorted(_done(known, olds) | ran)
    found = dict(numbers)
    if stored is None:
        return msgspec.structs.replace(known, done=done), found
    for cell, old in olds.items():
        found[cell] = found.pop(old)
    following = max(known.given, 1 + max(found.values(), default=-1))
    dropped = [cell for cell in state if cell in spec.evolution.dropped]
    given = following if dropped else known.given
    gone = []
    for cell in dropped:
        number = found.pop(cell)
        if state[cell]["cell"] not in SCALARS:
            gone.append(number)
    for cell in sorted(spec.cells.keys() - found.keys()):
        found[cell], following = following, following + 1
    before = sorted(numbers[cell] for cell, said in state.items() if said["cell"] in SCALARS)
    migrated = {
        found[cell]: Migrated(name, state[olds.get(cell, cell)]["format"])
        for cell, name in pending.items()
        if olds.get(cell, cell) in state
    }
    after = scalars_of(spec, found)
    if not migrated and not gone and _lies(before, after):
        return msgspec.structs.replace(known, done=done, given=given), found
    version = known.version + 1
    shape = Shape(
        version=version, before=before, gone=gone, migrated=migrated, done=done, given=given
    )
    return shape, found


def scalars_of(spec: ComputationSpec, numbers: Mapping[str, int]) -> list[int]:
    """Return the numbers of a computation's value and combining cells, ascending."""
    return sorted(
        numbers[name]
        for name, cell in spec.cells.items()
        if isinstance(cell, ValueState | CombiningState)
    )


def renamed(spec: ComputationSpec, state: Schema) -> dict[str, str]:
    """Return cell -> the name under which a checkpoint knows it, of those with another."""
    return {
        name: cell.was
        for name, cell in spec.cells.items()
        if cell.was is not None and cell.was in state and name not in state
    }


def reshape_of(shape: Shape | None, numbers: Mapping[str, int], spec: ComputationSpec) -> Any:
    """Return what brings an interval to the last shape; None where there was never another."""
    if shape is None or not shape.version:
        return None
    names = {number: cell for cell, number in numbers.items()}
    functions = spec.evolution.migrations
    return Reshape(
        shape.version,
        tuple(shape.before),
        tuple(scalars_of(spec, numbers)),
        frozenset(shape.gone),
        {
            number: (names[number], how.format, functions[names[number]])
            for number, how in shape.migrated.items()
            if names[number] in functions and named(functions[names[number]]) == how.function
        },
    )


def _lies(before: list[int], after: list[int]) -> bool:
    """Return whether rows of some cells can be read as those of others, as they are."""
    if not before:
        return True  # there are no rows
    # The only one has its bytes as the row; of several, those behind the last are empty.
    return before == after or (len(before) > 1 and after[: len(before)] == before)
