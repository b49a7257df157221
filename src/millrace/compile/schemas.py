"""Schemas: what the bytes of a record format or a state cell say, as plain data.

A schema outlives the program that made it, so it holds no names of classes as identity and no
``repr`` of a type, but what the encoding depends on: fields by the names that they are written
under, types, defaults, tags. It is JSON, is kept in the checkpoint, and is compared with the one of
the next program (``compile/evolution.py``)::

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
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from millrace.model.coder import (
    BytesCoder,
    Coder,
    JsonCoder,
    MsgpackCoder,
    PickleCoder,
    coder_for,
)
from millrace.model.errors import CoderError

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
        made = msgspec.to_builtins(value)
        return msgspec.json.decode(msgspec.json.encode(made))
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
        made = {} if kind.__repr__ is plain_repr else {"made": named(coder)}
        return {"coder": named(kind), **made}
    said = describe()
    if not isinstance(said, Mapping) or not all(isinstance(name, str) for name in said):
        raise CoderError(
            f"{named(kind)}.describe() returned {said!r}. Expected a dict of what its bytes "
            'depend on, by name: {"name": "trips", "version": 2}.'
        )
    found: Schema = {"coder": str(said.get("name", named(kind)))}
    for name, value in sorted(said.items()):
        if name != "name":
            found[name] = value if _is_plain(value) else {"format": schema_of(value)}
    return found


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
        found = self._node(mi.type_info(type))
        return {"type": found, **({"types": self._described} if self._described else {})}

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
        found: Schema = {
            "kind": "array" if array else "object",
            "fields": [self._field(field) for field in info.fields],
        }
        if (tag := getattr(info, "tag", None)) is not None:
            found["tag"] = tag if array else {info.tag_field: tag}
        if getattr(info, "forbid_unknown_fields", False):
            found["unknown fields"] = "forbidden"
        return found

    def _field(self, field: mi.Field) -> Schema:
        found: Schema = {"name": field.encode_name, "type": self._node(field.type)}
        if field.name != field.encode_name:
            found["attribute"] = field.name
        if field.default is not msgspec.NODEFAULT:
            found["default"] = plain(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            found |= _made_by(field.default_factory)
        elif not field.required:
            found["optional"] = True
        return found


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
