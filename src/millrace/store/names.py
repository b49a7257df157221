"""File names: of computations, readable when short and always different, and of numbered slots."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

# File systems allow 255 bytes a name; this leaves room for a suffix and for encrypted mounts, whose
# limit is 143.
_NAME_BYTES_MAX = 120
_PREFIX_BYTES = 64

_SLOT_NAME = re.compile(r"([0-9a-f]{8,})-([0-9a-f]{12,})")

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]|^\.")


def file_name(name: str) -> str:
    """Return a file name for any string; different strings get different file names.

    Letters, digits, ``_``, ``-`` and ``.`` (not as the first character) stay; any other byte of the
    UTF-8 becomes ``%`` and two hexadecimal digits; the empty string is ``%``. A result that is
    too long is cut and gets ``%~`` and a BLAKE2b digest, which no plain result contains.

    Names that differ only in case are different here, but one name to a file system that ignores
    case; a read then finds the wrong commit and says so, nothing is mixed in silence.

    >>> file_name("WindowCounter"), file_name("a/b"), file_name(".."), file_name("")
    ('WindowCounter', 'a%2Fb', '%2E.', '%')
    >>> file_name("x" * 1000)[60:75], len(file_name("x" * 1000))
    ('xxxx%~c9b2bd4ff', 98)
    """
    data = name.encode("utf-8", "surrogatepass")
    escaped = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], data).decode("ascii") or "%"
    if len(escaped) <= _NAME_BYTES_MAX:
        return escaped
    return f"{escaped[:_PREFIX_BYTES]}%~{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def slot_name(interval: int, number: int) -> str:
    """Return the name of a slot in its computation's folder; names sort as the numbers do.

    >>> slot_name(42, 7), slot_numbers([slot_name(42, 7), slot_name(42, 6), "lost+found"])
    ('0000002a-000000000007', {42: [6, 7]})
    """
    return f"{interval:08x}-{number:012x}"


def slot_numbers(names: Iterable[str]) -> dict[int, list[int]]:
    """Return interval -> numbers of the slots among ``names``, both ascending."""
    found: dict[int, list[int]] = {}
    for name in names:
        if match := _SLOT_NAME.fullmatch(name):
            found.setdefault(int(match[1], 16), []).append(int(match[2], 16))
    return {interval: sorted(found[interval]) for interval in sorted(found)}
