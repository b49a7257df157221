"""What msgspec says of the fields of a struct, asked once for each type.

It evaluates annotations anew each time, which takes as long as all else that is done when a
computation is begun.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

#: So many types are remembered: more than a program has, and few enough to keep.
_TYPES = 1024


@functools.lru_cache(_TYPES)
def struct_fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct type, as :func:`msgspec.structs.fields` does.

    Raises:
        TypeError: It is no struct type.

    >>> class Reading(msgspec.Struct):
    ...     sensor: str
    ...     value: int
    >>> [(info.name, info.type) for info in struct_fields(Reading)]
    [('sensor', <class 'str'>), ('value', <class 'int'>)]
    """
    return tuple(msgspec.structs.fields(kind))
