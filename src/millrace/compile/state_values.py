"""Values from their bytes, by the schema that the checkpoint keeps: no user's class is needed.

What a program has as an object of a class comes as a dict of its fields, by the names that they
have in the program, in a set and as a key, too; everything else comes as it is there: dates as
dates, tuples as tuples. What the schema does not tell, because a coder of the user's own or pickle
made it, stays :class:`Encoded`. Nothing is unpickled.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millrace.compile.change.schemas import Schema
from millrace.model.errors import DamagedStore


class Encoded(msgspec.Struct, frozen=True):
    """Bytes that only the program can read.

    Attributes:
        coder: What made them, by name.
        data: The bytes.
    """

    coder: str
    data: bytes


class HashableFields(dict[str, Any]):
    """Fields of an object that stands in a set, or is a key: not to be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def reader(schema: Schema) -> Callable[[bytes], Any]:
    """Return what makes values from bytes of a format.

    Args:
        schema: As :func:`~millrace.compile.change.schemas.schema_of` describes the format.

    Returns:
        A function that raises DamagedStore for bytes that are not of the format.

    >>> from millrace.compile.change.schemas import schema_of
    >>> from millrace.model.coder import MsgpackCoder
    >>> class Count(msgspec.Struct):
    ...     query: str
    ...     searches: int = 0
    >>> reader(schema_of(Count))(MsgpackCoder(Count).encode(Count("spark")))
    {'query': 'spark', 'searches': 0}
    """
    coder = schema["coder"]
    if coder == "bytes":
        return bytes
    plain = plain_reader(schema)
    if plain is None:
        return lambda data: Encoded(coder, data)
    decode: Callable[[bytes], Any] = _unpacked if coder == "msgpack" else _decode_json

    def read(data: bytes) -> Any:
        try:
            return plain(decode(data))
        except (msgspec.MsgspecError, AttributeError, LookupError, TypeError, ValueError) as wrong:
            raise DamagedStore(
                f"these bytes are not of the format that the checkpoint says: {data[:40]!r} "
                f"({wrong}). Was the checkpoint put together from two?"
            ) from wrong

    return read


def plain_reader(schema: Schema) -> Callable[[Any], Any] | None:
    """Return what makes values of what msgpack or JSON has for them; None if neither does."""
    if schema["coder"] not in ("msgpack", "json") or "type" not in schema:
        return None
    values = _Values(schema.get("types", {}))
    return lambda data: values.of(schema["type"], data)


_decode_json: Final = msgspec.json.Decoder().decode
_decode_msgpack: Final = msgspec.msgpack.Decoder().decode
#: First byte of a part that has no parts itself -> how many bytes it takes.
_FIXED: Final = {
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
    0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
}  # fmt: skip
#: First byte -> how its length is written, and how many bytes more it takes.
_SIZED: Final = {
    0xC4: (">B", 0), 0xC5: (">H", 0), 0xC6: (">I", 0), 0xC7: (">B", 1), 0xC8: (">H", 1),
    0xC9: (">I", 1), 0xD9: (">B", 0), 0xDA: (">H", 0), 0xDB: (">I", 0),
}  # fmt: skip
_LISTS: Final = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Final = {0xDE: ">H", 0xDF: ">I"}


def _unpacked(data: bytes) -> Any:
    """Return a value from msgpack."""
    try:
        return _decode_msgpack(data)
    except msgspec.DecodeError:
        # Without a type, msgspec refuses a map with an object as a key.
        try:
            value, end = _part(data, 0, key=False)
        except (IndexError, struct.error):
            end = -1
        if end != len(data):
            raise
        return value


def _part(data: bytes, start: int, *, key: bool) -> tuple[Any, int]:
    """Return the part of msgpack that begins at some place, and where it ends."""
    first, at = data[start], start + 1
    if first & 0xE0 == 0x80:  # a small map or list
        count, of_pairs = first & 0x0F, first < 0x90
    elif first in _LISTS or first in _MAPS:
        of_pairs = first in _MAPS
        written = (_MAPS if of_pairs else _LISTS)[first]
        (count,) = struct.unpack_from(written, data, at)
        at += struct.calcsize(written)
    else:
        size = _FIXED.get(first, 1)
        if first & 0xE0 == 0xA0:
            size += first & 0x1F
        elif first in _SIZED:
            written, more = _SIZED[first]
            size += struct.calcsize(written) + struct.unpack_from(written, data, at)[0] + more
        return _decode_msgpack(data[start : start + size]), start + size
    parts = []
    for number in range(count * (2 if of_pairs else 1)):
        part, at = _part(data, at, key=key or (of_pairs and number % 2 == 0))
        parts.append(part)
    if not of_pairs:
        return tuple(parts) if key else parts, at
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return HashableFields(pairs) if key else dict(pairs), at


