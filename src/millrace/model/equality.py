"""Equality of values: which two values are one, where one is counted once or taken back.

Keys are equal when :func:`~millrace.model.keys.encode_key` makes the same bytes of them. Values are
equal when :func:`canonical` does, by the same rule, at any depth: -0.0 is 0.0, all NaN are one; 1,
1.0 and True are three. Decimals go by number, so ``1.0`` is ``1.00``; aware datetimes by instant.
Sets and dicts have no order. A tuple is a list of the same items, which is what msgpack makes of
it. Only the comparison is canonical: a value keeps its own bits.

A value that msgpack does not carry, of a coder of a user's own, is equal by its ``==``.

Source: Spark, "SQL Reference", "NaN Semantics" and the grouping of -0.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final

import msgspec

_encode = msgspec.msgpack.Encoder().encode
#: Of these msgpack has one form for each value, and ``==`` within the type is the rule.
_PLAIN: Final = frozenset((str, int, bytes, bool, type(None)))
_TEXT: Final = frozenset((str,))
_NAN: Final = float("nan")
#: Rounds no Decimal that there is.
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def canonical(value: Any) -> bytes:
    """Return bytes that two values share if, and only if, they are equal.

    Raises:
        TypeError: msgpack does not carry the value.
        OverflowError: It has an int beyond 64 bits.

    >>> canonical({"a": -0.0, "b": 1}) == canonical({"b": 1, "a": 0.0})
    True
    >>> canonical(1) == canonical(True)
    False
    """
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
        return _encode(value)
    return _encode(_normal(value))


def equalities(value: Any) -> tuple[Callable[[Any], bool], ...]:
    """Return the tests for values that equal this one; the first that finds some finds the last.

    The first one is quick, and finds all but values with NaN, and lists beside tuples.

    >>> nan = float("nan")
    >>> [any(test([nan]) for test in equalities(given)) for given in ([-nan], [1.0])]
    [True, False]
    """
    kind = type(value)
    if kind in _PLAIN:
        return (lambda other: type(other) is kind and bool(other == value),)
    try:
        wanted = canonical(value)
    except (TypeError, OverflowError, ValueError):
        return (lambda other: bool(other == value),)
    return (
        lambda other: bool(other == value) and canonical(other) == wanted,
        lambda other: _canonical_if_any(other) == wanted,
    )


def _canonical_if_any(value: Any) -> bytes | None:
    try:
        return canonical(value)
    except (TypeError, OverflowError, ValueError):
        return None


def _normal(value: Any) -> Any:
    """Return what msgpack encodes of a value in one way."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value + 0.0 if value == value else _NAN  # -0.0 + 0.0 is 0.0
    if kind is list or kind is tuple:
        # Most have nothing that must be made alike.
        return value if _PLAIN.issuperset(map(type, value)) else list(map(_normal, value))
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)) and all(isinstance(key, str) for key in value):
            value = {str.__str__(key): item for key, item in value.items()}
        if _TEXT.issuperset(map(type, value)):
            return {"": [(key, _normal(value[key])) for key in sorted(value)]}
        return {"": sorted((canonical(key), canonical(item)) for key, item in value.items())}
    if kind is Decimal:
        return _number(value)
    if isinstance(value, set | frozenset):
        return sorted(map(canonical, value))
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        if not _PLAIN.issuperset(map(type, fields.values())):
            fields = {name: _normal(each) for name, each in fields.items()}
        return [value.__struct_config__.tag, fields]
    if dataclasses.is_dataclass(value):
        return {f.name: _normal(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, float):
        return _normal(float(value))
    return value


def _number(value: Decimal) -> str:
    """Return a Decimal without the zeros that it is written with."""
    if value == 0 or not value.is_finite():
        return "0" if value == 0 else "NaN" if value.is_nan() else str(value)
    return str(value.normalize(_EXACT))
