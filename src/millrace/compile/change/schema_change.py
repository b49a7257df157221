"""What became of a schema: whether bytes that the old one wrote are read by the new one unchanged.

A change is accepted only if every value comes back as it was, and what is new is what its default
says; tests/properties/test_evolution.py writes with the one and reads with the other. Anything else
is refused, also where it might do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from millrace.compile.change.schemas import Schema

_ABSENT: Final = object()


@dataclass(frozen=True)
class Difference:
    """One difference between what a checkpoint says and what a pipeline says.

    Attributes:
        where: What differs: a path that a person can follow.
        what: In which way.
        refused: Whether a checkpoint cannot be gone on with.
    """

    where: str
    what: str
    refused: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def differences(stored: Schema, given: Schema, where: str) -> Iterator[Difference]:
    """Yield what differs between two schemas, field by field.

    Args:
        stored: Of the bytes that there are.
        given: Of what is to read them.
        where: Begins every difference.

    >>> from millrace.compile.change.schemas import schema_of
    >>> for found in differences(schema_of(int), schema_of(float), "state 'total'"):
    ...     print(found)
    state 'total': was int, is float now
    """
    if stored["coder"] != given["coder"]:
        yield Difference(where, f"was encoded by {stored['coder']}, is by {given['coder']} now")
    elif "type" in stored and "type" in given:
        yield from _Comparison(stored, given).of(stored["type"], given["type"], where)
    else:
        for name in sorted({*stored, *given}):
            yield from _described(stored.get(name, _ABSENT), given.get(name, _ABSENT), name, where)


def _described(stored: Any, given: Any, name: str, where: str) -> Iterator[Difference]:
    """Yield what differs in one thing that a coder says of itself."""
    if _is_format(stored) and _is_format(given):
        yield from differences(stored["format"], given["format"], f"{where}, {name}")
    elif not _same(stored, given):
        yield Difference(where, f"{name} was {_as_text(stored)}, is {_as_text(given)} now")


def _is_format(schema: Any) -> bool:
    return isinstance(schema, dict) and "format" in schema


class _Comparison:
    """Compares the types of two schemas. A pair of classes is compared once: they may recur."""

    def __init__(self, stored: Schema, given: Schema) -> None:
        self._stored: Schema = stored.get("types", {})
        self._given: Schema = given.get("types", {})
        self._met: set[tuple[str, str]] = set()

    def of(self, stored: Schema, given: Schema, where: str) -> Iterator[Difference]:
        """Yield what differs between two types."""
        if "ref" in stored and "ref" in given:
            pair = stored["ref"], given["ref"]
            if pair in self._met:
                return
            self._met.add(pair)
        old, new = _resolved(stored, self._stored), _resolved(given, self._given)
        if "union" in (old["kind"], new["kind"]):
            yield from self._unions(old, stored, new, given, where)
        elif old["kind"] != new["kind"]:
            yield Difference(where, f"was {text(stored)}, is {text(given)} now")
        elif old["kind"] in ("object", "array"):
            yield from self._classes(old, new, where)
        elif old["kind"] == "enum":
            yield from _enums(old["members"], new["members"], where)
        elif old["kind"] == "literal":
            yield from _literals(old["values"], new["values"], where)
        else:
            yield from self._parts(old, new, where)

    def _parts(self, old: Schema, new: Schema, where: str) -> Iterator[Difference]:
        """Yield what differs in the types inside a type, and in its bounds."""
        for name in sorted({*old, *new} - {"kind"}):
            was, other = old.get(name, _ABSENT), new.get(name, _ABSENT)
            if name == "items" and len(was) == len(other):
                for n, (first, second) in enumerate(zip(was, other, strict=True)):
                    yield from self.of(first, second, f"{where}, item {n}")
            elif name == "items":
                yield Difference(where, f"was {text(old)}, is {text(new)} now")
            elif name in ("item", "key", "value"):
                yield from self.of(was, other, f"{where}, {name}s")
            elif not _same(was, other):
                loose = old["kind"] != "custom" and _looser(name, was, other)
                yield Difference(
                    where,
                    f"{name} was {_as_text(was)}, is {_as_text(other)} now",
                    refused=not loose,
                )

    def _unions(
        self, old: Schema, stored: Schema, new: Schema, given: Schema, where: str
    ) -> Iterator[Difference]:
        left = list(new["of"]) if new["kind"] == "union" else [given]
        tagged = False
        for member in old["of"] if old["kind"] == "union" else [stored]:
            resolved = _resolved(member, self._stored)
            tagged = tagged or "tag" in resolved
            match = next(
                (each for each in left if _alike(resolved, _resolved(each, self._given))), None
            )
            if match is None:
                yield Difference(where, f"was {text(stored)}, is {text(given)} now")
                return
            left.remove(match)
            yield from self.of(member, match, where)
        for each in left:
            # Nothing else is written as nil; and tags tell one class from another. Other members
            # may read what was written as something else: a float without a fraction as an int.
            member = _resolved(each, self._given)
            harmless = member["kind"] == "none" or (tagged and "tag" in member)
            yield Difference(where, f"may be {text(each)} now", refused=not harmless)

    def _classes(self, old: Schema, new: Schema, where: str) -> Iterator[Difference]:
        if not _same(old.get("tag"), new.get("tag")):
            yield Difference(
                where, f"tag was {_as_text(old.get('tag'))}, is {_as_text(new.get('tag'))} now"
            )
        if "unknown fields" in new and "unknown fields" not in old:
            yield Difference(where, "unknown fields are forbidden now, and were passed over")
        if old["kind"] == "array":
            yield from self._positions(old["fields"], new["fields"], where)
        else:
            yield from self._names(old["fields"], new["fields"], where)

    def _names(self, old: list[Schema], new: list[Schema], where: str) -> Iterator[Difference]:
        """Yield what differs in fields that are written with their names."""
        known = {field["name"]: field for field in new}
        for field in old:
            if field["name"] in known:
                yield from self._fields(field, known[field["name"]], where)
            else:
                yield _gone(field, new, where)
        names = {field["name"] for field in old}
        yield from (_fresh(field, where) for field in new if field["name"] not in names)

    def _positions(self, old: list[Schema], new: list[Schema], where: str) -> Iterator[Difference]:
        """Yield what differs in fields that are written by position alone."""
        for n, (was, other) in enumerate(zip(old, new, strict=False)):
            if was["name"] != other["name"]:
                yield Difference(
                    where,
                    f"field {n} was {was['name']!r}, is {other['name']!r} now; it is written by "
                    "position, so one would be read as the other. New fields go to the end",
                )
                return
            yield from self._fields(was, other, where)
        for field in old[len(new) :]:
            yield _gone(field, [], where)
        yield from (_fresh(field, where) for field in new[len(old) :])

    def _fields(self, old: Schema, new: Schema, where: str) -> Iterator[Difference]:
        name = old["name"]
        if old.get("attribute", name) != new.get("attribute", name):
            yield Difference(
                where,
                f"field {old.get('attribute', name)!r} is called {new.get('attribute', name)!r} "
                f"now, and still written as {name!r}",
                refused=False,
            )
        yield from self.of(old["type"], new["type"], f"{where}, field {name!r}")
        before, after = _default(old), _default(new)
        if before is not _ABSENT and not _same(before, after):
            # Also where defaults are written: not in what was written before there was the field.
            yield Difference(
                where,
                f"field {name!r} had {_default_text(old)}, has {_default_text(new)} now: what was "
                "written without it would be read as another value",
            )


def _looser(name: str, was: Any, other: Any) -> bool:
    """Return whether what kept within a bound keeps within another, or within none."""
    if _ABSENT in (was, other):
        return other is _ABSENT
    if name in ("ge", "gt", "min_length"):
        return bool(other <= was)
    return name in ("le", "lt", "max_length") and bool(other >= was)


def text(node: Schema) -> str:
    """Return a type as a person would write it.

    >>> text({"kind": "dict", "key": {"kind": "str"}, "value": {"ref": "Count"}})
    'dict[str, Count]'
    """
    if "ref" in node:
        return str(node["ref"])
    kind = node["kind"]
    if kind == "union":
        return " | ".join(map(text, node["of"]))
    if kind == "literal":
        return f"Literal[{', '.join(map(repr, node['values']))}]"
    if kind == "tuple":
        return f"tuple[{', '.join(map(text, node['items']))}]"
    if kind == "vartuple":
        return f"tuple[{text(node['item'])}, ...]"
    if "item" in node:
        return f"{kind}[{text(node['item'])}]"
    if "key" in node:
        return f"{kind}[{text(node['key'])}, {text(node['value'])}]"
    return {"none": "None", "any": "Any", "custom": str(node.get("name"))}.get(kind, str(kind))


def _alike(old: Schema, new: Schema) -> bool:
    """Return whether two members of unions may stand for one another."""
    return bool(old["kind"] == new["kind"]) and _same(old.get("tag"), new.get("tag"))


def _resolved(node: Schema, types: Schema) -> Schema:
    schema: Schema = types[node["ref"]] if "ref" in node else node
    return schema


def _enums(old: Schema, new: Schema, where: str) -> Iterator[Difference]:
    for name, value in old.items():
        if not _same(new.get(name, _ABSENT), value):
            yield Difference(where, f"member {name} was {value!r}, {_now(new, name)}")
    for name in new.keys() - old.keys():
        yield Difference(where, f"has a new member {name}", refused=False)


def _now(members: Schema, name: str) -> str:
    return f"is {members[name]!r} now" if name in members else "is gone"


def _literals(old: list[Any], new: list[Any], where: str) -> Iterator[Difference]:
    for value in old:
        if not any(_same(value, each) for each in new):
            yield Difference(where, f"may not be {value!r} any more")
    for value in new:
        if not any(_same(value, each) for each in old):
            yield Difference(where, f"may be {value!r} now", refused=False)


def _gone(field: Schema, new: list[Schema], where: str) -> Difference:
    name = field["name"]
    renamed = next((f for f in new if f.get("attribute") == name), None)
    if renamed is not None:
        change = f"field {name!r} is written as {renamed['name']!r} now, and was as {name!r}"
    else:
        change = (
            f"field {name!r} is gone, and what was written in it would be lost. If it was renamed, "
            f"keep the name it is written under: msgspec.field(name={name!r})"
        )
    return Difference(where, change)


def _fresh(field: Schema, where: str) -> Difference:
    default, name = _default(field), field["name"]
    change = f"field {name!r} is new, with {_default_text(field)}"
    if default is _ABSENT:
        change = f"field {name!r} is new and has no default, and what was written before lacks it"
    elif "factory" in field:
        change += ", which differs at each reading of what was written before"
    return Difference(where, change, refused=default is _ABSENT or "factory" in field)


def _default(field: Schema) -> Any:
    """Return what stands for a field that was not written."""
    for name in ("default", "factory", "optional"):
        if name in field:
            return {name: field[name]}
    return _ABSENT


def _default_text(field: Schema) -> str:
    if "default" in field:
        return f"default {field['default']!r}"
    if "factory" in field:
        return f"a default made by {field['factory']}"
    return "no value where it is missing" if "optional" in field else "no default"


def _as_text(value: Any) -> str:
    return "nothing" if value is _ABSENT or value is None else repr(value)


def _same(before: Any, after: Any) -> bool:
    """Return whether plain data is equal, types included: 0, 0.0 and False differ."""
    if before is _ABSENT or after is _ABSENT:
        return before is after
    return json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
