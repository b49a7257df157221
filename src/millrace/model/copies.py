"""Copies of values that several readers get, where a reader may change its own."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from functools import lru_cache
from typing import Any, Final

import msgspec

from millrace.model.coder import struct_fields

#: Of these no value can be changed.
_FIXED: Final = frozenset(
    {
        str, int, float, bool, bytes, type(None), dt.datetime, dt.date, dt.time, dt.timedelta,
        decimal.Decimal, uuid.UUID,
    }
)  # fmt: skip


def own_copy(value: Any) -> Any:
    """Return a value equal to another, with nothing in common that could be changed.

    What cannot be changed is returned as it is.

    >>> row = {"tags": ["tea"]}
    >>> mine = own_copy(row)
    >>> mine["tags"].append("rum")
    >>> row, own_copy("tea")
    ({'tags': ['tea']}, 'tea')
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {key: own_copy(item) for key, item in value.items()}
    if kind is list:
        return [own_copy(item) for item in value]
    if kind is tuple:
        return tuple([own_copy(item) for item in value])
    if isinstance(value, msgspec.Struct):
        return _copied_struct(value)
    return copy.deepcopy(value)


def _copied_struct(value: msgspec.Struct) -> msgspec.Struct:
    kind = type(value)
    if is_fixed(kind):
        return value
    copied = copy.copy(value)  # Unlike the constructor, it runs no code of the user's.
    for name in kind.__struct_fields__:
        field = getattr(value, name)
        if type(field) not in _FIXED:
            msgspec.structs.force_setattr(copied, name, own_copy(field))
    return copied


@lru_cache(maxsize=1024)
def is_fixed(kind: Any) -> bool:
    """Return whether no value of a type can be changed, by what its annotations say."""
    structs, left = set[type](), [kind]
    while left:
        part = left.pop()
        if part in _FIXED or part in structs:
            continue
        if typing.get_origin(part) in (typing.Union, types.UnionType):
            left += typing.get_args(part)
        elif not isinstance(part, type):
            return False
        elif issubclass(part, msgspec.Struct) and part.__struct_config__.frozen:
            structs.add(part)  # it may hold itself
            left += [field.type for field in struct_fields(part)]
        elif not issubclass(part, enum.Enum):
            return False
    return True
