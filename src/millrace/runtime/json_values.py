"""JSON text: values in a form from which their type has them again, numbers that JSON lacks too."""

from __future__ import annotations

import math
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """Return a value of Arrow or a key as JSON.

    JSON has no number for NaN and the infinities. They are the texts ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``, as Spark's ``to_json`` and Protocol Buffers write them.

    >>> to_json({"count": 2, "mean": float("nan"), "last": None})
    b'{"count":2,"mean":"NaN","last":null}'
    """
    data = _encode(value)
    # msgspec writes null for such a number, so what has no null has none of them.
    return _encode(_spelled(value)) if b"null" in data else data


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
