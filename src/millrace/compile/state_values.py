"""Values from their bytes, by the schema that the checkpoint keeps: no user's class is needed.

What a program has as an object of a class comes as a dict of its fields, by the names that they
have in the program; everything else comes as it is there: dates as dates, tuples as tuples. What
the schema does not tell, because a coder of the user's own or pickle made it, stays
:class:`Encoded`. Nothing is unpickled.
"""

from __future__ import annotations

import datetime as dt
import decimal
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
    decode: Callable[[bytes], Any] = (
        msgspec.msgpack.Decoder().decode if coder == "msgpack" else msgspec.json.Decoder().decode
    )

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

    def of(self, node: Schema, data: Any) -> Any:
        """Return a value of a type, of what msgpack or JSON has for it."""
        node = self._types[node["ref"]] if "ref" in node else node
        kind = node["kind"]
        if kind in _TEXTUAL:
            return msgspec.convert(data, _TEXTUAL[kind])
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self.of(node["item"], each) for each in data)
        if kind == "tuple":
            pairs = zip(node["items"], data, strict=True)
            return tuple(self.of(each, item) for each, item in pairs)
        if kind in ("dict", "frozendict"):
            return {
                self._key(node["key"], name): self.of(node["value"], value)
                for name, value in data.items()
            }
        if kind == "object":
            return self._fields(node, data)
        if kind == "array":
            # The first of a tagged one is its tag.
            items = data[1:] if "tag" in node else data
            names = [field["name"] for field in node["fields"]]
            return self._fields(node, dict(zip(names, items, strict=False)))
        if kind == "union":
            return self.of(self._member(node["of"], data), data)
        return data

    def _fields(self, node: Schema, data: dict[str, Any]) -> dict[str, Any]:
        fields = {}
        for field in node["fields"]:
            attribute = field.get("attribute", field["name"])
            if field["name"] in data:
                fields[attribute] = self.of(field["type"], data[field["name"]])
            elif "default" in field:
                fields[attribute] = field["default"]
        return fields

    def _key(self, node: Schema, name: Any) -> Any:
        """Return the key of a dict; JSON has them as text."""
        resolved = self._types[node["ref"]] if "ref" in node else node
        if isinstance(name, str) and resolved["kind"] in ("int", "float"):
            return msgspec.convert(
                name, {"int": int, "float": float}[resolved["kind"]], strict=False
            )
        return self.of(node, name)

    def _member(self, members: list[Schema], data: Any) -> Schema:
        """Return which type of a union it is; msgspec takes only unions that can be told apart."""
        for member in members:
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
