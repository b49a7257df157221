"""Expressions of one value, without Arrow: where there is one, kernels cost more than all else.

It knows few operations, and of these only the values for which Python's result is surely that of
Arrow's kernels. Of all others it says nothing, and the kernels are asked.

Source: docs/design/2026-11-28-expressions.md.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

#: Computes an expression, given what returns a field by its name.
Compute = Callable[[Callable[[str], Any]], Any]


class Unsure(Exception):
    """The result may be another than that of the kernels."""


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
#: Integers up to here are floats without loss.
_EXACT: Final = 1 << 53


def compute_of(expression: Any) -> Compute | None:
    """Return what computes an expression of a value; None if it has operations that are not known.

    What it returns raises :class:`Unsure` for values of which it is not sure.
    """
    first, *others = expression._nodes  # ``expression.nodes_of`` has looked whether they are there
    if first.name == "when_then":
        made = _choice([_inner(expr, as_text=False) for expr in first.exprs])
        return made if all(node.name == "alias" for node in others) else None
    made = _first(first)
    for node in others:
        if made is None:
            return None
        if node.name == "alias":
            continue
        inner = [_inner(expr, as_text=node.str_as_lit) for expr in node.exprs]
        if node.name in _BINARY and len(inner) == 1 and inner[0] is not None:
            made = _BINARY[node.name](made, inner[0])
        elif node.name in _UNARY and not inner:
            made = _UNARY[node.name](made)
        else:
            return None
    return made


def _choice(parts: list[Compute | None]) -> Compute | None:
    """Return what chooses between two results, which are of one type for every value."""
    if len(parts) != 3 or any(part is None for part in parts):
        return None
    test, then, otherwise = (part for part in parts if part is not None)

    def compute(field: Callable[[str], Any]) -> Any:
        one, other = then(field), otherwise(field)
        if type(one) is not type(other):
            raise Unsure
        return one if test(field) is True else other

    return compute


def _first(node: Any) -> Compute | None:
    if node.name == "col" and len(node.kwargs["names"]) == 1:
        (name,) = node.kwargs["names"]
        return lambda field: field(name)
    if node.name == "all_horizontal" and len(node.exprs) == 1:  # the condition of ``when``
        return _inner(node.exprs[0], as_text=False)
    if node.name == "lit" and node.kwargs.get("dtype") is None:
        return _literal(node.kwargs["value"])
    return None


def _inner(one: Any, *, as_text: bool) -> Compute | None:
    if hasattr(one, "_nodes"):
        return compute_of(one)
    if isinstance(one, str) and not as_text:
        return lambda field: field(one)
    return _literal(one)


def _literal(value: Any) -> Compute | None:
    if type(value) not in (bool, int, float, str):
        return None
    return lambda _: value


def _same(left: Any, right: Any) -> type:
    """Return the type that two values have, which are compared or computed with."""
    kind = type(left)
    if type(right) is not kind:
        raise Unsure
    return kind


def _compared(by: Callable[[Any, Any], Any], kinds: tuple[type, ...]) -> Any:
    def node(before: Compute, other: Compute) -> Compute:
        def compute(field: Callable[[str], Any]) -> Any:
            left, right = before(field), other(field)
            if left is None or right is None:
                return None
            if _same(left, right) not in kinds:
                raise Unsure
            return by(left, right)

        return compute

    return node


def _arithmetic(by: Callable[[Any, Any], Any], *, right: bool = False) -> Any:
    def node(before: Compute, other: Compute) -> Compute:
        def compute(field: Callable[[str], Any]) -> Any:
            one, two = before(field), other(field)
            if one is None or two is None:
                return None
            if right:
                one, two = two, one
            kinds = {type(one), type(two)}
            if kinds == {int}:
                found = by(one, two)
                if not _LEAST <= found <= _MOST:
                    raise Unsure
                return found
            if not kinds <= {int, float}:
                raise Unsure
            if any(type(each) is int and not -_EXACT <= each <= _EXACT for each in (one, two)):
                raise Unsure
            return by(float(one), float(two))

        return compute

    return node


def _divided(before: Compute, other: Compute) -> Compute:
    def compute(field: Callable[[str], Any]) -> Any:
        one, two = before(field), other(field)
        if one is None or two is None:
            return None
        for each in (one, two):
            if type(each) is not float and (type(each) is not int or abs(each) > _EXACT):
                raise Unsure
        if two == 0:
            raise Unsure
        return float(one) / float(two)

    return compute


def _floored(by: Callable[[int, int], int]) -> Any:
    def node(before: Compute, other: Compute) -> Compute:
        def compute(field: Callable[[str], Any]) -> Any:
            one, two = before(field), other(field)
            if one is None or two is None:
                return None
            if type(one) is not int or type(two) is not int or two in (0, -1):
                raise Unsure
            return by(one, two)

        return compute

    return node


def _three_valued(decided: bool) -> Callable[[Compute, Compute], Compute]:
    """Return ``or`` if true decides, ``and`` if false does; null is unknown."""

    def node(before: Compute, other: Compute) -> Compute:
        def compute(field: Callable[[str], Any]) -> Any:
            left, right = before(field), other(field)
            if left is decided or right is decided:
                return decided
            return None if left is None or right is None else not decided

        return compute

    return node


def _not(before: Compute) -> Compute:
    def compute(field: Callable[[str], Any]) -> Any:
        value = before(field)
        if value is not None and type(value) is not bool:
            raise Unsure
        return None if value is None else not value

    return compute


def _is_null(before: Compute) -> Compute:
    return lambda field: before(field) is None


def _text(by: Callable[[str], Any]) -> Any:
    def node(before: Compute) -> Compute:
        def compute(field: Callable[[str], Any]) -> Any:
            value = before(field)
            if value is None:
                return None
            # Of other letters Python and Arrow may know another version of Unicode.
            if type(value) is not str or not value.isascii():
                raise Unsure
            return by(value)

        return compute

    return node


_ORDERED: Final = (int, float, str)
_BINARY: Final[dict[str, Callable[[Compute, Compute], Compute]]] = {
    "__eq__": _compared(operator.eq, (*_ORDERED, bool)),
    "__ne__": _compared(operator.ne, (*_ORDERED, bool)),
    "__lt__": _compared(operator.lt, _ORDERED),
    "__le__": _compared(operator.le, _ORDERED),
    "__gt__": _compared(operator.gt, _ORDERED),
    "__ge__": _compared(operator.ge, _ORDERED),
    "__add__": _arithmetic(operator.add),
    "__sub__": _arithmetic(operator.sub),
    "__mul__": _arithmetic(operator.mul),
    "__radd__": _arithmetic(operator.add, right=True),
    "__rsub__": _arithmetic(operator.sub, right=True),
    "__rmul__": _arithmetic(operator.mul, right=True),
    "__truediv__": _divided,
    "__floordiv__": _floored(operator.floordiv),
    "__mod__": _floored(operator.mod),
    "__and__": _three_valued(False),
    "__or__": _three_valued(True),
}
_UNARY: Final[dict[str, Callable[[Compute], Compute]]] = {
    "__invert__": _not,
    "is_null": _is_null,
    "str.to_lowercase": _text(str.lower),
    "str.to_uppercase": _text(str.upper),
    "str.len_chars": _text(len),
}
