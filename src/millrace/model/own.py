"""Own: a value that somebody may change who is not the only one to have it."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from typing import Any, Final

#: Of these no value can be changed.
_FIXED: Final = frozenset(
    {
        str, int, float, bool, bytes, type(None), dt.datetime, dt.date, dt.time, dt.timedelta,
        decimal.Decimal, uuid.UUID,
    }
)  # fmt: skip


def own(value: Any) -> Any:
    """Return a value equal to another, with nothing in common that could be changed.

    What cannot be changed is returned as it is.

    >>> row = {"tags": ["tea"]}
    >>> mine = own(row)
    >>> mine["tags"].append("rum")
    >>> row, own("tea")
    ({'tags': ['tea']}, 'tea')
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {key: own(item) for key, item in value.items()}
    if kind is list:
        return [own(item) for item in value]
    if kind is tuple:
        return tuple([own(item) for item in value])
    return copy.deepcopy(value)