#: Types that msgpack or JSON carries as text or as numbers.
_TEXTUAL: Final[dict[str, Any]] = {
    "datetime": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": bytes,
    "float": float,
}
_SEQUENCES: Final[dict[str, Callable[[Any], Any]]] = {
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "vartuple": tuple,
}


class _Values:
    """Makes values of the types of one schema."""

    def __init__(self, types: Schema) -> None:
        self._types = types

    def of(self, node: Schema, data: Any, *, hashed: bool = False) -> Any:
        """Return a value of a type, of what msgpack or JSON has for it.

        Args:
            node: The type.
            data: What msgpack or JSON has.
            hashed: Whether the value stands in a set, or is a key.
        """
        node = self._types[node["ref"]] if "ref" in node else node
        kind = node["kind"]
        if kind in _TEXTUAL:
            # As a default, infinity is text.
            return msgspec.convert(data, _TEXTUAL[kind], strict=False)
        if kind in _SEQUENCES:
            inside = hashed or kind in ("set", "frozenset")
            return _SEQUENCES[kind](self.of(node["item"], each, hashed=inside) for each in data)
        if kind == "tuple":
            pairs = zip(node["items"], data, strict=True)
            return tuple(self.of(each, item, hashed=hashed) for each, item in pairs)
        if kind in ("dict", "frozendict"):
            return {
                self._key(node["key"], name): self.of(node["value"], value)
                for name, value in data.items()
            }
        if kind in ("object", "array"):
            if kind == "array":
                # The first of a tagged one is its tag.
                items = data[1:] if "tag" in node else data
                names = [field["name"] for field in node["fields"]]
                data = dict(zip(names, items, strict=False))
            fields = self._fields(node, data, hashed=hashed)
            return HashableFields(fields) if hashed else fields
        if kind == "union":
            return self.of(self._member(node["of"], data), data, hashed=hashed)
        return data

    def _fields(self, node: Schema, data: dict[str, Any], *, hashed: bool) -> dict[str, Any]:
        fields = {}
        for field in node["fields"]:
            attribute = field.get("attribute", field["name"])
            if field["name"] in data:
                fields[attribute] = self.of(field["type"], data[field["name"]], hashed=hashed)
            elif "default" in field:
                fields[attribute] = self._default(field, hashed=hashed)
        return fields

    def _default(self, field: Schema, *, hashed: bool) -> Any:
        """Return the default of a field, which the schema has as JSON."""
        default = field["default"]
        try:
            return self.of(field["type"], default, hashed=hashed)
        except (msgspec.ValidationError, AttributeError, LookupError, TypeError, ValueError):
            return default  # such as None, which the type does not have

    def _key(self, node: Schema, name: Any) -> Any:
        """Return the key of a dict; JSON has them as text."""
        resolved = self._types[node["ref"]] if "ref" in node else node
        if isinstance(name, str) and resolved["kind"] in ("int", "float"):
            return msgspec.convert(
                name, {"int": int, "float": float}[resolved["kind"]], strict=False
            )
        return self.of(node, name, hashed=True)

    def _member(self, members: list[Schema], data: Any) -> Schema:
        """Return which type of a union it is; msgspec takes only unions that can be told apart."""
        # A float may have been written as an int: it is one only where the union has no int.
        for member in sorted(members, key=lambda item: item.get("kind") == "float"):
            node = self._types[member["ref"]] if "ref" in member else member
            if _fits(node, data):
                return member
        return {"kind": "any"}


def _fits(node: Schema, data: Any) -> bool:
    kind, tag = node["kind"], node.get("tag")
    if kind == "object":
        return isinstance(data, dict) and (
            tag is None or all(data.get(field) == value for field, value in tag.items())
        )
    if kind == "array":
        return isinstance(data, list) and (tag is None or data[:1] == [tag])
    if kind in ("dict", "frozendict"):
        return isinstance(data, dict)
    if kind in _SEQUENCES or kind == "tuple":
        return isinstance(data, list)
    if kind == "none":
        return data is None
    if kind in ("enum", "literal"):
        known = node["members"].values() if kind == "enum" else node["values"]
        return data in known
    if kind in ("int", "bool", "str"):
        return type(data) is {"int": int, "bool": bool, "str": str}[kind]
    if kind == "float":
        return type(data) in (int, float)
    if kind in _TEXTUAL:
        try:
            msgspec.convert(data, _TEXTUAL[kind])
        except msgspec.ValidationError:
            return False
        return True
    return True
