"""JSON text: values as the sinks write them, in a form from which their type has them again."""

from __future__ import annotations

import math
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """Return a value as JSON.

    JSON has no number for NaN and the infinities. They are the texts ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``, as Spark's ``to_json`` and Protocol Buffers write them.

    Raises:
        TypeError: JSON has no form for the value, such as a dict whose keys are tuples.

    >>> to_json({"count": 2, "mean": float("nan"), "last": None})
    b'{"count":2,"mean":"NaN","last":null}'
    """
    data = _encode(value)
    # msgspec writes null for such a number, so what has no null has none of them.
    if b"null" not in data:
        return data
    plain = msgspec.to_builtins(value, str_keys=True, builtin_types=(msgspec.Raw,))
    return _encode(_spelled(plain))


def _spelled(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value
